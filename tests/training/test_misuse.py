"""Calls in the wrong order: a warning, an event, a valid span tree, and no effect on the next job."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stepwell import training
from stepwell._core import errors
from stepwell._core.errors import StepwellError
from stepwell.telemetry import timed_span
from stepwell.testing import FakeClock
from stepwell.training import (
    application,
    data_loading,
    on_app_end,
    on_app_start,
    on_save_checkpoint_start,
    on_train_start,
    on_training_single_iteration_end,
    on_training_single_iteration_start,
    on_validation_single_iteration_start,
    on_validation_start,
    training_iteration,
    training_loop,
)
from tests.training.misuses import (
    APP,
    BATCH,
    CASES,
    ENDS,
    ITERATION,
    LOOP,
    SAVE,
    VALIDATION,
    iteration_inside_an_iteration,
    late_success,
    loop_inside_a_loop,
    very_late_success,
)
from tests.training.misusing import Recorded, end_what_is_open, in_thread, record


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """The right job in a run in which nothing was before it."""
    found = record(tmp_path_factory.mktemp("fresh"))
    assert (found.warnings, found.problems, found.complaints) == ([], 0, [])
    spans, events = found.after
    assert len(spans) == 19
    (update,) = [about for name, _, _, about in events if name == "training_metrics_update"]
    assert (update["num_iterations"], update["num_train_samples"]) == (3, 24)
    return found


def says(message: str, warnings: list[str]) -> list[str]:
    return [warning for warning in warnings if re.search(message, warning)]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", CASES)
def test_misuse_is_survived(name: str, tmp_path: Path, fresh: Recorded) -> None:
    """It is said once, counted and recorded; the tree is sensible, and the next job is unharmed."""
    wrong = CASES[name]
    found = record(tmp_path, wrong.case)
    assert len(says(wrong.says, found.warnings)) == 1, found.warnings
    assert not says("inside stepwell", found.warnings)
    assert found.problems >= 1
    assert says(f"^misuse: .*(?:{wrong.says})", found.complaints)
    assert found.edges == wrong.edges
    assert set(found.spans["status"]) <= {"ok"}
    assert found.after == fresh.after


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", CASES)
def test_misuse_is_said_once(name: str, tmp_path: Path) -> None:
    """The second time the same goes wrong it is only counted and recorded."""
    wrong = CASES[name]

    def twice(clock: FakeClock) -> None:
        wrong.case(clock)
        end_what_is_open()
        wrong.case(clock)

    found = record(tmp_path, twice, then=None)
    assert len(says(wrong.says, found.warnings)) == 1
    assert len(says(wrong.says, found.complaints)) >= 2
    assert found.problems >= 2


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", CASES)
def test_strict_misuse_is_raised(
    name: str, tmp_path: Path, fresh: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In strict mode it is raised; afterwards everything can be used as before."""
    wrong = CASES[name]
    monkeypatch.setenv("STEPWELL_STRICT", "1")

    def raising(clock: FakeClock) -> None:
        with pytest.raises(StepwellError, match=wrong.says):
            wrong.case(clock)

    found = record(tmp_path, raising)
    assert found.warnings == []
    assert found.after == fresh.after


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", ENDS)
def test_end_without_start(
    name: str, tmp_path: Path, fresh: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every end without a start gives a message that names the missing call, alone and in an application."""

    def alone(clock: FakeClock) -> None:
        ENDS[name]()
        with application():
            if name != "on_app_end":
                ENDS[name]()

    found = record(tmp_path, alone)
    (said,) = found.warnings
    assert "ended without a matching start" in said
    assert re.search(r"[cC]all (its )?on_\w*…?\w*_start\(\) first|on_app_start\(\) first", said)
    assert found.edges == {(APP, None): 1}
    assert len(found.complaints) == (1 if name == "on_app_end" else 2)
    assert found.after == fresh.after
    monkeypatch.setenv("STEPWELL_STRICT", "1")
    with pytest.raises(StepwellError, match="ended without a matching start"):
        record(tmp_path, alone)


def test_next_run_after_misuse(tmp_path: Path, fresh: Recorded) -> None:
    """All cases in a row in one run do not affect the next run of the process."""

    def all_of_it(clock: FakeClock) -> None:
        for wrong in CASES.values():
            wrong.case(clock)

    mixed = record(tmp_path, all_of_it)
    assert mixed.after == fresh.after
    assert record(tmp_path).after == fresh.after


def test_iterations_that_misuse_cuts_short_count(tmp_path: Path) -> None:
    """If an iteration is started inside another one, both count, with their durations."""
    found = record(tmp_path, iteration_inside_an_iteration, then=None)
    (update,) = found.attributes("training_metrics_update")
    assert update["num_iterations"] == 2
    assert update["total_iteration_time_sec"] == 3
    found = record(tmp_path, loop_inside_a_loop, then=None)
    (update,) = found.attributes("training_metrics_update")
    assert (update["num_iterations"], update["total_iteration_time_sec"]) == (1, 1)


def test_durations_when_the_wall_clock_is_stepped_back(tmp_path: Path) -> None:
    """A jump of the wall clock changes no duration, and is not a misuse."""

    def stepping(clock: FakeClock) -> None:
        with application(), training_loop():
            for step in (-3600, 7200):
                with training_iteration():
                    clock.advance(1)
                    clock.step(step)
                    clock.advance(1)
            on_training_single_iteration_start(start_time_msec=clock.msec)
            clock.advance(1)
            clock.step(-3600)
            on_training_single_iteration_end(finish_time_msec=clock.msec)

    found = record(tmp_path, stepping, then=None)
    assert found.warnings == []
    took = dict(found.spans.select("name", "duration_ns").iter_rows())
    assert took == {APP: 5e9, LOOP: 5e9, ITERATION: 1e9}
    (update,) = found.attributes("training_metrics_update")
    assert update["total_iteration_time_sec"] == 5
    assert update["max_iteration_time_sec"] == 2


def test_late_success_is_an_event_of_its_own_save(tmp_path: Path) -> None:
    """A success after the application's end counts for the save that it is about, also in the next one."""
    for case in (late_success, very_late_success):
        found = record(tmp_path, case, then=None)
        (event,) = [e for e in found.events if e[0] == "save_checkpoint_success"]
        assert event[1] == "checkpoint_save_async"
        assert event[2]["save_checkpoint_success_count"] == 1


def test_end_of_the_application_with_everything_open(tmp_path: Path, fresh: Recorded) -> None:
    """It ends all that is open, innermost first and at the same instant, without a word."""

    def leaving(clock: FakeClock) -> None:
        on_app_start()
        on_train_start(0)
        on_training_single_iteration_start()
        on_save_checkpoint_start(1)
        on_validation_start()
        on_validation_single_iteration_start()
        timed_span("mine").__enter__()
        in_thread(timed_span("elsewhere").__enter__)
        data_loading().__enter__()
        clock.advance(1)
        on_app_end()

    found = record(tmp_path, leaving)
    assert found.warnings == []
    assert set(found.spans["duration_ns"]) == {10**9}
    assert set(found.spans["status"]) == {"ok"}
    assert found.edges == {
        (APP, None): 1,
        (LOOP, APP): 1,
        (ITERATION, LOOP): 1,
        (SAVE, ITERATION): 1,
        (VALIDATION, SAVE): 1,
        (BATCH, VALIDATION): 1,
        ("mine", BATCH): 1,
        ("data_loading", "mine"): 1,
        ("elsewhere", None): 1,
    }
    (update,) = found.attributes("training_metrics_update")
    assert (update["num_iterations"], update["is_final"]) == (1, True)
    (update,) = found.attributes("validation_metrics_update")
    assert update["num_iterations"] == 1
    assert len(found.attributes("sync_checkpoint_metrics_update")) == 1
    assert found.after == fresh.after


def test_spans_around_the_application_stay_open(tmp_path: Path) -> None:
    """Its end is not theirs: neither of the one that it is in, nor of one that another thread had open."""

    def around(clock: FakeClock) -> None:
        in_thread(timed_span("elsewhere").__enter__)
        clock.advance(1)
        with timed_span("around") as outer:
            with application():
                clock.advance(1)
            assert outer.active
            clock.advance(1)

    found = record(tmp_path, around, then=None)
    took = dict(found.spans.select("name", "duration_ns").iter_rows())
    assert took == {"elsewhere": 3e9, "around": 2e9, APP: 1e9}
    assert found.warnings == []


def test_span_that_is_stopped_by_hand(tmp_path: Path, fresh: Recorded) -> None:
    """A standard span that its user has stopped is over then; its own end does no harm."""

    def stopping(clock: FakeClock) -> None:
        with application(), training_loop() as loop:
            for size in (None, 4):
                with training_iteration(samples=size) as iteration:
                    clock.advance(1)
                    iteration.stop()
                    clock.advance(1)
            with data_loading() as loading:
                loading.stop()
            loop.stop()
            with training_iteration():
                clock.advance(1)

    found = record(tmp_path, stopping)
    # Whether data loading had started cannot be seen when its span is gone.
    assert [w for w in found.warnings if "data_loading ended" not in w] == []
    assert set(found.spans.filter(name=ITERATION)["duration_ns"]) == {10**9}
    assert (found.edges[ITERATION, LOOP], found.edges[ITERATION, APP]) == (2, 1)
    (update,) = found.attributes("training_metrics_update")
    assert (update["num_iterations"], update["total_iteration_time_sec"]) == (3, 3)
    assert found.after == fresh.after


def test_strict_by_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """strict=True in the configuration raises as STEPWELL_STRICT=1 does, until the provider is reset."""
    monkeypatch.setenv("STEPWELL_DIR", str(tmp_path))
    provider = training.TrainingTelemetryProvider.instance()
    provider.configure(training.TrainingTelemetryConfig(strict=True))
    try:
        with pytest.raises(StepwellError, match="without a matching start"):
            on_app_end()
        with application(), training_loop(), training_iteration():
            pass
    finally:
        provider.reset()
    assert not errors.is_strict()


def test_records_of_misuse_are_bounded(tmp_path: Path) -> None:
    """A million wrong calls leave some records and a count, not a million records."""

    def often(clock: FakeClock) -> None:
        for _ in range(1000):
            on_training_single_iteration_end()

    found = record(tmp_path, often, then=None)
    assert len(found.complaints) == errors.MAX_RECORDED
    assert found.problems == 1000
