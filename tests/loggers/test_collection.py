"""Several loggers as one: one record for all of them, and none disturbs another."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell import Run, StepwellError
from stepwell.loggers import EmptyLogger, Logger, LoggersCollection, MLFlowLogger
from stepwell.telemetry.deliveries import DeliveryProgress
from tests.exporters.programs import end
from tests.loggers.lines_backend import LinesBackend
from tests.loggers.logged import (
    Another,
    Own,
    items,
    logger_lines,
    metrics,
    process_folder,
    records,
)


def test_one_row_and_one_item_for_all(recorded: Run) -> None:
    """Each of them gets it."""
    both = LoggersCollection([Own(), Another()]).create_logger_context()
    both.log(1.0, "loss")
    both.log("words", "note", kind="text")
    both.save_hyperparameters({"lr": 0.1})
    recorded.finish()
    assert [(m.value, m.audience) for m in metrics(recorded)] == [(1.0, (1, 2))]
    assert [(i.kind, i.audience) for i in items(recorded)] == [("text", (1, 2)), ("param", (1, 2))]
    for number in (1, 2):
        assert len(records(recorded, number)) == 3
    assert stepwell.open_run(recorded.path).metrics().collect().height == 1


AUDIENCES: list[tuple[list[Any], dict[int | None, tuple[int, ...]]]] = [
    # log_freq of the members → who hears of a batch
    (["batch", "batch"], {None: (1, 2), 0: (1, 2), 1: (1, 2), 7: (1, 2)}),
    (["epoch", "epoch"], {None: (1, 2), 0: (), 1: (), 7: ()}),
    (["epoch", "batch"], {None: (1, 2), 0: (2,), 1: (2,), 7: (2,)}),
    ([2, 3], {None: (1, 2), 0: (1, 2), 1: (), 2: (1,), 3: (2,), 6: (1, 2)}),
    (["batch", 2, "epoch"], {None: (1, 2, 3), 0: (1, 2), 1: (1,), 2: (1, 2)}),
]


@pytest.mark.parametrize(("freqs", "heard"), AUDIENCES)
def test_each_member_has_its_own_frequency(
    recorded: Run, freqs: list[Any], heard: dict[int | None, tuple[int, ...]]
) -> None:
    """A call that counts for none leaves nothing."""
    loggers = LoggersCollection([Own(log_freq=freq) for freq in freqs]).create_logger_context()
    for batch_idx in heard:
        loggers.log(1.0, f"metric {batch_idx}", batch_idx=batch_idx)
        loggers.log("x", f"text {batch_idx}", kind="text", batch_idx=batch_idx)
        assert loggers.should_log(batch_idx) is bool(heard[batch_idx])
    recorded.finish()
    expected = {batch: numbers for batch, numbers in heard.items() if numbers}
    assert {m.name: m.audience for m in metrics(recorded)} == {
        f"metric {batch}": numbers for batch, numbers in expected.items()
    }
    assert {i.name: i.audience for i in items(recorded)} == {
        f"text {batch}": numbers for batch, numbers in expected.items()
    }


@pytest.mark.parametrize(
    ("workers", "heard"), [([0, 1], (2,)), ([[0, 1], -1], (1, 2)), ([0, 0], ())]
)
def test_each_member_has_its_own_workers(
    recorded: Run, workers: list[Any], heard: tuple[int, ...]
) -> None:
    """On rank 1, only those that log there are registered there."""
    loggers = LoggersCollection(
        [Own(log_on_workers=workers[0]), Another(log_on_workers=workers[1])]
    ).create_logger_context(rank=1)
    loggers.log(1.0, "loss")
    recorded.finish()
    assert len(metrics(recorded)) == bool(heard)
    names = {1: "own", 2: "another"}
    lines = logger_lines(recorded) if heard else []
    begun = [line["name"] for line in lines if "to" in line["attributes"]]
    assert begun == [names[number] for number in heard]


def test_members_by_name(recorded: Run) -> None:
    """Two of a type have a number, or the names that they are given; one can be logged to alone."""
    loggers = LoggersCollection([Own(), Another(), Own()])
    assert list(loggers.members) == ["own", "another", "own-2"]
    assert len(loggers) == 3
    assert [*loggers] == loggers.loggers
    named = LoggersCollection({"here": Own(log_freq="batch"), "there": Own()})
    named.create_logger_context()
    named["there"].log(1.0, "loss")
    named.log(2.0, "loss")
    recorded.finish()
    assert [(m.value, m.audience) for m in metrics(recorded)] == [(1.0, (2,)), (2.0, (1, 2))]
    with pytest.raises(
        StepwellError, match="no logger 'mlflow' in the collection; it has 'here', 'there'"
    ):
        named["mlflow"]


def test_collections_inside_of_a_collection(recorded: Run) -> None:
    """Are taken apart."""
    inner = LoggersCollection([Own(), Another()])
    outer = LoggersCollection([inner, Own()])
    assert list(outer.members) == ["own", "another", "own-2"]
    outer.create_logger_context().log(1.0, "loss")
    recorded.finish()
    assert [m.audience for m in metrics(recorded)] == [(1, 2, 3)]


ONE = Own()


@pytest.mark.parametrize(
    ("loggers", "said"),
    [
        (ONE, "must be a list of loggers"),
        (None, "must be a list of loggers"),
        ("mlflow", "must be a list of loggers"),
        (["mlflow"], "must be loggers, got 'mlflow'"),
        ([ONE, ONE], "in the collection twice"),
        ({"a": 5}, "must be loggers, got 5"),
    ],
)
def test_what_no_collection_can_be_made_of(loggers: Any, said: str) -> None:
    """Is said at once."""
    with pytest.raises(StepwellError, match=said):
        LoggersCollection(loggers)


def test_an_empty_collection_is_fine(recorded: Run) -> None:
    """As when all backends were switched off in a configuration."""
    with LoggersCollection([]).start_logging() as logger:
        logger.log(1.0, "loss")
        logger.save_hyperparameters({"a": 1})
        assert logger.flush()
    recorded.finish()
    assert records(recorded) == []


def test_the_run_is_finished_once_all_members_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them has said how it ended before."""
    monkeypatch.setenv("STEPWELL_DIR", str(tmp_path))
    loggers = LoggersCollection([Own(), Another()])
    runs = []

    def train() -> None:
        with loggers.start_logging():
            runs.append(stepwell.active_run())
            loggers.log(1.0, "loss")
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        train()
    (run,) = runs
    assert run is not None
    assert run.status == "failed"
    assert stepwell.active_run() is None
    ends = [line["attributes"] for line in logger_lines(run) if "status" in line["attributes"]]
    assert ends == [{"number": 1, "status": "failed"}, {"number": 2, "status": "failed"}]
    assert not any(member.is_initialized for member in loggers)


def test_a_member_may_leave(recorded: Run) -> None:
    """The others continue without it."""
    loggers = LoggersCollection([Own(), Another()]).create_logger_context()
    loggers["own"].destroy_logger_context()
    loggers.log(1.0, "loss")
    loggers.destroy_logger_context()
    recorded.finish()
    assert [m.audience for m in metrics(recorded)] == [(2,)]


def test_a_member_that_is_used_already_is_taken_as_it_is(recorded: Run) -> None:
    """It has its context."""
    own = Own().create_logger_context()
    loggers = LoggersCollection([own, Another()]).create_logger_context()
    loggers.log(1.0, "loss")
    recorded.finish()
    assert [m.audience for m in metrics(recorded)] == [(1, 2)]


class MLFlowLines(MLFlowLogger):
    """MLflow's options, with a backend that starts at once."""

    backend_class = f"{LinesBackend.__module__}.{LinesBackend.__name__}"

    def backend_options(self) -> dict[str, Any]:
        return {**super().backend_options(), "path": str(self.savedir / "lines")}


def test_options_go_to_those_that_take_them(recorded: Run, tmp_path: Path) -> None:
    """If no member accepts one, the error lists the arguments that they accept."""
    with pytest.raises(StepwellError, match=r"no logger .* has an argument 'run_id'"):
        LoggersCollection([Own()]).create_logger_context(run_id="x")
    loggers = LoggersCollection([Own(), MLFlowLines(tmp_path, run_id="given")])
    loggers.create_logger_context(run_id="instead")
    (line,) = [line for line in logger_lines(recorded) if line["name"] == "mlflow"]
    assert line["attributes"]["options"]["run_id"] == "instead"
    (exporter,) = recorded.exporters
    end(exporter.process_id)


class Failing(Logger):
    """Somebody's own, which fails at everything."""

    to = "failing"

    def create_logger_context(self, rank: int | None = None, **options: Any) -> Failing:
        super().create_logger_context(rank, **options)
        return self

    def log(self, *args: Any, **kwargs: Any) -> None:
        raise ConnectionError("no route to host")

    def save_hyperparameters(self, params: Any) -> None:
        raise ConnectionError("no route to host")

    def destroy_logger_context(self, *args: Any, **kwargs: Any) -> None:
        raise ConnectionError("no route to host")


class Unable(Failing):
    """Not even created."""

    def create_logger_context(self, rank: int | None = None, **options: Any) -> Unable:
        raise ConnectionError("no route to host")


@pytest.mark.parametrize("bad", [Failing, Unable])
@pytest.mark.parametrize("first", [True, False])
def test_a_member_that_fails_disturbs_nobody(
    recorded: Run,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    bad: type[Logger],
    first: bool,
) -> None:
    """Neither training nor the others fail, whatever its position; the message names it."""
    from stepwell._core import errors

    for key in [key for key in errors.counts if key.startswith("member failing")]:
        del errors.counts[key]
    monkeypatch.delenv("STEPWELL_STRICT")
    members = [bad(), Own()] if first else [Own(), bad()]
    with LoggersCollection(members).start_logging() as loggers:
        loggers.log(1.0, "loss")
        loggers.log([2.0, 3.0], ["a", "b"])
        loggers.log("x", "note", kind="text")
        loggers.save_hyperparameters({"a": 1})
        own = loggers["own"]
        assert own._context is not None
        number = own._context.number
    assert "logger failing failed in" in caplog.text
    assert "no route to host" in caplog.text
    recorded.finish()
    assert [m.value for m in metrics(recorded, number)] == [1.0, 2.0, 3.0]
    assert {i.name for i in items(recorded)} == {"note", "a"}


def test_a_wrong_kind_is_an_error_before_anything_is_logged(recorded: Run) -> None:
    """For none of them."""
    heard: list[Any] = []

    class Listening(Own):
        def log(self, *args: Any, **kwargs: Any) -> None:
            heard.append(args)

    loggers = LoggersCollection([Listening(), Another()]).create_logger_context()
    with pytest.raises(StepwellError, match="kind must be one of"):
        loggers.log(1.0, "loss", kind="metrics")
    loggers.log(1.0, "loss", step=3, batch_idx=4)
    assert heard == [(1.0, "loss", "metric", 3, 4)]


def test_an_empty_member_costs_nothing(recorded: Run) -> None:
    """It is not even asked."""
    loggers = LoggersCollection([EmptyLogger(), Own(log_freq="batch")]).create_logger_context()
    assert loggers._fast_targets is not None
    loggers.log(1.0, "loss")
    loggers.destroy_logger_context()
    recorded.finish()
    assert len(metrics(recorded)) == 1


class _Slow:
    """A delivery that ends when all of them have been asked."""

    def __init__(self, all_asked: threading.Barrier, closing: list[_Slow]) -> None:
        self.all_asked = all_asked
        self.closing = closing
        self.reasons: list[str] = []

    @property
    def delivery(self) -> _Slow:
        return self

    def state(self) -> dict[str, Any]:
        return {"run_id": "r"}

    def hurry(self) -> None:
        self.all_asked.wait(60)

    def rest(self) -> None: ...

    def drain(self, timeout: float) -> bool:
        self.all_asked.wait(60)
        return False

    def ask(self, timeout: float, closing: bool = False) -> None:
        assert closing
        self.closing.append(self)

    def look(self) -> DeliveryProgress:
        return DeliveryProgress(len(self.closing) == 3, True)

    def leave(self, reason: str) -> None:
        self.reasons.append(reason)


@pytest.mark.parametrize("ends", ["logger", "run"])
def test_what_is_under_way_is_completed_before_the_end(recorded: Run, ends: str) -> None:
    """Documents that were asked for are in the run, and no model is watched any more."""
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loggers = LoggersCollection([Own(), Another()]).create_logger_context()
    loggers.log(model, "net", kind="watch", every=1)
    loggers.log(None, None, kind="prov_documents")
    if ends == "logger":
        loggers.destroy_logger_context()
    else:
        recorded.finish()
    from torch.optim.optimizer import _global_optimizer_pre_hooks

    assert not _global_optimizer_pre_hooks
    optimizer.step()
    recorded.finish()
    text = (process_folder(recorded) / "events.jsonl").read_text()
    assert text.rindex('"prov_documents"') < text.index('"status"')
    assert {i.kind for i in items(recorded)} == {"watch", "prov_documents"}
    assert {i.audience for i in items(recorded)} == {(1, 2)}
    lines = [line["attributes"].get("status") for line in logger_lines(recorded)]
    assert lines == [None, None, "finished", "finished"]
    assert len(metrics(recorded)) == 2


def test_one_that_hangs_takes_no_time_from_the_others(recorded: Run) -> None:
    """All of them are asked at the same time, so together they take as long as one may."""
    loggers = LoggersCollection([Own(), Another(), Own()]).create_logger_context()
    all_asked = threading.Barrier(3)
    closing: list[_Slow] = []
    deliveries = [_Slow(all_asked, closing) for _ in loggers]
    for member, delivery in zip(loggers, deliveries, strict=True):
        assert member._context is not None
        member._context.delivery = delivery
    assert [run.id for run in loggers.backend_run().values()] == ["r", "r", "r"]
    assert not loggers.flush(timeout=0.5)
    loggers.destroy_logger_context(timeout=0.5)
    assert [delivery.reasons for delivery in deliveries] == [[""], [""], [""]]
