"""TorchTrainer: training, records and overridable methods."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

import stepwell
from stepwell._core.errors import StepwellError
from stepwell.integrations.torch.trainer import TorchTrainer
from tests.harness import environment, run_ranks
from tests.loggers.logged import Own, items, metrics
from tests.nesting.tree import check_tree, edges

pytestmark = pytest.mark.torch

SAMPLES, BATCH, EPOCHS = 40, 8, 3
BATCHES = SAMPLES // BATCH
CONFIG = {
    "batch_size": BATCH,
    "loss": "mse",
    "optimizer": "sgd",
    "optim_lr": 0.1,
    "optim_momentum": 0.0,
    "num_workers_dataloader": 0,
}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPWELL_STRICT", "1")


def dataset() -> Any:
    inputs = torch.linspace(-1, 1, 2 * SAMPLES).reshape(SAMPLES, 2)
    return torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))


def model() -> Any:
    torch.manual_seed(1)
    return torch.nn.Linear(2, 1)


def only_run() -> stepwell.reading.RecordedRun:
    (run,) = stepwell.list_runs("runs")
    return run


def test_a_whole_training_is_recorded() -> None:
    """Each part of it is a standard span in its place; the run ends with it."""
    trainer = TorchTrainer(
        CONFIG, EPOCHS, model(), random_seed=3, logger=Own(), checkpoint_every=2, test_every=3
    )
    data = dataset()
    *datasets, trained = trainer.execute(data, data, data)
    assert datasets == [data, data, data]
    assert trained is trainer.model
    assert stepwell.active_run() is None
    run = only_run()
    assert run.status == "finished"
    spans = run.spans().collect()
    check_tree(spans)
    assert set(spans["status"]) == {"ok"}
    expected = {
        ("application", None): 1,
        ("model_initialization", "application"): 1,
        ("optimizer_initialization", "application"): 1,
        ("data_loader_initialization", "application"): 1,
        ("training_loop", "application"): 1,
        ("data_loading", "training_loop"): EPOCHS * BATCHES,
        ("training_single_iteration", "training_loop"): EPOCHS * BATCHES,
        ("model_forward", "training_single_iteration"): EPOCHS * BATCHES,
        ("zero_grad", "training_single_iteration"): EPOCHS * BATCHES,
        ("model_backward", "training_single_iteration"): EPOCHS * BATCHES,
        ("optimizer_update", "training_single_iteration"): EPOCHS * BATCHES,
        ("validation_loop", "training_loop"): EPOCHS,
        ("validation_single_iteration", "validation_loop"): EPOCHS * BATCHES,
        ("testing_loop", "training_loop"): 1,
        ("testing_single_iteration", "testing_loop"): BATCHES,
        # After the second epoch, and of each epoch the best model so far: it gets better each time.
        ("checkpoint_save_sync", "training_loop"): 1 + EPOCHS,
    }
    assert edges(spans) == expected
    events = run.events().filter(pl.col("name") == "training_metrics_update").collect()
    last = json.loads(events.sort("time_ns")["attributes"][-1])
    assert last["num_train_samples"] == EPOCHS * SAMPLES
    assert last["num_iterations"] == EPOCHS * BATCHES


def test_it_trains_as_a_plain_loop_does() -> None:
    """To the last bit."""
    *_, trained = TorchTrainer(CONFIG, EPOCHS, model()).execute(dataset())
    plain = model()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(EPOCHS):
        for x, y in torch.utils.data.DataLoader(dataset(), batch_size=BATCH):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(plain(x), y).backward()
            optimizer.step()
    for ours, theirs in zip(trained.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_the_logger_hears_what_it_asked_for() -> None:
    """Created with the rank, destroyed at the end; the run has the loss of every step."""
    logger = Own(log_freq=2)
    run = stepwell.init("mine", dir="runs")
    trainer = TorchTrainer(argparse.Namespace(**CONFIG), 2, model(), logger=logger)
    trainer.execute(dataset(), dataset())
    assert not logger.is_initialized
    assert stepwell.active_run() is run
    run.finish()
    found = metrics(run)

    def steps(name: str) -> list[int | None]:
        return [one.step for one in found if one.name == name]

    assert steps("loss") == list(range(2 * BATCHES))
    assert steps("train_loss") == steps("validation_loss") == [0, 2, 4, 5, 7, 9]
    # Values of an epoch are where training stands.
    assert steps("train_loss_epoch") == [BATCHES, 2 * BATCHES]
    assert steps("validation_loss_epoch") == [BATCHES, 2 * BATCHES]
    assert steps("global_validation_loss_epoch") == steps("epoch_time_s") == [0, 1]
    params = {one.name: one.value for one in items(run, "param")}
    others = {
        "epochs": 2,
        "strategy": "non-distributed",
        "distributed_strategy": "NonDistributedStrategy",
        "global_world_size": 1,
        "optim_weight_decay": 0.0,
    }
    assert params.items() >= {**CONFIG, **others}.items()


def test_values_of_an_epoch_are_means_of_its_batches() -> None:
    """Also where the last batch is smaller."""
    run = stepwell.init("mine", dir="runs")
    config = {**CONFIG, "batch_size": 16, "optim_lr": 0.0}
    names = {"far": torch.nn.functional.l1_loss}
    TorchTrainer(config, 1, model(), logger=Own(log_freq="batch"), metrics=names).execute(dataset())
    run.finish()
    values: dict[str, list[float]] = {}
    for one in metrics(run):
        values.setdefault(one.name, []).append(one.value)
    untrained = model()
    x, y = dataset().tensors
    batches = [(x[i : i + 16], y[i : i + 16]) for i in (0, 16, 32)]
    with torch.no_grad():
        losses = [float(torch.nn.functional.mse_loss(untrained(x), y)) for x, y in batches]
        far = [float((untrained(x) - y).abs().mean()) for x, y in batches]
    assert values["train_loss"] == pytest.approx(losses)
    assert values["train_far"] == pytest.approx(far)
    assert values["train_loss_epoch"] == pytest.approx([sum(losses) / 3])
    assert values["train_far_epoch"] == pytest.approx([sum(far) / 3])


def test_a_subclass_replaces_what_it_wants() -> None:
    """train() has everything at hand; an error in it ends the run as failed."""

    class Mine(TorchTrainer):
        def train(self) -> None:
            assert (self.rank, self.world_size, len(self.train_dataloader)) == (0, 1, BATCHES)
            assert self.validation_dataloader is None
            assert isinstance(self.optimizer, torch.optim.SGD)
            self.logger.log(1.5, "mine")
            raise ValueError("it went wrong")

    with pytest.raises(ValueError, match="went wrong"):
        Mine(CONFIG, 1, model(), "ddp", logger=Own()).execute(dataset())
    run = only_run()
    assert run.status == "failed"
    assert run.metrics().filter(pl.col("name") == "mine").collect()["value"].to_list() == [1.5]


def test_a_loop_of_your_own_is_watched() -> None:
    """In the run of the trainer."""

    class Mine(TorchTrainer):
        def train(self) -> None:
            with stepwell.watch(self.model, self.optimizer, self.train_dataloader):
                for x, y in self.train_dataloader:
                    self.optimizer.zero_grad()
                    self.loss(self.model(x), y).backward()
                    self.optimizer.step()

    Mine(CONFIG, 1, model()).execute(dataset())
    spans = only_run().spans().collect()
    assert edges(spans)["training_single_iteration", "training_loop"] == BATCHES


def test_data_of_unknown_length() -> None:
    """It trains until there is no more."""

    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(dataset())

    trainer = TorchTrainer(CONFIG, 2, model())
    trainer.execute(Stream())
    assert trainer.train_glob_step == 2 * BATCHES


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "fsdp"}, "strategy"),
        ({"epochs": 0}, "epochs"),
        ({"logger": "mlflow"}, "logger"),
        ({"metrics": ["accuracy"]}, "metrics"),
        ({"checkpoint_every": 0}, "checkpoint_every"),
        ({"from_checkpoint": "nowhere"}, "from_checkpoint must be a folder .*, got 'nowhere'"),
        ({"config": 3}, "config"),
        ({"config": {"loss": "mes"}}, "loss must be one of bce, .*or a function, got 'mes'"),
        ({"config": {"optimizer": "adm"}}, "optimizer must be one of .*, got 'adm'"),
        ({"config": {"lr_scheduler": "cosine"}}, "lr_scheduler must be one of .*, got 'cosine'"),
        ({"config": {"batch_size": "many"}}, "batch_size must be a whole number, got 'many'"),
        ({"config": {"batch_size": 2.5}}, r"batch_size must be .*, got 2\.5"),
        (
            {"config": {"shuffle_train": "perhaps"}},
            "shuffle_train must be True or False, got 'perhaps'",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(StepwellError, match=message):
        TorchTrainer(**options)


def test_without_a_model_or_data_it_says_so() -> None:
    with pytest.raises(StepwellError, match="has no model"):
        TorchTrainer(CONFIG).execute(dataset())
    with pytest.raises(StepwellError, match="no training data"):
        TorchTrainer(CONFIG, 1, model()).execute(None)


def test_a_step_that_returns_something_else_is_told_what_to_return() -> None:
    class Mine(TorchTrainer):
        def train_step(self, batch: Any, batch_idx: int) -> Any:
            return 1.0, {}, "more"

    with pytest.raises(StepwellError, match=r"must return the loss, .*, got 3 values"):
        Mine(CONFIG, 1, model()).execute(dataset())


PROGRAM = """
import json, torch
from stepwell.loggers import TensorBoardLogger
from stepwell.integrations.torch import TorchTrainer

torch.manual_seed(1)
inputs = torch.linspace(-1, 1, 80).reshape(40, 2)
data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
config = {
    "batch_size": 4, "loss": "mse", "optimizer": "sgd", "optim_lr": 0.1, "optim_momentum": 0,
    "num_workers_dataloader": 0,
}
trainer = TorchTrainer(
    config=config, epochs=2, model=torch.nn.Linear(2, 1), strategy="ddp",
    logger=TensorBoardLogger(log_freq="batch", log_on_workers=-1),
)
*_, trained = trainer.execute(data, data)
weights = [value.tolist() for value in trained.state_dict().values()]
with open(f"weights-{trainer.rank}.json", "w") as file:
    json.dump(weights, file)
"""


@pytest.mark.filterwarnings("ignore")
def test_two_processes_train_one_model(tmp_path: Path) -> None:
    """One run, the same weights on both, and those of a batch twice as large."""
    pytest.importorskip("tensorboard")
    from tests.loggers.reading_back import Left

    env = environment(STEPWELL_STRICT="1", STEPWELL_FINISH_TIMEOUT="60")
    run_ranks(PROGRAM, env=env, cwd=tmp_path, check=True, timeout=240)
    run = only_run()
    spans = run.spans().collect()
    assert edges(spans)["distributed_code_initialization", "application"] == 2
    assert edges(spans)["training_single_iteration", "training_loop"] == 2 * 2 * BATCHES
    first, second = (json.loads((tmp_path / f"weights-{i}.json").read_text()) for i in (0, 1))
    assert first == second
    for rank in (0, 1):
        left = Left(tmp_path, rank)
        assert [step for step, _ in left.tensorboard_curve("train_loss")] == list(range(10))
    # The loss of an epoch and of validation is that of both together.
    for name in ("train_loss_epoch", "validation_loss_epoch"):
        curves = [Left(tmp_path, rank).tensorboard_curve(name) for rank in (0, 1)]
        assert curves[0] == curves[1]
        assert len(curves[0]) == 2
    torch.manual_seed(1)
    plain = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    inputs = torch.linspace(-1, 1, 80).reshape(40, 2)
    targets = inputs.sum(1, keepdim=True)
    for _ in range(2):
        for batch in range(0, 40, 8):
            # Each rank takes every other sample.
            x, y = inputs[batch : batch + 8], targets[batch : batch + 8]
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(plain(x), y).backward()
            optimizer.step()
    expected = [value.tolist() for value in plain.state_dict().values()]
    assert torch.allclose(torch.tensor(first[0]), torch.tensor(expected[0]), atol=1e-5)
