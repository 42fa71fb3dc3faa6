"""Loggers that users wrote for itwinai: alone, among ours, and in a Lightning Trainer."""

from __future__ import annotations

import argparse
import pickle
from pathlib import Path
from typing import Any

import pytest

from stepwell import Run, StepwellError
from stepwell.compat.itwinai import (
    EmptyLogger,
    Logger,
    LoggersCollection,
    LogMixin,
    MLFlowLogger,
    TensorBoardLogger,
)
from tests.loggers.logged import Own, items, metrics


class Notebook(Logger):
    """Keeps what it is given, and its own state, as the loggers of the original do."""

    supported_kinds = ("metric", "text")

    def __init__(self, log_freq: Any = "epoch", log_on_workers: Any = 0) -> None:
        super().__init__(savedir="notes", log_freq=log_freq, log_on_workers=log_on_workers)
        self.lines: list[tuple[Any, ...]] = []

    def create_logger_context(self, rank: int = 0, **kwargs: Any) -> None:  # type: ignore[override]
        if self.is_initialized:
            raise AssertionError("created twice")
        self.worker_rank = rank
        self.is_initialized = True
        self.lines.append(("created", rank))

    def destroy_logger_context(self) -> None:  # type: ignore[override]
        self.is_initialized = False
        self.lines.append(("destroyed",))

    def save_hyperparameters(self, params: dict[str, Any]) -> None:
        self.lines += sorted(params.items())

    def log(
        self,
        item: Any,
        identifier: Any,
        kind: str = "metric",
        step: int | None = None,
        batch_idx: int | None = None,
        **kwargs: Any,
    ) -> None:
        if self.should_log(batch_idx=batch_idx):
            self.lines.append((identifier, item, kind, step))


class Forgetful(Notebook):
    """One that never says that it is initialized."""

    def create_logger_context(self, rank: int = 0, **kwargs: Any) -> None:  # type: ignore[override]
        self.lines.append(("created", rank))

    def destroy_logger_context(self) -> None:  # type: ignore[override]
        self.lines.append(("destroyed",))


def use(logger: Logger) -> None:
    for batch_idx in range(4):
        logger.log(0.5, "loss", batch_idx=batch_idx, step=batch_idx)
    logger.log("done", "remark", kind="text")
    logger.save_hyperparameters({"lr": 0.1})


USED = [
    ("loss", 0.5, "metric", 0),
    ("loss", 0.5, "metric", 2),
    ("remark", "done", "text", None),
    ("lr", 0.1),
]


@pytest.mark.parametrize("kind", [Notebook, Forgetful])
def test_alone(kind: type[Notebook]) -> None:
    logger = kind(log_freq=2)
    assert not logger.is_initialized
    with logger.start_logging():
        assert logger.is_initialized
        use(logger)
    assert not logger.is_initialized
    assert logger.lines == [("created", 0), *USED, ("destroyed",)]


@pytest.mark.parametrize("kind", [Notebook, Forgetful])
def test_it_ends_also_when_something_fails(kind: type[Notebook]) -> None:
    logger = kind()
    with pytest.raises(KeyError), logger.start_logging(rank=3):
        raise KeyError
    assert logger.lines == [("created", 3), ("destroyed",)]


@pytest.mark.parametrize("kind", [Notebook, Forgetful])
def test_among_ours(recorded: Run, kind: type[Notebook]) -> None:
    """Each has what it asked for."""
    theirs, ours = kind(log_freq=2), Own(log_freq="batch")
    with LoggersCollection([theirs, ours]).start_logging() as loggers:
        use(loggers)
    recorded.finish()
    assert theirs.lines == [("created", 0), *USED, ("destroyed",)]
    assert len(metrics(recorded)) == 4
    assert [one.name for one in items(recorded)] == ["remark", "lr"]


def test_hyperparameters_reach_it_as_a_dict(recorded: Run) -> None:
    theirs = Notebook()
    with LoggersCollection([theirs, Own()]).start_logging() as loggers:
        loggers.save_hyperparameters(argparse.Namespace(lr=0.1, depth=2))
    assert theirs.lines[1:-1] == [("depth", 2), ("lr", 0.1)]


@pytest.mark.full
@pytest.mark.parametrize("kind", [Notebook, Forgetful])
def test_in_lightning(kind: type[Notebook]) -> None:
    """Created once, whatever it says of itself; Lightning has hyperparameters as a Namespace or the like."""
    pytest.importorskip("lightning")
    from stepwell.compat.itwinai import ItwinaiLogger

    theirs = kind()
    logger = ItwinaiLogger(itwinai_logger=theirs)
    logger.log_hyperparams(argparse.Namespace(lr=0.1, depth=2))
    logger.log_metrics({"loss": 0.5}, step=3)
    logger.finish()
    assert theirs.lines == [
        ("created", 0),
        ("depth", 2),
        ("lr", 0.1),
        ("loss", 0.5, "metric", 3),
        ("destroyed",),
    ]


def test_it_goes_to_another_process_without_its_context() -> None:
    """As ours do: it is created there."""
    logger = Notebook()
    with logger.start_logging():
        other = pickle.loads(pickle.dumps(logger))
    assert not other.is_initialized
    with other.start_logging(rank=1):
        assert other.lines == [("created", 0), ("created", 1)]


def test_workers_are_set_later() -> None:
    """Some set it after the constructor."""
    logger = Notebook()
    logger.create_logger_context(rank=1)
    logger.log(1.0, "first")
    logger.log_on_workers = [0, 1]
    logger.log(1.0, "second")
    assert [line[0] for line in logger.lines] == ["created", "second"]
    with pytest.raises(ValueError, match=r"log_on_workers must be .*, got 'all'"):
        logger.log_on_workers = "all"


def test_an_empty_logger_is_initialized_and_not() -> None:
    logger = EmptyLogger()
    with logger.start_logging():
        assert logger.is_initialized
    assert not logger.is_initialized


def test_whatever_logs_is_a_log_mixin() -> None:
    """Loggers, trainers and a user's own component."""

    class Component(LogMixin):
        def log(self, item: Any, identifier: Any, *args: Any, **kwargs: Any) -> None:
            print(identifier, item)

    class Unfinished(LogMixin):
        pass

    assert isinstance(Own(), LogMixin)
    assert isinstance(Component(), LogMixin)
    assert not isinstance(argparse.Namespace(), LogMixin)
    with pytest.raises(TypeError, match="abstract"):
        Unfinished()  # type: ignore[abstract]


def test_errors_are_those_that_programs_catch(tmp_path: Path) -> None:
    """A wrong value is a ValueError, a call in the wrong state a RuntimeError."""
    with pytest.raises(ValueError, match=r"log_freq must be .*, got 0"):
        MLFlowLogger(savedir=tmp_path, log_freq=0)
    with pytest.raises(ValueError, match=r"framework must be .*, got 'jax'"):
        TensorBoardLogger(savedir=tmp_path, framework="jax")  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="needs a context"):
        Own().log(1.0, "loss")
    with pytest.raises(RuntimeError, match="needs a context"):
        Own().save_hyperparameters({})
    assert issubclass(StepwellError, ValueError)
    assert issubclass(StepwellError, RuntimeError)
