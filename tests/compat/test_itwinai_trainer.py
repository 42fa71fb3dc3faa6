"""Programs written for itwinai's TorchTrainer run with another import line, and train as they did."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import stepwell
from stepwell import StepwellError
from stepwell._core import errors
from stepwell.compat.itwinai import (
    DeepSpeedStrategy,
    Logger,
    NonDistributedStrategy,
    TorchDDPStrategy,
    TorchTrainer,
    TrainingConfiguration,
)
from tests.harness import environment, run_ranks
from tests.loggers.logged import Own, items, metrics

pytestmark = pytest.mark.torch

CLASSES, PIXELS, SAMPLES = 4, 16, 64
SMALL = {"batch_size": 16, "num_workers_dataloader": 0}
BATCHES = SAMPLES // 16


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPWELL_STRICT", "1")
    errors.counts.clear()


def digits(seed: int = 0) -> TensorDataset:
    """Noisy pictures, each class with a bright column of its own."""
    noise = torch.Generator().manual_seed(seed)
    labels = torch.arange(SAMPLES) % CLASSES
    pictures = torch.rand(SAMPLES, 1, 4, 4, generator=noise)
    pictures[torch.arange(SAMPLES), 0, :, labels] += 1
    return TensorDataset(pictures, labels)


def net() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Flatten(), nn.Linear(PIXELS, CLASSES))


def weights(model: nn.Module) -> list[float]:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


def values(run: Any) -> dict[str, list[float]]:
    by_name: dict[str, list[float]] = {}
    for one in metrics(run):
        by_name.setdefault(one.name, []).append(one.value)
    return by_name


def test_a_configuration_has_defaults_and_takes_any_name() -> None:
    config = TrainingConfiguration(batch_size=17, depth=3)
    assert (config.batch_size, config.depth, config["depth"]) == (17, 3, 3)  # type: ignore[attr-defined]
    assert (config.optim_lr, config.optimizer, config.loss) == (1e-3, "adam", "cross_entropy")
    assert config.model_dump()["depth"] == 3
    assert "depth" not in config.model_fields
    changed = config.model_copy(update={"batch_size": 2})
    assert (changed.batch_size, config.batch_size) == (2, 17)
    config.find_unused = True  # type: ignore[attr-defined]
    assert config["find_unused"] is True
    with pytest.raises(AttributeError):
        config["nothing"]


def test_a_configuration_of_a_subclass() -> None:
    """Its own defaults are not shared, and what has none is asked for."""

    class Deep(TrainingConfiguration):
        layers: list[int] = [8, 8]  # noqa: RUF012
        width: int
        batch_size: int = 4

    config = Deep(width="12")
    assert (config.layers, config.width, config.batch_size) == ([8, 8], "12", 4)
    config.layers.append(9)
    assert Deep(width=1).layers == [8, 8]
    with pytest.raises(ValueError, match=r"Deep\(\) needs a value for width"):
        Deep()


def test_numbers_of_a_yaml_file_and_names_of_earlier_releases() -> None:
    """YAML reads 1e-2 as a text."""
    config = TrainingConfiguration(lr="1e-2", momentum="0.5", num_workers=0, shuffle_train="true")
    assert (config.optim_lr, config.optim_momentum) == (0.01, 0.5)
    assert (config.num_workers_dataloader, config.shuffle_train) == (0, True)
    assert TrainingConfiguration(lr=0.5, optim_lr=0.25).optim_lr == 0.25


@pytest.mark.full
def test_metrics_of_torchmetrics_are_logged_by_batch_and_epoch() -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    run = stepwell.init("metrics", dir="runs")
    chosen = {
        "accuracy": torchmetrics.Accuracy(task="multiclass", num_classes=CLASSES),
        "precision": torchmetrics.Precision(task="multiclass", num_classes=CLASSES),
    }
    trainer = TorchTrainer(
        config={**SMALL, "optim_lr": 0.0},
        epochs=1,
        model=net(),
        metrics=chosen,
        logger=Own(log_freq="batch"),
    )
    trainer.execute(digits(), digits(1))
    run.finish()
    by_name = values(run)
    untrained = net()
    for stage, data in (("train", digits()), ("validation", digits(1))):
        pictures, labels = data.tensors
        hits = (untrained(pictures).argmax(1) == labels).float().reshape(BATCHES, 16)
        assert by_name[f"{stage}_accuracy"] == pytest.approx(hits.mean(1).tolist())
        assert by_name[f"{stage}_accuracy_epoch"] == pytest.approx([float(hits.mean())])
        assert len(by_name[f"{stage}_precision"]) == BATCHES
    # They have forgotten what they have seen: nothing grows from epoch to epoch.
    assert all(one.update_count == 0 for one in chosen.values())


def test_a_random_seed_makes_two_trainings_the_same() -> None:
    """The order of the data too; another seed has another order."""

    def train(seed: int) -> list[float]:
        config = {**SMALL, "shuffle_train": True, "optim_lr": 0.1}
        *_, model = TorchTrainer(config, 2, net(), random_seed=seed).execute(digits())
        return weights(model)

    assert train(1) == train(1)
    assert train(1) != train(2)


def test_a_training_goes_on_from_a_checkpoint_as_if_it_had_not_stopped() -> None:
    """Model, optimizer, scheduler, order of the data and steps."""
    config = {**SMALL, "shuffle_train": True, "optim_lr": 0.05, "lr_scheduler": "exponential"}

    def trainer(epochs: int, folder: str, **more: Any) -> TorchTrainer:
        return TorchTrainer(
            config=config,
            epochs=epochs,
            model=net(),
            random_seed=7,
            checkpoint_every=2,
            checkpoints_location=folder,
            logger=Own(log_freq="batch"),
            **more,
        )

    whole = trainer(4, "whole")
    *_, expected = whole.execute(digits(), digits(1))
    trainer(2, "first").execute(digits(), digits(1))
    assert sorted(os.listdir("first")) == ["best_model", "epoch_1"]
    assert sorted(os.listdir("first/epoch_1")) == ["config.yaml", "model.pt", "state.pt"]
    run = stepwell.init("second", dir="runs")
    second = trainer(4, "second", from_checkpoint="first/epoch_1")
    *_, resumed = second.execute(digits(), digits(1))
    run.finish()
    assert weights(resumed) == weights(expected)
    assert second.lr_scheduler.get_last_lr() == whole.lr_scheduler.get_last_lr()
    assert second.lr_scheduler.get_last_lr() == pytest.approx([0.05 * 0.95**3])
    assert [one.step for one in metrics(run) if one.name == "train_loss"] == list(range(8, 16))
    assert sorted(os.listdir("second")) == ["best_model", "epoch_3"]
    # The best model got better twice, and is logged once.
    parts = ("state", "model", "config")
    logged = [f"{name}_{part}" for name in ("epoch_3", "best_model") for part in parts]
    assert [one.name for one in items(run, "artifact")] == logged


def test_a_checkpoint_that_several_processes_wrote_is_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Theirs has another prefix, and nothing about steps. If no epoch is left, it says so."""
    model = net()
    with torch.no_grad():
        model[1].bias.fill_(2.0)  # type: ignore[index, operator]
    folder = Path("checkpoints/epoch_0")
    folder.mkdir(parents=True)
    torch.save({f"module.{k}": v for k, v in model.state_dict().items()}, folder / "model.pt")
    optimizer = torch.optim.Adam(model.parameters())
    state = {
        "epoch": 0,
        "best_validation_metric": None,
        "optimizer_state_dict": optimizer.state_dict(),
        "lr_scheduler_state_dict": None,
        "torch_rng_state": torch.Generator().get_state(),
        "random_seed": None,
    }
    torch.save(state, folder / "state.pt")
    trainer = TorchTrainer(SMALL, 1, net(), from_checkpoint=folder)
    *_, resumed = trainer.execute(digits())
    assert weights(resumed) == weights(model)
    assert "has all 1 epochs already. To continue, use a larger number of epochs" in caplog.text
    trainer = TorchTrainer(SMALL, 2, net(), from_checkpoint=folder)
    trainer.execute(digits())
    assert (trainer.current_epoch, trainer.train_glob_step) == (1, 2 * BATCHES)


def test_a_model_whose_part_is_called_module_goes_on_from_its_checkpoint() -> None:
    """Its names begin as those of itwinai's DDP do, and are its own."""

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = net()

        def forward(self, pictures: Any) -> Any:
            return self.module(pictures)

    *_, trained = TorchTrainer(SMALL, 1, Named(), checkpoint_every=1).execute(digits())
    trainer = TorchTrainer(SMALL, 1, Named(), from_checkpoint="checkpoints/epoch_0")
    *_, resumed = trainer.execute(digits())
    assert weights(resumed) == weights(trained)


@pytest.mark.parametrize(
    ("name", "expected", "options"),
    [
        ("adadelta", torch.optim.Adadelta, {}),
        ("adam", torch.optim.Adam, {"betas": (0.8, 0.9)}),
        ("adamw", torch.optim.AdamW, {"betas": (0.8, 0.9)}),
        ("rmsprop", torch.optim.RMSprop, {"momentum": 0.3}),
        ("sgd", torch.optim.SGD, {"momentum": 0.3}),
    ],
)
def test_an_optimizer_by_its_name(name: str, expected: type, options: dict[str, Any]) -> None:
    config = TrainingConfiguration(
        optimizer=name,
        optim_lr=0.125,
        optim_weight_decay=0.25,
        optim_momentum=0.3,
        optim_betas=(0.8, 0.9),
    )
    trainer = TorchTrainer(config, 1, net())
    trainer.create_model_loss_optimizer()
    assert type(trainer.optimizer) is expected
    (group,) = trainer.optimizer.param_groups
    assert group.items() >= {"lr": 0.125, "weight_decay": 0.25, **options}.items()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mse", nn.MSELoss()),
        ("l2", nn.MSELoss()),
        ("l1", nn.L1Loss()),
        ("bceloss", nn.BCELoss()),
        ("bce", nn.BCEWithLogitsLoss()),
        ("cross_entropy", nn.CrossEntropyLoss()),
        ("nllloss", nn.NLLLoss()),
    ],
)
def test_a_loss_by_its_name(name: str, expected: nn.Module) -> None:
    trainer = TorchTrainer({"loss": name}, 1, net())
    trainer.create_model_loss_optimizer()
    guess = torch.tensor([[0.25, 0.5], [0.75, 0.125]])
    truth = torch.tensor([1, 0]) if name in ("cross_entropy", "nllloss") else guess.flip(0)
    assert trainer.loss(guess, truth) == expected(guess, truth)


@pytest.mark.parametrize(
    ("settings", "rates"),
    [
        ({"lr_scheduler": "step", "lr_scheduler_step_size": 2}, [1, 1, 0.1, 0.1]),
        ({"lr_scheduler": "multistep", "lr_scheduler_step_size": [1, 3]}, [1, 0.1, 0.1, 0.01]),
        ({"lr_scheduler": "exponential", "lr_scheduler_gamma": 0.5}, [1, 0.5, 0.25, 0.125]),
        ({"lr_scheduler": "constant"}, [1 / 3] * 4),
        ({"lr_scheduler": "linear"}, [5 / 15, 7 / 15, 9 / 15, 11 / 15]),
        ({"lr_scheduler": "polynomial"}, [1, 0.8, 0.6, 0.4]),
        ({}, [1, 1, 1, 1]),
    ],
)
def test_a_scheduler_by_its_name(settings: dict[str, Any], rates: list[float]) -> None:
    """It steps after each epoch: the first epoch has the rate that was given."""
    seen: list[float] = []

    class Mine(TorchTrainer):
        def train_epoch(self) -> None:  # type: ignore[override]
            seen.append(self.optimizer.param_groups[0]["lr"])
            self.optimizer.step()

    Mine({**SMALL, "optim_lr": 1.0, **settings}, 4, net()).execute(digits())
    assert seen == pytest.approx(rates)


def test_three_datasets_and_what_is_returned() -> None:
    """The test data has its own epochs, losses and steps."""
    run = stepwell.init("three", dir="runs")
    train, validation, test = digits(), digits(1), digits(2)
    trainer = TorchTrainer(
        SMALL, 4, net(), validation_every=2, test_every=4, logger=Own(log_freq="batch")
    )
    *datasets, trained = trainer.execute(train, validation, test)
    run.finish()
    assert datasets == [train, validation, test]
    assert trained is trainer.model
    by_name = values(run)
    lengths = {name: len(by_name[f"{name}_loss"]) for name in ("train", "validation", "test")}
    assert lengths == {"train": 4 * BATCHES, "validation": 2 * BATCHES, "test": BATCHES}
    pictures, labels = test.tensors
    loss = nn.functional.cross_entropy(trained(pictures), labels).item()
    assert by_name["test_loss_epoch"] == pytest.approx([loss], rel=1e-5)


def test_steps_of_a_batch_are_overridden() -> None:
    """They log through the trainer; the mean of what they return is that of the epoch."""

    class Mine(TorchTrainer):
        def train_step(self, batch: Any, batch_idx: int) -> Any:
            pictures, labels = batch
            pictures, labels = pictures.to(self.device), labels.to(self.device)
            self.optimizer.zero_grad()
            loss = self.loss(self.model(pictures), labels)
            loss.backward()
            self.optimizer.step()
            self.log(
                item=batch_idx * 2.0,
                identifier="twice",
                kind="metric",
                step=self.train_glob_step,
                batch_idx=batch_idx,
            )
            return loss, {"index": batch_idx}

        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            return torch.tensor(float(batch_idx)), {}

    run = stepwell.init("steps", dir="runs")
    Mine(SMALL, 2, net(), logger=Own(log_freq=2)).execute(digits(), digits(1))
    run.finish()
    by_name = values(run)
    assert by_name["twice"] == [0.0, 4.0, 0.0, 4.0]
    assert by_name["train_index_epoch"] == [1.5, 1.5]
    assert by_name["validation_loss_epoch"] == [1.5, 1.5]
    assert len(by_name["loss"]) == 2 * BATCHES


def test_batches_of_any_shape_are_counted() -> None:
    """By the first tensor that has a length; a batch without one is one sample."""

    class Mine(TorchTrainer):
        def create_dataloaders(self, *datasets: Any, **named: Any) -> None:
            scaled = {"scale": torch.tensor(2.0), "pictures": torch.rand(7, PIXELS)}
            self.train_dataloader = [scaled, torch.tensor(1.0), iter([torch.rand(3, PIXELS)])]

        def train_step(self, batch: Any, batch_idx: int) -> Any:
            pictures = next(batch) if batch_idx == 2 else torch.rand(1, PIXELS)
            return self.model(pictures).mean()

    run = stepwell.init("shapes", dir="runs")
    Mine(SMALL, 1, net()).execute(None)
    run.finish()
    events = stepwell.open_run(run.path).events().collect()
    (update,) = events.filter(events["name"] == "training_metrics_update")["attributes"]
    assert json.loads(update)["num_train_samples"] == 7 + 1 + 1


def test_what_is_created_is_overridden() -> None:
    """Dataloaders come first, then the model, which may look at them; the strategy makes both ready."""
    order: list[str] = []

    class Mine(TorchTrainer):
        def create_dataloaders(
            self, train_dataset: Any, validation_dataset: Any = None, test_dataset: Any = None
        ) -> None:
            order.append("data")
            self.train_dataloader = self.strategy.create_dataloader(
                dataset=train_dataset,
                batch_size=self.config.batch_size,
                shuffle=False,
                drop_last=True,
                num_workers=self.config.num_workers_dataloader,
                generator=self.torch_rng,
            )

        def create_model_loss_optimizer(self) -> None:
            order.append("model")
            pictures, _ = next(iter(self.train_dataloader))
            model = nn.Sequential(nn.Flatten(), nn.Linear(pictures[0].numel(), CLASSES))
            optimizer = torch.optim.Adam(model.parameters(), lr=self.config.optim_lr)
            options = {"config_params": {}} if isinstance(self.strategy, DeepSpeedStrategy) else {}
            self.model, self.optimizer, _ = self.strategy.distributed(model, optimizer, **options)
            self.loss = nn.CrossEntropyLoss()
            self.log(sum(p.numel() for p in model.parameters()), "parameters", kind="param")

    run = stepwell.init("own", dir="runs")
    trainer = Mine(config={"batch_size": 24, "num_workers_dataloader": 0}, epochs=1, logger=Own())
    *_, trained = trainer.execute(digits())
    run.finish()
    assert order == ["data", "model"]
    assert trainer.train_glob_step == SAMPLES // 24
    assert isinstance(trainer.strategy, NonDistributedStrategy)
    assert trained[1].in_features == PIXELS
    assert {one.name: one.value for one in items(run, "param")}["parameters"] == 68


class OfAnEarlierRelease(TorchTrainer):
    """Epochs were passed as an argument, and checkpoints were files."""

    def __init__(self, config: Any, epochs: int, critic: nn.Module, **kwargs: Any) -> None:
        super().__init__(config=config, epochs=epochs, model=None, **kwargs)
        self.save_parameters(**self.locals2params(locals()))
        self.critic = critic
        self.calls: list[Any] = []

    def create_model_loss_optimizer(self) -> None:
        self.optimizer_of_critic = torch.optim.SGD(
            self.critic.parameters(), lr=self.config.optim_lr
        )
        self.critic, self.optimizer_of_critic, _ = self.strategy.distributed(
            self.critic, self.optimizer_of_critic
        )

    def train_epoch(self, epoch: int) -> None:  # type: ignore[override]
        for batch_idx, (pictures, labels) in enumerate(self.train_dataloader):
            self.critic.train()
            loss = nn.functional.cross_entropy(self.critic(pictures), labels)
            self.optimizer_of_critic.zero_grad()
            loss.backward()
            self.optimizer_of_critic.step()
            self.log(loss, "critic_loss", step=self.train_glob_step, batch_idx=batch_idx)
            self.train_glob_step += 1
        self.calls.append(("train", epoch))

    def validation_epoch(self, epoch: int) -> torch.Tensor:  # type: ignore[override]
        self.calls.append(("validation", epoch))
        return torch.tensor([3.0, 1.0, 2.0][epoch])

    def save_checkpoint(self, name: str, epoch: int, loss: Any = None) -> None:  # type: ignore[override]
        self.calls.append((name, epoch, None if loss is None else loss.item()))


def test_a_trainer_of_an_earlier_release() -> None:
    """With epochs as arguments, models of its own, and its own checkpoints."""
    trainer = OfAnEarlierRelease(SMALL, 3, net(), checkpoint_every=3, logger=Own())
    *_, model = trainer.execute(digits(), digits(1))
    assert model is None
    assert trainer.parameters["epochs"] == 3
    assert "self" not in trainer.parameters
    assert trainer.calls == [
        ("train", 0),
        ("validation", 0),
        ("best_model", 0, 3.0),
        ("train", 1),
        ("validation", 1),
        ("best_model", 1, 1.0),
        ("train", 2),
        ("validation", 2),
        ("epoch_2", 2, None),
    ]


def test_a_whole_loop_is_overridden() -> None:
    """As the tutorial about tuning does: its own epochs, with what is at hand in a trainer."""

    class Mine(TorchTrainer):
        def train(self) -> None:
            device = self.strategy.device()
            for self.current_epoch in range(self.epochs):  # noqa: B020
                self.set_epoch()
                self.model.train()
                losses = []
                for pictures, labels in self.train_dataloader:
                    loss = self.loss(self.model(pictures.to(device)), labels.to(device))
                    self.optimizer.zero_grad()
                    loss.backward()
                    self.optimizer.step()
                    losses.append(loss.item())
                everyone = self.strategy.gather(torch.tensor(losses), dst_rank=0)
                if self.strategy.is_main_worker:
                    assert everyone is not None
                    self.log(float(everyone[0].mean()), "train_loss", step=self.current_epoch)
                self.ray_report(metrics={"loss": losses[-1]}, checkpoint_data={})
                self.save_checkpoint(name=f"epoch_{self.current_epoch}")

    run = stepwell.init("loop", dir="runs")
    Mine(SMALL, 3, net(), logger=Own(), checkpoint_every=2).execute(digits())
    run.finish()
    assert len(values(run)["train_loss"]) == 3
    assert os.listdir("checkpoints") == ["epoch_1"]


@pytest.mark.parametrize("name", ["horovod", "deepspeed"])
def test_strategies_that_are_not_available(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone every name trains; with others it says what to write."""
    assert isinstance(TorchTrainer(SMALL, strategy=name).strategy, NonDistributedStrategy)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(
        ValueError, match=rf'"{name}" is not supported with several processes: use strategy="ddp"'
    ):
        TorchTrainer(SMALL, strategy=name)
    assert isinstance(TorchTrainer(SMALL, strategy="ddp").strategy, TorchDDPStrategy)
    assert isinstance(TorchTrainer(SMALL, strategy=None).strategy, NonDistributedStrategy)
    with pytest.raises(StepwellError, match="DeepSpeedStrategy is not available"):
        DeepSpeedStrategy(backend="nccl")


def test_arguments_without_effect_are_said(caplog: pytest.LogCaptureFixture) -> None:
    """Once each, with what to do instead; those that ask for what is always so are not."""
    caplog.set_level(logging.WARNING, "stepwell")
    TorchTrainer(
        SMALL,
        disable_tqdm=True,
        measure_gpu_data=True,
        measure_epoch_time=True,
        profiling_wait_epochs=1,
        ray_tune_config=None,
        ray_scaling_config={"num_workers": 2},
    )
    said = [record.getMessage() for record in caplog.records]
    assert [text.partition("=")[0] for text in said] == [
        "TorchTrainer(profiling_wait_epochs",
        "TorchTrainer(ray_scaling_config",
    ]
    assert "torchrun" in said[1]


def test_the_name_of_a_run() -> None:
    TorchTrainer(SMALL, 1, net(), run_name="night").execute(digits())
    (run,) = stepwell.list_runs("runs")
    assert run.name == "night"


class Lines(Logger):
    """A logger as users write them: a list of what it was given."""

    def __init__(self, log_freq: Any = "epoch") -> None:
        super().__init__(savedir="lines", log_freq=log_freq)
        self.lines: list[Any] = []

    def create_logger_context(self, rank: int = 0, **kwargs: Any) -> None:  # type: ignore[override]
        self.worker_rank = rank
        self.is_initialized = True
        self.lines.append("created")

    def destroy_logger_context(self) -> None:  # type: ignore[override]
        self.is_initialized = False
        self.lines.append("destroyed")

    def save_hyperparameters(self, params: dict[str, Any]) -> None:
        self.lines += [f"{name} {params[name]}" for name in ("batch_size", "optimizer")]

    def log(
        self,
        item: Any,
        identifier: Any,
        kind: str = "metric",
        step: int | None = None,
        batch_idx: int | None = None,
        **kwargs: Any,
    ) -> None:
        if self.should_log(batch_idx) and identifier != "epoch_time_s":
            self.lines.append([identifier, step, json.loads(json.dumps(item))])


def test_a_logger_of_the_users_own() -> None:
    """It is created and destroyed, also if training fails, and has numbers, not tensors."""
    logger = Lines(log_freq=2)
    trainer = TorchTrainer({**SMALL, "optim_lr": 0.0}, 1, net(), logger=logger)
    trainer.execute(digits())
    assert not logger.is_initialized
    pictures, labels = digits().tensors
    losses = [
        nn.functional.cross_entropy(net()(pictures[i : i + 16]), labels[i : i + 16]).item()
        for i in range(0, SAMPLES, 16)
    ]
    assert logger.lines == [
        "created",
        "batch_size 16",
        "optimizer adam",
        ["train_loss", 0, pytest.approx(losses[0])],
        ["train_loss", 2, pytest.approx(losses[2])],
        ["train_loss_epoch", 4, pytest.approx(sum(losses) / 4)],
        "destroyed",
    ]
    logger = Lines()
    with pytest.raises(TypeError, match="unexpected keyword argument 'wrong'"):
        TorchTrainer(SMALL, 1, net(), logger=logger, wrong=1)
    with pytest.raises(StepwellError, match="has no model"):
        TorchTrainer(SMALL, logger=logger).execute(digits())
    assert logger.lines[-1] == "destroyed"


TUTORIAL = """
import argparse
import json

import torch
import torch.nn as nn
import torchmetrics

from stepwell.compat.itwinai import MLFlowLogger, TorchTrainer, TrainingConfiguration


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Conv2d(1, 4, 3)
        self.classes = nn.Linear(16, 4)

    def forward(self, x):
        return self.classes(torch.relu(self.features(x)).flatten(1))


def pictures(seed):
    noise = torch.Generator().manual_seed(seed)
    labels = torch.arange(64) % 4
    images = torch.rand(64, 1, 4, 4, generator=noise)
    images[torch.arange(64), 0, :, labels] += 1
    return torch.utils.data.TensorDataset(images, labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--strategy", type=str, default="ddp")
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ckpt-interval", type=int, default=2)
    args = parser.parse_args()

    training_config = TrainingConfiguration(
        batch_size=args.batch_size,
        optim_lr=args.lr,
        optimizer="adadelta",
        loss="cross_entropy",
        num_workers_dataloader=0,
    )
    logger = MLFlowLogger(experiment_name="digits-tutorial", log_freq=2)
    metrics = {
        "accuracy": torchmetrics.Accuracy(task="multiclass", num_classes=4),
        "precision": torchmetrics.Precision(task="multiclass", num_classes=4),
    }
    torch.manual_seed(3)
    trainer = TorchTrainer(
        config=training_config,
        model=Net(),
        metrics=metrics,
        logger=logger,
        strategy=args.strategy,
        epochs=args.epochs,
        random_seed=args.seed,
        checkpoint_every=args.ckpt_interval,
    )
    _, _, _, trained_model = trainer.execute(pictures(0), pictures(1), None)
    values = [p.detach().flatten().tolist() for p in trained_model.parameters()]
    with open(f"weights-{trainer.strategy.global_rank()}.json", "w") as file:
        json.dump(values, file)


if __name__ == "__main__":
    main()
"""


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_the_tutorial_on_two_processes(tmp_path: Path) -> None:
    """One model, its metrics in MLflow, and checkpoints from which a single process can continue."""
    pytest.importorskip("torchmetrics")
    pytest.importorskip("mlflow")
    from tests.loggers.reading_back import Left

    env = environment(STEPWELL_STRICT="1", STEPWELL_FINISH_TIMEOUT="120")
    ranks = run_ranks(TUTORIAL, env=env, cwd=tmp_path, check=True, timeout=240)
    assert [rank.stdout for rank in ranks] == ["", ""]
    first, second = ((tmp_path / f"weights-{rank}.json").read_text() for rank in (0, 1))
    assert first == second
    left = Left(tmp_path)
    # Each of the two has 32 samples in 4 batches of 8, and logs batches 0 and 2 of each epoch.
    assert [step for step, _ in left.mlflow_curve("train_loss")] == [0, 2, 4, 6, 8, 10]
    for name in ("train_accuracy_epoch", "validation_precision_epoch", "validation_loss_epoch"):
        assert [step for step, _ in left.mlflow_curve(name)] == [4, 8, 12]
    losses = [value for _, value in left.mlflow_curve("validation_loss_epoch")]
    assert losses == sorted(losses, reverse=True)
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["best_model", "epoch_1"]
    saved = torch.load(tmp_path / "checkpoints/best_model/model.pt", weights_only=True)
    best = [value.flatten().tolist() for value in saved.values()]
    assert best == json.loads(first)
    # One process with batches twice as large does what the two did in the last epoch.
    tutorial: dict[str, Any] = {"__name__": "tutorial"}
    exec(TUTORIAL, tutorial)
    trainer = TorchTrainer(
        config={"batch_size": 16, "num_workers_dataloader": 0, "optimizer": "adadelta"},
        epochs=3,
        model=tutorial["Net"](),
        from_checkpoint=tmp_path / "checkpoints" / "epoch_1",
    )
    *_, resumed = trainer.execute(tutorial["pictures"](0))
    assert trainer.train_glob_step == 12
    flat = [value for values_of_one in best for value in values_of_one]
    assert weights(resumed) == pytest.approx(flat, abs=1e-4)
