"""StepwellLogger as a logger of Lightning, in real fits."""

from __future__ import annotations

import argparse
import copy
import importlib
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell._core.errors import StepwellError
from stepwell.integrations.lightning import StepwellLogger
from stepwell.integrations.lightning.logger import BatchRange
from stepwell.loggers import (
    EmptyLogger,
    Logger,
    LoggersCollection,
    MLFlowLogger,
    TensorBoardLogger,
    WandBLogger,
)
from tests.harness import TRAINERS, environment, run_script
from tests.loggers.logged import Another, Own, items, logger_lines, metrics

torch = pytest.importorskip("torch")
pytest.importorskip("lightning")
pytest.importorskip("pytorch_lightning")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

BATCHES = 10


@pytest.fixture(params=["lightning.pytorch", "pytorch_lightning"])
def pl(request: pytest.FixtureRequest) -> Any:
    """Either package."""
    return importlib.import_module(request.param)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPWELL_STRICT", "1")


def model_of(pl: Any, fails: BaseException | None = None) -> Any:
    class Model(pl.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self, width: int = 3) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.layer = torch.nn.Linear(width, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if fails is not None and batch_idx == 5:
                raise fails
            loss = self.layer(batch).pow(2).mean()
            self.log("loss", loss)
            self.log("mean", loss, on_step=False, on_epoch=True)
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val", self.layer(batch).pow(2).mean())

        def test_step(self, batch: Any, batch_idx: int) -> None:
            self.log("tested", 1.0)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    return Model()


def data() -> Any:
    return torch.utils.data.DataLoader(torch.randn(BATCHES, 3), batch_size=1)


def trainer_of(pl: Any, logger: Any, **options: Any) -> Any:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    options = {"max_epochs": 2, "log_every_n_steps": 1, **options}
    return pl.Trainer(logger=logger, **quiet, **options)


def finished_run(logger: StepwellLogger) -> stepwell.Run:
    run = stepwell.active_run()
    assert run is not None
    logger.finish()
    return run


def steps(run: stepwell.Run, name: str) -> list[int | None]:
    return [one.step for one in metrics(run) if one.name == name]


def test_a_fit_and_a_test_are_one_run(pl: Any) -> None:
    """With hyperparameters, the model as a text, and what was logged of both."""
    logger = StepwellLogger(Own(log_freq="batch"))
    assert isinstance(logger, pl.loggers.Logger)
    trainer, model = trainer_of(pl, logger), model_of(pl)
    trainer.fit(model, data(), data())
    trainer.test(model, data(), verbose=False)
    run = finished_run(logger)
    assert len(list(Path("runs").glob("[!.]*"))) == 1
    assert steps(run, "loss") == list(range(2 * BATCHES))
    assert steps(run, "mean") == steps(run, "val") == [BATCHES - 1, 2 * BATCHES - 1]
    assert len(steps(run, "tested")) == 1
    assert {(one.name, one.value) for one in items(run, "param")} == {("width", 3)}
    (graph,) = items(run, "text")
    assert "Linear(in_features=3, out_features=1" in graph.value
    assert [line["attributes"].get("status") for line in logger_lines(run)] == [None, "finished"]


def test_it_has_a_name_a_version_and_folders(pl: Any) -> None:
    """They are where Lightning puts its checkpoints; asking for the name starts no run."""
    logger = StepwellLogger(MLFlowLogger(experiment_name="digits", savedir="logs"))
    assert (logger.name, logger.save_dir) == ("digits", "logs/mlflow")
    assert stepwell.active_run() is None
    logger = StepwellLogger(Own("logs"), name="mine")
    trainer = trainer_of(pl, logger, max_epochs=1)
    trainer.fit(model_of(pl), data())
    run = stepwell.active_run()
    assert run is not None
    assert logger.version == run.id
    assert logger.root_dir == os.path.join("logs", "mine")
    assert logger.log_dir == os.path.join("logs", "mine", run.id)
    (found,) = Path(logger.log_dir, "checkpoints").iterdir()
    assert found.name == f"epoch=0-step={BATCHES}.ckpt"
    assert trainer.log_dir == "logs"
    assert all(isinstance(one, str) for one in (logger.save_dir, logger.version))
    logger.finish()
    assert StepwellLogger(Own()).name == "lightning_logs"
    both = LoggersCollection([TensorBoardLogger("logs"), WandBLogger("logs")])
    assert StepwellLogger(both).save_dir == "logs"


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("log_freq", "every", "expected"),
    [
        ("batch", 1, [*range(20)]),
        ("epoch", 1, []),
        # Without a log_freq, what Lightning logs is logged.
        (None, 1, [*range(20)]),
        (None, 3, [2, 5, 8, 11, 14, 17]),
        (4, 1, [0, 4, 8, 10, 14, 18]),
        # Lightning asks in batches 2, 5, 8, and then 1, 4, 7.
        (4, 3, [2, 5, 8, 11, 14]),
        (100, 3, [2, 11]),
    ],
)
def test_log_freq_counts(pl: Any, log_freq: Any, every: int, expected: list[int]) -> None:
    """In batches; values of an epoch are always there."""
    logger = StepwellLogger(Own(log_freq=log_freq))
    trainer_of(pl, logger, log_every_n_steps=every).fit(model_of(pl), data(), data())
    run = finished_run(logger)
    assert steps(run, "loss") == expected
    assert steps(run, "mean") == steps(run, "val") == [BATCHES - 1, 2 * BATCHES - 1]


def test_batches_since_the_last_time() -> None:
    assert [number for number in range(20) if BatchRange(12, 9) % (number + 1) == 0] == [
        *range(6),
        8,
        9,
        10,
        11,
    ]
    assert BatchRange(12, 9) == 12
    assert BatchRange(12, 12) % 5 == 2


def test_members_of_a_collection_have_their_own_frequencies(pl: Any) -> None:
    """A value for two loggers is one row."""
    both = LoggersCollection([Own(log_freq=5), Another(log_freq="batch")])
    logger = StepwellLogger(both)
    trainer_of(pl, logger, max_epochs=1).fit(model_of(pl), data())
    run = finished_run(logger)
    heard = [one.audience for one in metrics(run) if one.name == "loss"]
    assert heard == [(1, 2) if i % 5 == 0 else (2,) for i in range(BATCHES)]


def test_members_without_a_log_freq_follow_lightning(pl: Any) -> None:
    """Those that have one keep it."""
    chosen, other = Own(log_freq=5), Another()
    logger = StepwellLogger(LoggersCollection([chosen, other]))
    assert (chosen.log_freq, other.log_freq) == (5, "batch")
    trainer_of(pl, logger, max_epochs=1, log_every_n_steps=2).fit(model_of(pl), data())
    run = finished_run(logger)
    heard = [(one.step, one.audience) for one in metrics(run) if one.name == "loss"]
    # Lightning logs batches 1, 3, 5, 7 and 9; among 0 and 1, and among 4 and 5, is a multiple of 5.
    assert heard == [(1, (1, 2)), (3, (2,)), (5, (1, 2)), (7, (2,)), (9, (2,))]


def test_ranks_that_do_not_log(pl: Any) -> None:
    """A logger for another worker gets nothing here."""
    logger = StepwellLogger(Own(log_freq="batch", log_on_workers=1))
    trainer_of(pl, logger, max_epochs=1).fit(model_of(pl), data())
    assert logger.experiment.is_initialized
    assert stepwell.active_run() is None
    logger.finish()


@pytest.mark.parametrize(
    ("error", "status"),
    [(ValueError("it went wrong"), "failed"), (KeyboardInterrupt(), "interrupted")],
)
def test_how_it_ended(pl: Any, error: BaseException, status: str) -> None:
    """A failed fit ends at once, with the checkpoints saved before."""
    logger = StepwellLogger(Own(log_freq="batch"), log_model=True)
    saves = pl.callbacks.ModelCheckpoint(every_n_train_steps=2)
    trainer = trainer_of(pl, logger, callbacks=[saves])
    logger.experiment.log(0.0, "before")
    run = stepwell.active_run()
    assert run is not None
    with pytest.raises((ValueError, SystemExit)):
        trainer.fit(model_of(pl, error), data())
    assert logger_lines(run)[-1]["attributes"]["status"] == status
    assert stepwell.open_run(run.path).status == status
    assert [one.name for one in items(run, "best_model")] == ["checkpoints/epoch=0-step=4"]


def test_a_context_of_the_users_own_is_left_to_them(pl: Any) -> None:
    inner = Own(log_freq="batch")
    with inner.start_logging():
        logger = StepwellLogger(inner)
        with pytest.raises(ValueError, match="wrong"):
            trainer_of(pl, logger).fit(model_of(pl, ValueError("wrong")), data())
        assert inner.is_initialized


@pytest.mark.parametrize("log_model", [True, "all"])
def test_checkpoints_of_all_callbacks(pl: Any, log_model: Any) -> None:
    """At the end those that were kept; or each one, before a better one takes its place."""
    logger = StepwellLogger(Own(), log_model=log_model)
    Best = pl.callbacks.ModelCheckpoint
    callbacks = [
        Best(monitor="val", save_top_k=1),
        Best(filename="again", dirpath="elsewhere", every_n_epochs=1, save_last=True),
    ]
    trainer_of(pl, logger, callbacks=callbacks).fit(model_of(pl), data(), data())
    run = finished_run(logger)
    found = [one for kind in ("model", "best_model") for one in items(run, kind)]
    best = Path(callbacks[0].best_model_path)
    names = [one.name for one in found]
    kept = {f"checkpoints/{best.stem}", "checkpoints/again", "checkpoints/last"}
    if log_model == "all":
        assert set(names) >= kept
        assert len(names) > len(kept)
    else:
        assert sorted(names) == sorted(kept)
    (top,) = [one for one in found if one.name == f"checkpoints/{best.stem}"]
    assert top.kind == "best_model"
    assert top.attributes["monitor"] == "val"
    assert top.attributes["score"] == pytest.approx(float(callbacks[0].best_model_score))
    assert top.file == f"checkpoints/{best.name}"
    assert top.size == best.stat().st_size


def test_two_checkpoints_of_the_same_name_are_told_apart(pl: Any) -> None:
    logger = StepwellLogger(Own(), log_model=True)
    Saves = pl.callbacks.ModelCheckpoint
    callbacks = [Saves("one", filename="best"), Saves("two", filename="best", monitor="val")]
    trainer = trainer_of(pl, logger, max_epochs=1, callbacks=callbacks)
    trainer.fit(model_of(pl), data(), data())
    run = finished_run(logger)
    names = [one.name for one in items(run, "best_model")]
    assert sorted(names) == ["checkpoints/best", "checkpoints/two/best"]


def test_it_goes_through_pickle_and_copy(pl: Any) -> None:
    """Without what belongs to this process."""
    logger = StepwellLogger(Own(log_freq=7), "all", prefix="a")
    logger.log_metrics({"loss": 1.0})
    for other in (pickle.loads(pickle.dumps(logger)), copy.deepcopy(logger)):
        assert isinstance(other, pl.loggers.Logger)
        assert type(other) is StepwellLogger
        assert (other.log_model, other.prefix, other.logger.log_freq) == ("all", "a", 7)
        assert not other.logger.is_initialized
    run = finished_run(logger)
    assert [one.name for one in metrics(run)] == ["a/loss"]


def test_hyperparameters_in_all_shapes(pl: Any) -> None:
    logger = StepwellLogger(Own())
    logger.log_hyperparams(argparse.Namespace(lr=0.1))
    logger.log_hyperparams({"optimizer": {"name": "sgd"}}, {"hp/loss": 2.0})
    logger.log_hyperparams({"seed": 1}, depth=2, metrics=3.0)
    run = finished_run(logger)
    found = {one.name: one.value for one in items(run, "param")}
    assert found == {"lr": 0.1, "optimizer.name": "sgd", "seed": 1, "depth": 2}
    given = {"lr": 0.1, "optimizer": {"name": "sgd"}, "seed": 1, "depth": 2}
    assert stepwell.open_run(run.path).config["hyperparameters"] == given
    assert [(one.name, one.step, one.value) for one in metrics(run)] == [
        ("hp/loss", 0, 2.0),
        ("hp_metric", 0, 3.0),
    ]


class Broken(Logger):
    """Fails in everything."""

    def create_logger_context(self, rank: int | None = None, **options: Any) -> Any:
        raise StepwellError("no context")

    def log(self, *args: Any, **kwargs: Any) -> None:
        raise OSError("no log")


def test_training_is_never_killed(pl: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the logger does."""
    monkeypatch.delenv("STEPWELL_STRICT")
    for broken in (Broken(), LoggersCollection([Broken()]), EmptyLogger()):
        logger = StepwellLogger(broken, log_model="all")
        trainer = trainer_of(pl, logger, max_epochs=1)
        trainer.fit(model_of(pl), data())
        assert trainer.global_step == BATCHES
        logger.finish()
        stepwell.finish()


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(StepwellError, match="must be a logger of"):
        StepwellLogger("mlflow")  # type: ignore[arg-type]
    with pytest.raises(StepwellError, match="True, False or"):
        StepwellLogger(Own(), "some")  # type: ignore[arg-type]


def test_through_fabric() -> None:
    """Lightning's Fabric accepts it too; there, batches are unknown."""
    fabric = pytest.importorskip("lightning.fabric")
    logger = StepwellLogger(Own())
    running = fabric.Fabric(accelerator="cpu", devices=1, loggers=logger)
    for step in range(3):
        running.log("loss", 1.0, step=step)
    run = finished_run(logger)
    assert steps(run, "loss") == [0, 1, 2]


LAUNCHED = """
import lightning.pytorch as pl
import torch
from stepwell.integrations.lightning import StepwellLogger
from stepwell.loggers import *

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def training_step(self, batch, batch_idx):
        self.log("rank", float(self.global_rank))
        return self.layer(batch).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

everywhere = {"log_freq": "batch", "log_on_workers": -1}
logger = LoggersCollection(
    [TensorBoardLogger(**everywhere), ConsoleLogger(), Prov4ML(), WandBLogger(offline_mode=True)]
)
trainer = pl.Trainer(
    logger=StepwellLogger(logger, log_model=True), accelerator="cpu", devices=DEVICES, max_epochs=1,
    strategy=STRATEGY, log_every_n_steps=1, enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Model(), torch.utils.data.DataLoader(torch.randn(8, 3), batch_size=1))
"""


@pytest.mark.parametrize(
    ("devices", "strategy"), [(1, "auto"), pytest.param(2, "ddp", marks=pytest.mark.full)]
)
def test_in_processes_that_lightning_launches(tmp_path: Path, devices: int, strategy: str) -> None:
    """Each rank has its own values in one run; the checkpoint is on every backend, from the first."""
    pytest.importorskip("tensorboard")
    pytest.importorskip("wandb")
    from tests.loggers.reading_back import Left

    code = LAUNCHED.replace("DEVICES", str(devices)).replace("STRATEGY", repr(strategy))
    program = tmp_path / "program.py"
    program.write_text(code)
    variables = {"STEPWELL_FINISH_TIMEOUT": "60", "HOME": str(tmp_path)}
    env = environment(STEPWELL_STRICT="1", WANDB_ERROR_REPORTING="false", **variables)
    run_script(program, cwd=tmp_path, env=env, check=True, timeout=240, modules=TRAINERS)
    (run,) = stepwell.list_runs(tmp_path / "runs")
    assert run.status == "finished"
    for rank in range(devices):
        curve = Left(tmp_path, rank).tensorboard_curve("rank")
        assert curve == [(step, float(rank)) for step in range(8 // devices)]
    file = f"epoch=0-step={8 // devices}.ckpt"
    left = Left(tmp_path)
    (ours,) = (tmp_path / "mllogs").glob("lightning_logs/*/checkpoints/*")
    assert ours.name == file
    kept = ours.read_bytes()
    assert (left.tensorboard_folder / "files" / "checkpoints" / file).read_bytes() == kept
    (console,) = (tmp_path / "mllogs" / "simple-logger").rglob(file)
    assert console.read_bytes() == kept
    models = [a["artifact"] for a in left.wandb_records if a["type"] == "artifact"]
    assert [one["type"] for one in models] == ["model"]
    assert "best" in models[0]["aliases"]
    assert any("checkpoints" in str(one) for one in left.provenance["entity"])
