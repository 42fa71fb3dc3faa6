"""Wrong arguments: every public function gets every kind of wrong value, and training continues."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell import training
from stepwell._core.errors import StepwellError
from stepwell.telemetry import Attributes, Event, Span, SpanRecorder, timed_span
from stepwell.testing import FakeClock
from stepwell.training import (
    TrainingTelemetryConfig,
    TrainingTelemetryProvider,
    application,
    checkpoint_save,
    on_save_checkpoint_end,
    on_save_checkpoint_start,
    on_save_checkpoint_success,
    training_iteration,
    training_loop,
)
from tests.training.misusing import Recorded, record


class Hostile:
    """An object that raises at whatever is done with it."""

    def _refuse(self, *args: object) -> Any:
        raise RuntimeError("hands off")

    __repr__ = __str__ = __bool__ = __int__ = __float__ = __index__ = __len__ = __call__ = _refuse
    __eq__ = __lt__ = __gt__ = __getitem__ = __iter__ = __fspath__ = _refuse  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


NONSENSE: dict[str, Any] = {
    "text": "x",
    "empty text": "",
    "none": None,
    "nan": math.nan,
    "infinity": math.inf,
    "negative": -1,
    "fraction": 2.5,
    "bool": True,
    "huge": 10**30,
    "list": [1],
    "dict": {"a": 1},
    "bytes": b"\xff",
    "class": int,
    "raising function": Hostile()._refuse,
    "hostile": Hostile(),
}


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return record(tmp_path_factory.mktemp("fresh"))


def _all_calls(bad: Any) -> Iterator[Callable[[], Any]]:
    """Every public function of training, with this in the place of every argument."""
    # One that is right: what comes before any application belongs to the first.
    yield lambda: _inside(application())
    starts = [n for n in training.__all__ if n.startswith("on_") and n.endswith("_start")]
    with_step = ("on_save_checkpoint_start",)
    for name in starts:
        if name not in (*with_step, "on_train_start"):
            yield lambda name=name: getattr(training, name)(bad)
    yield lambda: training.on_train_start(bad)
    yield lambda: training.on_train_start(0, bad)
    yield lambda: training.on_train_start(0, 0, bad)
    yield lambda: training.on_train_start(0, 0, 1, bad)
    yield lambda: training.on_train_start(0, 0, 1, 1, bad)
    yield lambda: on_save_checkpoint_start(bad)
    yield lambda: on_save_checkpoint_start(1, bad)
    yield lambda: on_save_checkpoint_start(1, path=bad)
    yield lambda: on_save_checkpoint_start(1, strategy=bad)
    yield lambda: on_save_checkpoint_success(bad)
    yield lambda: on_save_checkpoint_success(1, bad, path=bad)
    yield lambda: training.on_save_checkpoint_failure(bad)
    yield lambda: training.on_save_checkpoint_failure(1, bad, bad)
    yield lambda: training.on_training_single_iteration_end(samples=bad)
    yield lambda: training.on_training_single_iteration_end(tokens=bad)
    for name in reversed(starts):
        end = getattr(training, name.replace("_start", "_end"))
        yield lambda end=end: end(bad)
    yield lambda: _inside(training_iteration(samples=bad, tokens=bad))
    yield lambda: _inside(training_loop(bad, bad, bad, bad))
    yield lambda: _inside(checkpoint_save(bad, path=bad, strategy=bad))


def _inside(block: Any) -> None:
    with block as span:
        assert isinstance(span, Span)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_everywhere(name: str, tmp_path: Path, fresh: Recorded) -> None:
    """No call raises, every start gives a span, and the next job is as it should be."""

    def case(clock: FakeClock) -> None:
        clock.advance(10)
        for call in _all_calls(NONSENSE[name]):
            assert call() is None or isinstance(call(), Span)

    found = record(tmp_path, case)
    assert found.status == "finished"
    assert found.problems >= 1
    assert set(found.spans["status"]) == {"ok"}
    assert found.spans["duration_ns"].min() >= 0
    assert found.after == fresh.after


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_in_strict_mode(
    name: str, tmp_path: Path, fresh: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is raised then leaves everything usable."""
    monkeypatch.setenv("STEPWELL_STRICT", "1")
    raised: list[int] = []

    def case(clock: FakeClock) -> None:
        clock.advance(10)
        for call in _all_calls(NONSENSE[name]):
            try:
                call()
            except (StepwellError, RuntimeError, TypeError):
                raised.append(1)

    assert record(tmp_path, case).after == fresh.after
    assert raised


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_for_the_core(name: str, tmp_path: Path, fresh: Recorded) -> None:
    """Spans, events, attributes and the recorder take it too, and record something sensible."""
    bad = NONSENSE[name]

    def case(clock: FakeClock) -> None:
        clock.advance(10)
        recorder = SpanRecorder()
        with application() as span, training_loop() as loop:
            span.add_attribute(bad, bad)
            span.add_attributes(bad)
            span.add_event(bad)
            span.add_event("named", bad)
            span.add_event(Event.create(bad, bad, bad))
            loop.add_attribute("train_iterations_target", bad)
            with timed_span(bad, bad, bad) as inner:
                assert isinstance(inner, Span)
            made = recorder.start(bad, bad, bad, bad, bad)
            made.stop(bad, bad)
            recorder.stop(recorder.start("own"), bad, bad)
            recorder.stop(bad)
            recorder.event(bad)
            recorder.event(bad, bad)
            recorder.event(span, bad)
            recorder.event(bad, Event.create("kept"))
            recorder.error(bad, bad, bad)
            recorder.error(span, bad, bad)
            recorder.telemetry_data_error(bad, bad)

    found = record(tmp_path, case)
    assert found.status == "finished"
    assert ("kept", "training_loop") in [(event, span) for event, span, _ in found.events]
    assert found.spans["duration_ns"].min() >= 0
    assert found.after == fresh.after


def test_step_as_any_whole_number(tmp_path: Path) -> None:
    """NumPy and torch scalars are valid steps, compared by value; so are whole floats."""
    numpy = pytest.importorskip("numpy")
    torch = pytest.importorskip("torch")
    steps = [numpy.int64(1), numpy.array(2), torch.tensor(3), torch.tensor([4]), 5.0]
    again = [torch.tensor(1), 2, torch.tensor(3), numpy.float32(4), numpy.int8(5)]

    def case(clock: FakeClock) -> None:
        with application():
            for step, same in zip(steps, again, strict=True):
                on_save_checkpoint_start(step, strategy="async")
                on_save_checkpoint_end()
                on_save_checkpoint_success(same)

    found = record(tmp_path, case, then=None)
    assert found.warnings == []
    told = found.attributes("save_checkpoint_success")
    assert [about["current_iteration"] for about in told] == [1, 2, 3, 4, 5]


def test_wrong_start_of_a_loop_still_is_a_loop(tmp_path: Path) -> None:
    """A loop that is started with nonsense starts at 0, and its iterations count."""

    def case(clock: FakeClock) -> None:
        loop = training_loop("seven", train_iterations_target_or_fn=-1)  # type: ignore[arg-type]
        with application(), loop, training_iteration():
            clock.advance(1)

    found = record(tmp_path, case, then=None)
    # A target of -1 is just not known.
    assert len(found.warnings) == 1
    assert "train_iterations_start of a training loop must be a whole number" in found.warnings[0]
    (update,) = found.attributes("training_metrics_update")
    assert (update["train_iterations_start"], update["num_iterations"]) == (0, 1)
    assert found.spans.filter(name="training_loop")["attributes"].to_list() == [
        '{"train_iterations_start":0}'
    ]


def test_save_with_a_wrong_step_or_strategy_is_still_a_save(tmp_path: Path) -> None:
    """It gets the iterations done so far as its step, and the strategy of the configuration."""

    def case(clock: FakeClock) -> None:
        with application(), training_loop(3):
            with training_iteration():
                pass
            with checkpoint_save(None, strategy="later"):  # type: ignore[arg-type]
                clock.advance(1)

    found = record(tmp_path, case, then=None)
    assert len(found.warnings) == 2
    (told,) = found.attributes("save_checkpoint_success")
    assert (told["current_iteration"], told["checkpoint_strategy"]) == (4, "sync")


FUNCTIONS = (
    *("world_size", "session_tag", "is_baseline_run", "perf_tag", "global_batch_size"),
    *("micro_batch_size", "seq_length", "flops_per_sample", "train_iterations_target"),
    *("train_samples_target", "is_log_throughput_enabled", "is_train_iterations_enabled"),
    *("is_validation_iterations_enabled", "is_test_iterations_enabled"),
    "is_save_checkpoint_enabled",
)


def _raises() -> Any:
    raise OSError("no such setting")


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", [*FUNCTIONS, "enable_for_current_rank"])
@pytest.mark.parametrize("function", [_raises, lambda: math.nan])
def test_functions_of_the_configuration_that_fail(
    name: str, function: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function that raises or gives nonsense is said once; what depends on it is left out."""
    monkeypatch.setenv("STEPWELL_DIR", str(tmp_path))
    field = name if name == "enable_for_current_rank" else f"{name}_or_fn"
    provider = TrainingTelemetryProvider.instance()
    provider.reset()
    try:
        provider.configure(TrainingTelemetryConfig(**{field: function}))
        assert provider.run is not None
        path = provider.run.path
        with application(), training_loop():
            for _ in range(3):
                with training_iteration():
                    pass
            with training.validation_loop(), training.validation_iteration():
                pass
            with checkpoint_save(3):
                pass
    finally:
        provider.reset()
    run = stepwell.open_run(path)
    counts = dict(run.spans().collect()["name"].value_counts().iter_rows())
    assert counts == {
        "application": 1,
        "training_loop": 1,
        "training_single_iteration": 3,
        "validation_loop": 1,
        "validation_single_iteration": 1,
        "checkpoint_save_sync": 1,
    }
    assert run.status == "finished"


def test_times_of_events_and_spans(tmp_path: Path) -> None:
    """Seconds and datetimes are accepted; other values, or times decades away, mean now."""

    def case(clock: FakeClock) -> None:
        clock.advance(100)
        at = datetime.datetime.fromtimestamp(clock.time - 5, datetime.timezone.utc)
        assert Event.create("a", timestamp=at).time_ns == round((clock.time - 5) * 1e9)
        assert Event.create("a", timestamp=clock.time - 1).time_ns == round((clock.time - 1) * 1e9)
        for bad in (True, "noon", math.nan, -math.inf, 1e300, -1, [], datetime.datetime.min):
            assert Event.create("a", timestamp=bad).time_ns == round(clock.time * 1e9)  # type: ignore[arg-type]

    found = record(tmp_path, case, then=None)
    (said,) = found.warnings
    assert "must be seconds since the epoch, such as time.time()" in said


def test_attribute_classes_still_refuse() -> None:
    """Making a set of declared attributes by hand is where a wrong one is refused."""
    with pytest.raises(StepwellError, match=r"current_iteration must be .*, got -1"):
        training.TrainingMetricsUpdateAttributes.create(current_iteration=-1)
    with pytest.raises(StepwellError, match="attribute a must be an int, got 'x'"):
        Attributes({"a": "x"}).get_int_value("a")
