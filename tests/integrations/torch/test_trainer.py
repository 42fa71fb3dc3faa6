"""TorchTrainer: what it trains, what it records, and what may be overridden."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

import stepwell
from stepwell.integrations.torch.trainer import TorchTrainer
from stepwell.journal.errors import StepwellError
from tests.harness import environment, run_ranks
from tests.loggers.logged import Own, items, metrics
from tests.nesting.tree import check_tree, edges

pytestmark = pytest.mark.torch

SAMPLES, BATCH, EPOCHS = 40, 8, 3
BATCHES = SAMPLES // BATCH
CONFIG = {"batch_size": BATCH, "loss": "mse", "optimizer": "sgd", "lr": 0.1, "seed": 3}


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
    trainer = TorchTrainer({**CONFIG, "checkpoint_every": 2}, EPOCHS, model(), logger=Own())
    trained = trainer.execute(dataset(), dataset())
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
        ("checkpoint_save_sync", "training_loop"): 1,
    }
    assert edges(spans) == expected
    events = run.events().filter(pl.col("name") == "training_metrics_update").collect()
    last = json.loads(events.sort("time_ns")["attributes"][-1])
    assert last["num_train_samples"] == EPOCHS * SAMPLES
    assert last["num_iterations"] == EPOCHS * BATCHES


def test_it_trains_as_a_plain_loop_does() -> None:
    """To the last bit."""
    trained = TorchTrainer({**CONFIG, "shuffle": False}, EPOCHS, model()).execute(dataset())
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
    TorchTrainer(argparse.Namespace(**CONFIG), 2, model(), logger=logger).execute(
        dataset(), dataset()
    )
    assert not logger.is_initialized
    assert stepwell.active_run() is run
    run.finish()
    found = metrics(run)

    def steps(name: str) -> list[int | None]:
        return [one.step for one in found if one.name == name]

    assert steps("loss") == list(range(2 * BATCHES))
    assert steps("train/loss") == [0, 2, 4, 5, 7, 9]
    assert steps("train/epoch_loss") == steps("val/loss") == [BATCHES - 1, 2 * BATCHES - 1]
    params = {one.name: one.value for one in items(run, "param")}
    assert params == {**CONFIG, "epochs": 2, "strategy": None, "world_size": 1}


def test_a_subclass_replaces_what_it_wants() -> None:
    """train() has everything at hand; an error in it ends the run as failed."""

    class Mine(TorchTrainer):
        def train(self) -> None:
            assert (self.rank, self.world_size, len(self.train_loader)) == (0, 1, BATCHES)
            assert self.validation_loader is None
            assert isinstance(self.optimizer, torch.optim.SGD)
            self.logger.log(1.5, "mine")
            raise ValueError("it went wrong")

    with pytest.raises(ValueError, match="went wrong"):
        Mine(CONFIG, 1, model(), "ddp", Own()).execute(dataset())
    run = only_run()
    assert run.status == "failed"
    assert run.metrics().filter(pl.col("name") == "mine").collect()["value"].to_list() == [1.5]


def test_checkpoints_are_logged() -> None:
    run = stepwell.init("mine", dir="runs")
    config = {**CONFIG, "checkpoint_every": 1, "checkpoint_dir": "saved"}
    trained = TorchTrainer(config, 2, model(), logger=Own()).execute(dataset())
    run.finish()
    assert [one.name for one in items(run, "model")] == [
        "checkpoints/epoch-0",
        "checkpoints/epoch-1",
    ]
    saved = torch.load("saved/epoch-1.pt", weights_only=True)
    assert torch.equal(saved["model"]["weight"], trained.weight)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "fsdp"}, "strategy"),
        ({"epochs": 0}, "epochs"),
        ({"logger": "mlflow"}, "logger"),
        ({"config": 3}, "config"),
        ({"config": {"loss": "mes"}}, "loss"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(StepwellError, match=message):
        TorchTrainer(**options)


def test_without_a_model_it_says_so() -> None:
    with pytest.raises(StepwellError, match="has no model"):
        TorchTrainer().execute(dataset())


PROGRAM = """
import json, torch
from stepwell.loggers import TensorBoardLogger
from stepwell.integrations.torch import TorchTrainer

torch.manual_seed(1)
inputs = torch.linspace(-1, 1, 80).reshape(40, 2)
data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
config = {"batch_size": 4, "loss": "mse", "optimizer": "sgd", "lr": 0.1, "shuffle": False}
trainer = TorchTrainer(
    config=config, epochs=2, model=torch.nn.Linear(2, 1), strategy="ddp",
    logger=TensorBoardLogger(log_freq="batch", log_on_workers=-1),
)
trained = trainer.execute(data, data)
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
        assert [step for step, _ in left.tensorboard_curve("train/loss")] == list(range(10))
    # The loss of an epoch and of validation is that of both together.
    for name in ("train/epoch_loss", "val/loss"):
        assert Left(tmp_path, 0).tensorboard_curve(name) == Left(tmp_path, 1).tensorboard_curve(
            name
        )
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
