"""Exceptions in standard spans: recorded once, where they were raised, and passed on."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from stepwell import training
from stepwell.telemetry import timed_span
from stepwell.testing import FakeClock
from stepwell.training import (
    application,
    checkpoint_save,
    data_loading,
    model_forward,
    on_data_loading_start,
    on_train_start,
    on_training_single_iteration_start,
    training_iteration,
    training_loop,
)
from tests.training.misusing import Recorded, record
from tests.training.test_misuse_threads import BLOCKS


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return record(tmp_path_factory.mktemp("fresh"))


def _raising(error: BaseException, *blocks: Any) -> Callable[[FakeClock], None]:
    """A case in which this is raised inside these blocks, and leaves them unchanged."""

    def case(clock: FakeClock) -> None:
        with pytest.raises(type(error)) as caught:
            _enter(list(blocks), error)
        assert caught.value is error

    return case


def _enter(blocks: list[Any], error: BaseException) -> None:
    if not blocks:
        raise error
    with blocks[0]() as span:
        try:
            _enter(blocks[1:], error)
        finally:
            assert span.active
    assert not span.active


@pytest.mark.sampled(14)
@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_exception_in_every_span(name: str, kind: Any, tmp_path: Path, fresh: Recorded) -> None:
    """The span has the error and ends as one; so do those around it, without an error of their own."""
    loops = {f"{part}_single_iteration": f"{part}_loop" for part in ("training", "validation")}
    around = [BLOCKS[loops[name]]] if name in loops else []
    if name != "application":
        around.insert(0, application)
    blocks = [lambda: timed_span("around"), *around, BLOCKS[name]]
    found = record(tmp_path, _raising(kind("why"), *blocks))
    assert set(found.spans["status"]) == {"error"}
    ((span, about),) = [(span, about) for event, span, about in found.events if event == "error"]
    assert span == name
    assert (about["exception_type"], about["exception_message"]) == (kind.__name__, "why")
    assert found.after == fresh.after


@pytest.mark.parametrize(
    "error", [GeneratorExit(), StopIteration(), SystemExit(), SystemExit(0)], ids=repr
)
def test_how_python_ends_things_is_no_error(
    error: BaseException, tmp_path: Path, fresh: Recorded
) -> None:
    """Exceptions that close a generator or exit a program normally leave spans ok."""
    found = record(tmp_path, _raising(error, application, training_loop, training_iteration))
    assert set(found.spans["status"]) == {"ok"}
    assert [event for event, _, _ in found.events if event == "error"] == []
    assert found.after == fresh.after


@pytest.mark.parametrize("code", [1, "no such file"])
def test_exit_that_complains(code: Any, tmp_path: Path) -> None:
    """sys.exit with something to say is an error of the span that it is called in."""
    found = record(tmp_path, _raising(SystemExit(code), application, training_loop), then=None)
    assert set(found.spans["status"]) == {"error"}
    ((span, about),) = [(span, about) for event, span, about in found.events if event == "error"]
    assert (span, about["exception_message"]) == ("training_loop", str(code))


def test_exception_through_spans_of_all_kinds(tmp_path: Path, fresh: Recorded) -> None:
    """One exception, one error event, on the innermost span; the iteration that failed does not count."""
    blocks = (
        application,
        training_loop,
        training_iteration,
        lambda: timed_span("mine"),
        model_forward,
    )
    found = record(tmp_path, _raising(ValueError("why"), *blocks))
    ((span, _),) = [(span, about) for event, span, about in found.events if event == "error"]
    assert span == "model_forward"
    assert found.attributes("training_metrics_update") == []
    assert found.after == fresh.after


def test_exception_with_spans_that_callbacks_opened(tmp_path: Path, fresh: Recorded) -> None:
    """Spans that callbacks left open end with the application, as errors; the innermost has the event."""

    def case(clock: FakeClock) -> None:
        @application()
        def main() -> None:
            on_train_start(0)
            on_training_single_iteration_start()
            on_data_loading_start()
            clock.advance(1)
            raise ValueError("why")

        with pytest.raises(ValueError, match="why"):
            main()

    found = record(tmp_path, case)
    assert set(found.spans["status"]) == {"error"}
    assert set(found.spans["duration_ns"]) == {10**9}
    ((span, _),) = [(span, about) for event, span, about in found.events if event == "error"]
    assert span == "data_loading"
    assert found.after == fresh.after


def test_iteration_that_a_callback_opened_in_a_loop_that_fails(tmp_path: Path) -> None:
    """The loop's exception is the iteration's too."""

    def case(clock: FakeClock) -> None:
        with pytest.raises(ValueError, match="why"), application(), training_loop():
            _fail_in_iteration()

    def _fail_in_iteration() -> None:
        on_training_single_iteration_start()
        raise ValueError("why")

    found = record(tmp_path, case, then=None)
    assert set(found.spans["status"]) == {"error"}
    ((span, _),) = [(span, about) for event, span, about in found.events if event == "error"]
    assert span == "training_single_iteration"


@pytest.mark.parametrize("strategy", ["sync", "async"])
def test_save_that_fails(strategy: str, tmp_path: Path, fresh: Recorded) -> None:
    """A save that raises is a failure with its reason, and the next one of the same step may succeed."""

    def case(clock: FakeClock) -> None:
        with application():
            _raising(OSError("disk full"), lambda: checkpoint_save(5, strategy=strategy))(clock)
            with checkpoint_save(5):
                clock.advance(1)

    found = record(tmp_path, case)
    (failure,) = found.attributes("save_checkpoint_failure")
    assert (failure["exception_type"], failure["exception_message"]) == ("OSError", "disk full")
    (success,) = found.attributes("save_checkpoint_success")
    assert success["save_checkpoint_success_count"] == 1
    assert found.warnings == []
    assert found.after == fresh.after


def test_failure_that_is_told_inside_of_the_save(tmp_path: Path) -> None:
    """The end of a save does not change a reported outcome."""

    def case(clock: FakeClock) -> None:
        with application(), checkpoint_save(5):
            training.on_save_checkpoint_failure(5, "no space")

    found = record(tmp_path, case, then=None)
    (failure,) = found.attributes("save_checkpoint_failure")
    assert failure["error_message"] == "no space"
    assert found.attributes("save_checkpoint_success") == []
    assert found.warnings == []


def test_decorated_functions(tmp_path: Path, fresh: Recorded) -> None:
    """Recursion nests, generators last from their first item to their last or to being closed."""

    def case(clock: FakeClock) -> None:
        @model_forward()
        def descend(depth: int) -> int:
            clock.advance(1)
            return depth and 1 + descend(depth - 1)

        @data_loading()
        def batches() -> Iterator[int]:
            for i in range(3):
                clock.advance(1)
                yield i

        @training_iteration()
        def train() -> int:
            return descend(2)

        @application()
        def main() -> None:
            with training_loop():
                assert list(batches()) == [0, 1, 2]
                assert train() == 2
                left: Generator[int, None, None] = batches()  # type: ignore[assignment]
                next(left)
                left.close()

        main()
        main()

    found = record(tmp_path, case)
    assert found.warnings == []
    assert found.edges == {
        ("application", None): 2,
        ("training_loop", "application"): 2,
        ("data_loading", "training_loop"): 4,
        ("training_single_iteration", "training_loop"): 2,
        ("model_forward", "training_single_iteration"): 2,
        ("model_forward", "model_forward"): 4,
    }
    loads = found.spans.filter(name="data_loading")["duration_ns"].to_list()
    assert loads == [3 * 10**9, 10**9] * 2
    assert set(found.spans["status"]) == {"ok"}
    assert found.after == fresh.after


def test_generator_that_is_left_by_an_exception(tmp_path: Path, fresh: Recorded) -> None:
    """An exception in a decorated generator is its own; one outside leaves it ok when it is closed."""

    def case(clock: FakeClock) -> None:
        @data_loading()
        def batches() -> Iterator[int]:
            yield 0
            raise ValueError("torn file")

        with application(), training_loop():
            with pytest.raises(ValueError, match="torn file"):
                list(batches())
            for _ in batches():
                break

    found = record(tmp_path, case)
    statuses = found.spans.filter(name="data_loading")["status"].to_list()
    assert statuses == ["error", "ok"]
    ((span, _),) = [(span, about) for event, span, about in found.events if event == "error"]
    assert span == "data_loading"
    assert found.after == fresh.after
