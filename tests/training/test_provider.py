"""The provider: configurations take effect at the right time and for the right duration."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell import StepwellError, training
from stepwell._core import errors
from stepwell.exporters import ChromeExporter, Exporter, FileExporter
from stepwell.telemetry import Span
from stepwell.telemetry.run import active_run
from stepwell.testing import FakeClock
from stepwell.training import (
    ApplicationConfig,
    TrainingTelemetryConfig,
    TrainingTelemetryProvider,
    application,
    checkpoint_save,
    context,
    on_app_end,
    on_app_start,
    training_iteration,
    training_loop,
)
from stepwell.training.calls import current_job
from tests.harness import wait_until


@pytest.fixture
def provider(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[TrainingTelemetryProvider]:
    """A provider that has not been configured, whose runs go to a folder of the test."""
    monkeypatch.setenv("STEPWELL_DIR", str(tmp_path / "runs"))
    found = TrainingTelemetryProvider.instance()
    found.reset()
    yield found
    found.reset()


def _updates(span: Span, *names: str) -> list[tuple[Any, ...]]:
    told = [event.attributes for event in span.events if event.name == "training_metrics_update"]
    return [tuple(about.get(name) for name in names) for about in told]


def _iterate(count: int) -> None:
    for _ in range(count):
        with training_iteration():
            pass


def test_traces_get_the_short_spans(provider: TrainingTelemetryProvider, tmp_path: Path) -> None:
    """Where no filter is chosen each exporter gets what it wants: a trace has every iteration."""
    trace, lines = tmp_path / "trace.json", tmp_path / "lines.json"
    provider.configure(
        TrainingTelemetryConfig(), exporters=[ChromeExporter(trace), FileExporter(lines)]
    )
    with application(), training_loop():
        _iterate(1)
    provider.reset()
    assert "training_single_iteration" in trace.read_text()
    assert "training_single_iteration" not in lines.read_text()


def test_a_loop_goes_on_with_a_configuration_that_comes_late(
    provider: TrainingTelemetryProvider,
) -> None:
    """Training configuration set inside a loop applies from the next iteration on."""
    provider.configure(ApplicationConfig(application_name="late"))
    with application(), training_loop() as span:
        _iterate(1)
        provider.set_training_telemetry_config(
            TrainingTelemetryConfig(global_batch_size_or_fn=4, log_every_n_train_iterations=2)
        )
        _iterate(4)
    assert _updates(span, "current_iteration", "num_train_samples") == [(1, 4), (3, 12), (4, 16)]


def test_throughput_that_a_function_switches_on(provider: TrainingTelemetryProvider) -> None:
    """The function is asked at each iteration, not only when the loop starts."""
    is_on = [False]
    provider.configure(
        TrainingTelemetryConfig(
            global_batch_size_or_fn=4,
            flops_per_sample_or_fn=1000,
            is_log_throughput_enabled_or_fn=lambda: is_on[0],
            log_every_n_train_iterations=2,
        )
    )
    with application(), training_loop() as span:
        _iterate(2)
        is_on[0] = True
        _iterate(2)
    assert _updates(span, "total_flops") == [(None,), (8000,)]


def test_throughput_without_operations(
    provider: TrainingTelemetryProvider, caplog: pytest.LogCaptureFixture
) -> None:
    """Samples and tokens per second are reported all the same, and one warning says what is missing."""
    errors.counts.pop("throughput without flops", None)
    clock = FakeClock()
    with clock:
        provider.configure(
            TrainingTelemetryConfig(
                global_batch_size_or_fn=4,
                seq_length_or_fn=10,
                is_log_throughput_enabled_or_fn=True,
                log_every_n_train_iterations=1,
            )
        )
        with application(), training_loop() as span:
            for _ in range(3):
                with training_iteration():
                    clock.advance(2)
    rates = _updates(span, "avg_samples_per_second", "avg_tokens_per_second", "avg_tflops")
    assert rates == [(2.0, 20.0, None)] * 3
    (said,) = [text for text in caplog.messages if "throughput" in text]
    assert "TFLOP/s are not reported" in said


def test_the_first_event_of_an_application_that_started_earlier(
    provider: TrainingTelemetryProvider,
) -> None:
    """The process is described at the start of the application, even if that was before the call."""
    provider.configure(ApplicationConfig(application_name="backdated"))
    earlier = round(time.time() * 1000) - 60_000
    span = on_app_start(start_time_msec=earlier)
    (told,) = [event for event in span.events if event.name == "one_logger_initialization"]
    assert told.clock == span.start
    assert abs(told.timestamp_msec - earlier) <= 1
    on_app_end()


def test_statements_one_by_one(provider: TrainingTelemetryProvider, tmp_path: Path) -> None:
    """The provider keeps the settings of each statement until it is configured; then it starts again."""
    file = tmp_path / "lines.json"
    provider.with_base_config(ApplicationConfig(application_name="one by one"))
    provider.with_config_override({"session_tag": "night"})
    provider.with_exporter(FileExporter(file))
    provider.configure_provider()
    config = provider.config
    assert (config.application_name, config.session_tag) == ("one by one", "night")
    assert len(provider.run.exporters) == 1  # type: ignore[union-attr]
    provider.with_config_override({"session_tag": "day"}).configure_provider()
    assert (provider.config.application_name, provider.config.session_tag) == ("one by one", "day")
    # Two different ones in one plan are a mistake; one after the other is not.
    provider.with_base_config(ApplicationConfig(application_name="next"))
    with pytest.raises(StepwellError, match="called twice"):
        provider.with_base_config(ApplicationConfig(application_name="other"))
    provider.configure_provider()
    assert provider.config.application_name == "next"


def test_failed_iterations_that_are_not_recorded(provider: TrainingTelemetryProvider) -> None:
    """An iteration that raised does not count, whether iterations are recorded or not."""
    for is_recorded in (True, False):
        provider.configure(TrainingTelemetryConfig(is_train_iterations_enabled_or_fn=is_recorded))
        with application(), training_loop():
            _iterate(2)
            with pytest.raises(ValueError, match="NaN"), training_iteration():
                raise ValueError("NaN")
            with checkpoint_save(global_step=2) as save:
                pass
        assert save.events[0].attributes["productive_train_iterations"] == 2


def test_threads_that_are_the_first_at_once(tmp_path: Path) -> None:
    """All threads get the same job, also when several start at the same moment."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(10):
            with stepwell.init("race", dir=tmp_path):
                assert len(_first_jobs(4)) == 1
    finally:
        sys.setswitchinterval(before)


def _first_jobs(count: int) -> set[int]:
    together = threading.Barrier(count)
    found: list[Any] = []

    def first() -> None:
        together.wait()
        found.append(current_job())

    threads = [threading.Thread(target=first) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == count
    return set(map(id, found))


class Hanging(Exporter):
    """Takes nothing until it is let go."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.is_hanging = False

    def export(self, records: Any) -> None:
        self.is_hanging = True
        self.go_on.wait(60)
        self.is_hanging = False


def test_the_end_of_the_application_is_bounded(
    provider: TrainingTelemetryProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exporter that hangs keeps the end of the application no longer than the end of a run."""
    monkeypatch.setenv("STEPWELL_FINISH_TIMEOUT", "0.3")
    exporter = Hanging()
    provider.configure(TrainingTelemetryConfig(), exporters=[exporter])
    on_app_start()
    wait_until(lambda: exporter.is_hanging)
    on_app_end()
    assert exporter.is_hanging
    exporter.go_on.set()


@pytest.mark.parametrize("strict", ["0", "1"])
def test_a_hook_that_complains_does_not_keep_a_run_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strict: str
) -> None:
    """Errors at the end of a run are raised in strict mode only, and after the run has ended."""
    run = stepwell.init("strict", dir=tmp_path)
    monkeypatch.setenv("STEPWELL_STRICT", strict)

    def complain(status: str) -> None:
        raise StepwellError(f"not {status}")

    run.before_finish(complain)
    with pytest.raises(StepwellError, match="not finished") if strict == "1" else nullcontext():
        run.finish()
    assert run.status == "finished"
    assert active_run() is None
    assert stepwell.open_run(run.path).processes().collect()["status"].to_list() == ["finished"]


def test_the_documentation_has_every_context_manager_and_callback() -> None:
    """Whoever looks for a call finds it in the reference."""
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    made = {name for name in training.__all__ if hasattr(context, name)}
    context_managers = {name for name in made if name.islower()}
    callbacks = {name for name in training.__all__ if name.startswith("on_")}
    assert len(context_managers) == 19
    told = {*re.findall(r"^\| `(\w+)\(", text, re.MULTILINE), *re.findall(r"`(on_\w+)`", text)}
    assert told >= context_managers | callbacks
    assert told <= {*training.__all__}


class Unreadable(Exception):
    """An exception that cannot even be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_functions_whose_exceptions_cannot_be_shown(provider: TrainingTelemetryProvider) -> None:
    """However a function of the configuration fails, training continues."""

    def fail() -> Any:
        raise Unreadable

    before = errors.counts[errors.PROBLEMS]
    provider.configure(
        TrainingTelemetryConfig(
            world_size_or_fn=fail,
            global_batch_size_or_fn=fail,
            is_save_checkpoint_enabled_or_fn=fail,
        )
    )
    with application(), training_loop():
        _iterate(2)
        with checkpoint_save(global_step=2):
            pass
    errors.report("a test", Unreadable())
    assert errors.counts[errors.PROBLEMS] > before
