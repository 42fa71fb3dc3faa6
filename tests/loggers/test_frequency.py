"""Which calls count: by batch, by worker; and calls without a batch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

import stepwell
from stepwell import Run, StepwellError
from stepwell._core import errors
from stepwell.loggers import Logger, LoggersCollection, checks
from stepwell.training import application, training_iteration, training_loop
from tests.loggers.logged import Another, Own, metrics

# Batches 0 to 20 of which these are logged; None stands for a call without batch_idx.
FREQUENCIES: list[tuple[Any, list[int | None]]] = [
    ("batch", [*range(21), None]),
    (1, [*range(21), None]),
    (10, [0, 10, 20, None]),
    (7, [0, 7, 14, None]),
    (100, [0, None]),
    ("epoch", [None]),
]


@pytest.mark.parametrize(("log_freq", "logged"), FREQUENCIES)
def test_log_freq(recorded: Run, log_freq: Any, logged: list[int | None]) -> None:
    """As the documentation says: the 1st, the 11th and the 21st batch for 10."""
    logger = Own(log_freq=log_freq).create_logger_context()
    for batch_idx in [*range(21), None]:
        assert logger.should_log(batch_idx) is (batch_idx in logged)
        logger.log(-1.0 if batch_idx is None else float(batch_idx), "loss", batch_idx=batch_idx)
        logger.log(f"{batch_idx}", "note", kind="text", batch_idx=batch_idx)
    recorded.finish()
    assert [m.value for m in metrics(recorded)] == [-1.0 if i is None else i for i in logged]


@pytest.mark.parametrize(("log_freq", "logged"), FREQUENCIES)
def test_a_call_that_does_not_count_leaves_nothing(
    recorded: Run, log_freq: Any, logged: list[int | None]
) -> None:
    """Neither a row nor a line nor a file."""
    from tests.loggers.logged import items

    logger = Own(log_freq=log_freq).create_logger_context()
    for batch_idx in range(21):
        logger.log(b"%d" % batch_idx, "file", kind="artifact", batch_idx=batch_idx)
    recorded.finish()
    expected = [i for i in logged if i is not None]
    assert len(items(recorded)) == len(expected)
    folder = recorded.path / "artifacts"
    assert len(list(folder.iterdir()) if folder.exists() else []) == len(expected)
    assert stepwell.open_run(recorded.path).events().collect().height == 0


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "EPOCH", "every", "", True, [10], "10"])
def test_a_wrong_log_freq_is_refused_at_once(wrong: Any) -> None:
    """In the constructor, when it is set, and with what to write instead."""
    with pytest.raises(StepwellError, match="must be 'epoch', 'batch' or a positive integer"):
        Own(log_freq=wrong)
    logger = Own()
    with pytest.raises(StepwellError, match="log_freq must be"):
        logger.log_freq = wrong
    assert logger.log_freq == "epoch"


def test_log_freq_may_be_changed(recorded: Run) -> None:
    """From then on the new one counts, in a collection too."""
    logger = Own(log_freq=10)
    both = LoggersCollection([logger, Another(log_freq="epoch")]).create_logger_context()
    both.log(1.0, "loss", batch_idx=1)
    logger.log_freq = "batch"
    both.log(2.0, "loss", batch_idx=1)
    logger.log(3.0, "loss", batch_idx=1)
    recorded.finish()
    assert [m.value for m in metrics(recorded)] == [2.0, 3.0]


def test_numbers_of_numpy_count_as_numbers() -> None:
    """They come from configurations."""
    numpy = pytest.importorskip("numpy")
    assert checks.LOG_FREQ.check("log_freq", numpy.int64(5)) == 5
    assert checks.WORKERS.check("workers", numpy.array([0, 2])) == {0, 2}


WORKERS: list[tuple[Any, list[int]]] = [
    (0, [0]),
    (2, [2]),
    (-1, [0, 1, 2, 3]),
    ([0, 2], [0, 2]),
    ((1, 3), [1, 3]),
    ({3}, [3]),
    (frozenset({0}), [0]),
    (range(2), [0, 1]),
    ([-1], [0, 1, 2, 3]),
]


@pytest.mark.parametrize(("log_on_workers", "ranks"), WORKERS)
def test_log_on_workers(recorded: Run, log_on_workers: Any, ranks: list[int]) -> None:
    """Those log and the others do not, whatever the ranks came in."""
    for rank in range(4):
        logger = Own(log_freq="batch", log_on_workers=log_on_workers)
        with logger.start_logging(rank=rank):
            assert logger.should_log() is (rank in ranks)
            logger.log(float(rank), "rank")
            logger.save_hyperparameters({"rank": rank})
    recorded.finish()
    assert [m.value for m in metrics(recorded)] == ranks


@pytest.mark.parametrize("wrong", [None, "0", -2, 1.0, True, [], [0, "1"], [0, -2], {"a"}, [None]])
def test_wrong_workers_are_refused_at_once(wrong: Any) -> None:
    """Instead of never logging, without a word."""
    with pytest.raises(StepwellError, match="log_on_workers must be a rank"):
        Own(log_on_workers=wrong)


@pytest.mark.parametrize("wrong", [-1, "0", 1.5, True])
def test_a_wrong_rank_is_refused(recorded: Run, wrong: Any) -> None:
    """It says what a rank is."""
    with pytest.raises(StepwellError, match="rank must be the global rank of this worker"):
        Own().create_logger_context(rank=wrong)


def test_the_rank_is_known_from_the_launcher(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """Where none is given."""
    monkeypatch.setenv("STEPWELL_DIR", str(tmp_path))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    logger = Own(log_on_workers=1)
    with logger.start_logging():
        assert logger.worker_rank == 1
        assert logger.should_log()


# The batch that nobody told


def test_inside_a_training_iteration_the_batch_is_known(recorded: Run) -> None:
    """It is the step of the iteration; outside of one, a call counts as ever."""
    rare, epochs = Own(log_freq=4), Another(log_freq="epoch")
    both = LoggersCollection([rare, epochs]).create_logger_context()
    with application(), training_loop(train_iterations_start=0):
        for i in range(10):
            with training_iteration():
                assert rare.should_log() is (i % 4 == 0)
                assert not epochs.should_log()
                both.log(float(i), "loss")
            both.log(100.0 + i, "outside")
    recorded.finish()
    found = metrics(recorded)
    assert [m.value for m in found if m.name == "loss"] == [0, 4, 8]
    assert {m.audience for m in found if m.name == "loss"} == {(1,)}
    assert [m.value for m in found if m.name == "outside"] == [100.0 + i for i in range(10)]
    assert {m.audience for m in found if m.name == "outside"} == {(1, 2)}


def test_the_batch_is_that_of_the_same_thread(recorded: Run) -> None:
    """Values of another thread are in no iteration."""
    import threading

    logger = Own(log_freq="epoch").create_logger_context()
    with application(), training_loop(train_iterations_start=0), training_iteration():
        thread = threading.Thread(target=logger.log, args=(1.0, "elsewhere"))
        thread.start()
        thread.join()
        logger.log(2.0, "here")
    recorded.finish()
    assert [m.name for m in metrics(recorded)] == ["elsewhere"]


def _warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if "batch_idx" in r.getMessage()]


@pytest.fixture
def _anew(caplog: pytest.LogCaptureFixture) -> None:
    """As in a process that has not said anything yet."""
    errors.counts.pop("forgotten batch_idx", None)
    caplog.set_level(logging.WARNING, "stepwell")


@pytest.mark.usefixtures("_anew")
@pytest.mark.parametrize("log_freq", ["epoch", 10])
def test_a_forgotten_batch_is_said_once(
    recorded: Run, caplog: pytest.LogCaptureFixture, log_freq: Any
) -> None:
    """With the metric, and what to write; and every value is logged, as documented."""
    logger = Own(log_freq=log_freq).create_logger_context()
    for _ in range(100):
        logger.log(1.0, "loss")
    (said,) = _warned(caplog)
    assert "'loss' was logged 30 times" in said
    assert f"log_freq={log_freq!r}" in said
    assert "log(…, batch_idx=batch_idx)" in said
    recorded.finish()
    assert len(metrics(recorded)) == 100


@pytest.mark.usefixtures("_anew")
def test_a_forgotten_batch_beside_others_that_are_told(
    recorded: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """The epochs are known then, so it need not be fast."""
    logger = Own(log_freq="epoch").create_logger_context()
    for batch_idx in range(40):
        logger.log(1.0, "told", batch_idx=batch_idx)
        logger.log(1.0, "forgotten")
    (said,) = _warned(caplog)
    assert "'forgotten' was logged 30 times in one epoch" in said


def _nothing(logger: Logger) -> None:
    """As in the document: one value per epoch, with batches in between."""
    for _ in range(100):
        for batch_idx in range(3):
            logger.log(1.0, "batch_loss", batch_idx=batch_idx)
        logger.log(1.0, "epoch_loss")


def _epochs(logger: Logger) -> None:
    """The run knows its epochs."""
    for epoch in range(100):
        stepwell.set_step(None, epoch)
        logger.log(1.0, "epoch_loss")


def _many_names(logger: Logger) -> None:
    """A summary of many different values."""
    for i in range(100):
        logger.log(1.0, f"summary/{i}")


def _iterations(logger: Logger) -> None:
    """The batch is known by itself."""
    with application(), training_loop(train_iterations_start=0):
        for _ in range(100):
            with training_iteration():
                logger.log(1.0, "loss")


@pytest.mark.usefixtures("_anew")
@pytest.mark.parametrize("loop", [_nothing, _epochs, _many_names, _iterations])
@pytest.mark.parametrize("log_freq", ["epoch", 10])
def test_what_is_right_is_not_complained_about(
    recorded: Run, caplog: pytest.LogCaptureFixture, loop: Any, log_freq: Any
) -> None:
    """Nothing is said."""
    loop(Own(log_freq=log_freq).create_logger_context())
    assert _warned(caplog) == []


@pytest.mark.usefixtures("_anew")
def test_with_every_batch_there_is_nothing_to_forget(
    recorded: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """log_freq="batch" means all calls."""
    logger = Own(log_freq="batch").create_logger_context()
    for _ in range(100):
        logger.log(1.0, "loss")
    assert _warned(caplog) == []


@pytest.mark.parametrize("wrong", ["3", object(), [1]])
def test_a_batch_that_is_no_number_does_not_stop_training(
    recorded: Run, monkeypatch: pytest.MonkeyPatch, wrong: Any
) -> None:
    """It is logged as if it had no batch_idx."""
    monkeypatch.delenv("STEPWELL_STRICT")
    logger = Own(log_freq=10).create_logger_context()
    logger.log(1.0, "loss", batch_idx=wrong)
    recorded.finish()
    assert [m.value for m in metrics(recorded)] == [1.0]


# Metrics of which no value is logged


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What was said about metrics that were left out, as in a process that has said nothing yet."""
    for key in [key for key in errors.counts if key.startswith("left out")]:
        del errors.counts[key]
    caplog.set_level(logging.WARNING, "stepwell")
    return lambda: [said for said in _warned(caplog) if "was left out" in said]


def _train(logger: Logger, first: int = 0) -> None:
    for batch_idx in range(first, 5):
        logger.log(1.0, "train_loss", batch_idx=batch_idx)
        logger.log({"top1": 0.5, "top5": 0.9}, "accuracy", batch_idx=batch_idx)
    logger.log(2.0, "val_loss")


def test_a_metric_that_is_always_left_out_is_said_at_the_end(
    recorded: Run, warnings: Callable[[], list[str]]
) -> None:
    """Once, with its name, the setting, and what to write."""
    for _ in range(2):
        with Own().start_logging() as logger:
            _train(logger)
            _train(logger)
    (said,) = warnings()
    assert "Own: every value of 'accuracy/top1', 'accuracy/top5', 'train_loss' was left out" in said
    assert "because log_freq='epoch' and batch_idx was given" in said
    assert "set log_freq='batch'" in said
    assert "val_loss" not in said


def test_it_is_said_too_where_the_run_ends_first(
    recorded: Run, warnings: Callable[[], list[str]]
) -> None:
    """The usual end of a script."""
    Own(log_freq="epoch").create_logger_context().log(1.0, "train_loss", batch_idx=0)
    recorded.finish()
    (said,) = warnings()
    assert "'train_loss'" in said


def test_batches_that_are_no_multiple(recorded: Run, warnings: Callable[[], list[str]]) -> None:
    """Of a number of batches the first one counts; who begins with 1 may miss them all."""
    with Own(log_freq=10).start_logging() as logger:
        _train(logger)
    assert warnings() == []
    with Own(log_freq=10).start_logging() as logger:
        _train(logger, first=1)
    (said,) = warnings()
    assert "log_freq=10 and batch_idx was given, never a multiple of 10" in said


def test_nothing_is_said_where_some_value_was_logged(
    recorded: Run, warnings: Callable[[], list[str]]
) -> None:
    """Before or after log_freq was changed, outside of the batches, or in all of them."""
    with Own().start_logging() as logger:
        _train(logger)
        logger.log_freq = "batch"
        _train(logger)
    with Own(log_freq="batch").start_logging() as logger:
        _train(logger)
        logger.log_freq = "epoch"
        _train(logger)
    with Own().start_logging() as logger:
        logger.log(1.0, "train_loss", batch_idx=3)
        logger.log(1.0, "train_loss")
    assert warnings() == []


def test_members_that_miss_what_others_have(
    recorded: Run, warnings: Callable[[], list[str]]
) -> None:
    """It is said of a member with the default; not of one whose log_freq was chosen so."""
    with LoggersCollection(
        [Own(log_freq="epoch"), Another(log_freq="batch")]
    ).start_logging() as both:
        _train(both)
    assert warnings() == []
    with LoggersCollection([Own(), Another(log_freq="batch")]).start_logging() as both:
        _train(both)
    (said,) = warnings()
    assert said.startswith("Own: every value of")


def test_members_that_all_miss_it(recorded: Run, warnings: Callable[[], list[str]]) -> None:
    """One sentence for all of them."""
    with LoggersCollection([Own(), Another(log_freq="epoch")]).start_logging() as both:
        _train(both)
    (said,) = warnings()
    assert said.startswith("Own, Another: every value of")


def test_many_names_are_counted(recorded: Run, warnings: Callable[[], list[str]]) -> None:
    with Own().start_logging() as logger:
        for number in range(9):
            logger.log(1.0, f"metric-{number}", batch_idx=0)
    (said,) = warnings()
    assert "'metric-4' and 4 more metrics was left out" in said
