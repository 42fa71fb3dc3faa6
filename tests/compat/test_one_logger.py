"""The names and spellings of nv-one-logger, each as programs use it."""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import re
import subprocess
import sys
import time
from collections import Counter
from enum import Enum
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell import training
from stepwell.compat import one_logger as ol
from stepwell.compat.one_logger import (
    Attribute,
    Attributes,
    BaseExporter,
    BaseJsonExporter,
    CheckPointStrategy,
    DefaultRecorder,
    ErrorEvent,
    Event,
    ExportCustomizationMode,
    Exporter,
    ExporterConfig,
    ExportError,
    FileExporter,
    LoggerConfig,
    LoggerExporter,
    OneLoggerConfig,
    OneLoggerError,
    OneLoggerErrorHandlingStrategy,
    OneLoggerProvider,
    Span,
    StandardEventName,
    StandardSpanName,
    TracingTimestamp,
    TrainingTelemetryConfig,
    TrainingTelemetryProvider,
    application,
    get_recorder,
    on_app_end,
    on_app_start,
    timed_span,
    training_iteration,
    training_loop,
)
from stepwell.compat.one_logger.exporters import AdaptedExporter
from stepwell.compat.one_logger.spans import LiveSpan, entering_views, returning_views, view_of
from stepwell.importing import import_trace
from stepwell.telemetry import span_handle
from stepwell.telemetry.exporter import EventRecord, Source, SpanRecord
from stepwell.testing import FakeClock
from tests.harness import environment

T0 = 1_700_000_000_000_000_000


def _base(**more: Any) -> OneLoggerConfig:
    return OneLoggerConfig(
        application_name="app", session_tag_or_fn="tag", world_size_or_fn=1, **more
    )


def _training(**more: Any) -> TrainingTelemetryConfig:
    return TrainingTelemetryConfig(perf_tag_or_fn="fast", global_batch_size_or_fn=8, **more)


class Kept(BaseExporter):
    """An exporter of the original interface that keeps what it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.spans: list[Span] = []
        self.ended: list[Span] = []
        self.events: list[tuple[Event, Span]] = []
        self.errors: list[tuple[ErrorEvent, Span]] = []
        self.problems: list[str] = []

    def export_start(self, span: Span) -> None:
        super().export_start(span)
        self.spans.append(span)

    def export_stop(self, span: Span) -> None:
        super().export_stop(span)
        self.ended.append(span)

    def export_event(self, event: Event, span: Span) -> None:
        super().export_event(event, span)
        self.events.append((event, span))

    def export_error(self, event: ErrorEvent, span: Span) -> None:
        super().export_error(event, span)
        self.errors.append((event, span))

    def export_telemetry_data_error(self, error: Any) -> None:
        super().export_telemetry_data_error(error)
        self.problems.append(error.error_message)


# Names and modules


@pytest.mark.parametrize("path", ol._PATHS)
def test_modules_of_the_original(path: str) -> None:
    """Each is here under its own path, with the names that programs import from it."""
    module = importlib.import_module(f"stepwell.compat.one_logger.{path}")
    assert module.OneLoggerConfig is OneLoggerConfig
    assert module is importlib.import_module(module.__name__)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = module.Nothing


def test_names_that_the_original_exports() -> None:
    """All names of its public modules exist here, except those that the migration page lists."""
    missing = [
        f"{path}.{name}"
        for path, names in _names_of_the_original()
        for name in names
        if not hasattr(importlib.import_module(f"stepwell.compat.one_logger.{path}"), name)
    ]
    assert missing == []


NOT_CARRIED = {
    # Of no use to a program: types, and parts of the original's own machinery.
    *("AttributeValue", "EventName", "SpanName", "NVTXColor", "Timer", "CheckPointType"),
    *("StandardSpanAttributeName", "StandardEventAttributeName"),
    *("ExporterConfigManager", "assert_that"),
}


def _names_of_the_original() -> list[tuple[str, list[str]]]:
    pytest.importorskip("nv_one_logger.api", reason="needs nv-one-logger")
    found = []
    for path in ol._PATHS:
        try:
            module = importlib.import_module(f"nv_one_logger.{path}")
        except (ImportError, TypeError):
            # The parts for Lightning, W&B and OpenTelemetry are other packages.
            continue
        own = [name for name, value in vars(module).items() if _is_own(value, module.__name__)]
        found.append((path, [name for name in own if name not in NOT_CARRIED]))
    assert sum(len(names) for _, names in found) > 60
    return found


def _is_own(value: Any, module: str) -> bool:
    name = getattr(value, "__name__", "_")
    return getattr(value, "__module__", None) == module and not name.startswith("_")


def test_signatures_and_properties_of_the_original() -> None:
    """Functions take its arguments in its order; attribute classes have its properties."""
    checked = 0
    for path, names in _names_of_the_original():
        theirs = importlib.import_module(f"nv_one_logger.{path}")
        for name in names:
            original, ours = getattr(theirs, name), getattr(ol, name)
            if path.endswith(("api.callbacks", "api.context")):
                wanted = list(inspect.signature(original).parameters)
                assert list(inspect.signature(ours).parameters)[: len(wanted)] == wanted, name
                checked += 1
            elif path.endswith("api.attributes"):
                properties = [
                    key for key, value in vars(original).items() if isinstance(value, property)
                ]
                assert [key for key in properties if not hasattr(ours(), key)] == [], name
                checked += len(properties)
    assert checked > 100


CALLS = [name for name in training.__all__ if name.islower()]
"""The callbacks and context managers."""


def test_calls_of_stepwell_are_all_there() -> None:
    """Each is the same function; those that return a span return one with the original's interface."""
    assert [name for name in ol.__all__ if name in CALLS] == CALLS
    for name in CALLS:
        call = getattr(ol, name)
        assert inspect.unwrap(call) is getattr(training, name), name
        span = name.removeprefix("on_").removesuffix("_start")
        if name.startswith("on_") and span == name.removeprefix("on_"):
            assert call is getattr(training, name), name
        else:
            wrapper = returning_views if name.startswith("on_") else entering_views
            assert call.__code__ is wrapper(call).__code__, name
            is_short = span.replace("_single", "").replace("iteration", "single_iteration") in SHORT
            view = inspect.getclosurevars(call).nonlocals["view"]
            assert view is (LiveSpan if is_short else view_of), name


SHORT = set(ol.DEFAULT_SPANS_EXPORT_BLACKLIST)

PAGE = Path(__file__).parents[2] / "docs" / "migrate" / "nv-one-logger.md"


def test_imports_of_the_migration_page() -> None:
    """Each import that it recommends works."""
    pytest.importorskip("lightning")
    page = PAGE.read_text(encoding="utf-8").replace("(\n    ", "").replace(",\n)", "")
    found = re.findall(r"^from (stepwell\S*) import (.+)$", page, re.MULTILINE)
    assert len(found) == 5
    for module, names in found:
        for name in names.split(", "):
            assert hasattr(importlib.import_module(module), name)


def test_the_original_need_not_be_installed() -> None:
    """``install`` lets a program that imports nv_one_logger have this package."""
    code = """
import sys
sys.modules.pop("nv_one_logger", None)
from stepwell.compat import one_logger
one_logger.install()
one_logger.install()
import nv_one_logger.training_telemetry.api.callbacks as CB
from nv_one_logger.api.config import OneLoggerConfig
from nv_one_logger.training_telemetry.api.training_telemetry_provider import TrainingTelemetryProvider
assert CB.on_app_start is one_logger.on_app_start
assert OneLoggerConfig is one_logger.OneLoggerConfig
print({"torch", "lightning", "pydantic"} & set(sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


def test_install_after_the_original(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of them in one process would record half of it each."""
    monkeypatch.setitem(sys.modules, "nv_one_logger", sys)
    with pytest.raises(OneLoggerError, match=r"call install\(\) earlier"):
        ol.install()


# Configuration


def test_telemetry_config_of_the_provider(provider: TrainingTelemetryProvider) -> None:
    """None until training is configured, then its fields with their values."""
    provider.with_base_config(_base()).configure_provider()
    assert provider.config.telemetry_config is None
    provider.set_training_telemetry_config(_training(train_iterations_target_or_fn=lambda: 9))
    config = provider.config
    assert config.telemetry_config is not None
    assert config.telemetry_config.global_batch_size == 8
    assert config.telemetry_config.train_iterations_target == 9
    assert (config.application_name, config.session_tag, config.world_size) == ("app", "tag", 1)


def test_unknown_targets(provider: TrainingTelemetryProvider) -> None:
    """Lightning's max_steps of -1, and what is multiplied with it, are absent."""
    provider.with_base_config(
        _base(
            telemetry_config=_training(
                train_iterations_target_or_fn=-1, train_samples_target_or_fn=-8
            )
        )
    ).configure_provider()
    with application(), training_loop(0, None, lambda: -1, -8) as span:
        assert span.attributes.train_iterations_target is None
        assert span.attributes.train_samples_target is None
        assert span.attributes.train_iterations_start == 0


def test_assigning_to_fields(provider: TrainingTelemetryProvider) -> None:
    """Values that are assigned before the provider is configured count; wrong values are refused at once."""
    config = _base()
    provider.with_base_config(config)
    config.session_tag_or_fn = "later"
    config.telemetry_config = _training()
    config.telemetry_config.log_every_n_train_iterations = 7
    with pytest.raises(OneLoggerError, match="world_size_or_fn must be"):
        config.world_size_or_fn = 0
    provider.configure_provider()
    assert provider.config.session_tag == "later"
    assert provider.config.telemetry_config.log_every_n_train_iterations == 7  # type: ignore[union-attr]


def test_unknown_fields_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """As in the original, but with a warning that names them."""
    config = _base(perf_tga="fast")
    assert not hasattr(config, "perf_tga")
    assert "OneLoggerConfig: unknown field perf_tga" in caplog.text


def test_fields_of_the_application_in_both(provider: TrainingTelemetryProvider) -> None:
    """Those of the application's configuration count; two functions cannot contradict each other."""
    training = _training(world_size_or_fn=lambda: 3)
    config = OneLoggerConfig(
        application_name="a", world_size_or_fn=lambda: 5, telemetry_config=training
    )
    provider.with_base_config(config).configure_provider()
    assert provider.config.world_size == 5
    provider.reset()
    provider.with_base_config(OneLoggerConfig(application_name="a", world_size_or_fn=lambda: 5))
    provider.configure_provider()
    provider.set_training_telemetry_config(training)
    assert provider.config.world_size == 5


@pytest.mark.parametrize(
    ("strategy", "raises"),
    [
        (OneLoggerErrorHandlingStrategy.PROPAGATE_EXCEPTIONS, True),
        (OneLoggerErrorHandlingStrategy.DISABLE_QUIETLY_AND_REPORT_METRIC_ERROR, False),
        (None, False),
    ],
)
def test_error_handling_strategy(
    provider: TrainingTelemetryProvider, strategy: Any, raises: bool
) -> None:
    """Problems are raised only where that is asked for; the run has a record of them otherwise."""
    given = {} if strategy is None else {"error_handling_strategy": strategy}
    kept = Kept()
    provider.with_base_config(_base(**given)).with_exporter(kept).configure_provider()
    assert provider.config.error_handling_strategy is (
        strategy or OneLoggerErrorHandlingStrategy.DISABLE_QUIETLY_AND_REPORT_METRIC_ERROR
    )
    on_app_start()
    if raises:
        with pytest.raises(OneLoggerError, match="ended without a matching start"):
            ol.on_train_end()
    else:
        ol.on_train_end()
    on_app_end()
    assert len(kept.problems) == (0 if raises else 1)


def test_logger_config(
    provider: TrainingTelemetryProvider, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The level and files are those of the logger ``stepwell``; without a path there is no file."""
    logger = logging.getLogger("stepwell")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "level", logging.NOTSET)
    provider.with_base_config(_base(logger_config={"log_level": "ERROR"})).configure_provider()
    assert logger.level == logging.ERROR
    assert logger.handlers == []
    logs = LoggerConfig("INFO", "%(message)s", log_file_path_for_err=tmp_path / "problems.err")
    provider.reset()
    provider.with_base_config(_base(logger_config=logs)).configure_provider()
    assert provider.config.logger_config is logs
    logger.warning("fine")
    logger.error("broken")
    (handler,) = logger.handlers
    handler.close()
    assert (tmp_path / "problems.err").read_text() == "broken\n"
    assert not (tmp_path / "onelogger.log").exists()


def test_ranks_that_do_not_record(provider: TrainingTelemetryProvider) -> None:
    """The same code runs there; its spans do nothing."""
    kept = Kept()
    config = _base(enable_for_current_rank=False, telemetry_config=_training())
    provider.with_base_config(config).with_exporter(kept).configure_provider()
    assert (provider.one_logger_ready, provider.one_logger_enabled) == (True, False)
    assert OneLoggerProvider.instance() is provider
    with application() as app, timed_span("own") as span:
        app.add_attribute("a", 1)
        get_recorder().event(span, Event.create("e"))
        get_recorder().stop(get_recorder().start("x"))
    assert (kept.spans, kept.ready, kept.closed) == ([], False, False)


# The provider


def test_statements_one_by_one(provider: TrainingTelemetryProvider, tmp_path: Path) -> None:
    """Nothing that a statement says is lost, chained or not."""
    kept = Kept()
    provider.with_base_config(_base())
    provider.with_config_override({"telemetry_config": {"global_batch_size": 4}})
    provider.with_exporter(kept)
    provider.with_exporter(FileExporter(file_path=tmp_path / "out.json"))
    provider.with_export_customization(
        ExportCustomizationMode.WHITELIST_SPANS, [StandardSpanName.APPLICATION]
    )
    provider.configure_provider()
    with application(), training_loop(train_iterations_start=0), timed_span("own"):
        pass
    assert [span.name for span in kept.ended] == ["application"]
    names = {
        json.loads(line).get("name") for line in (tmp_path / "out.json").read_text().splitlines()
    }
    assert "training_loop" not in names
    assert provider.config.telemetry_config.global_batch_size == 4  # type: ignore[union-attr]


def test_base_config_twice(provider: TrainingTelemetryProvider) -> None:
    """Two of them before the last step are a mistake."""
    provider.with_base_config(_base())
    with pytest.raises(OneLoggerError, match="called twice"):
        provider.with_base_config(_base())


def test_core_provider_and_recorder(provider: TrainingTelemetryProvider) -> None:
    """Programs that are not about training give their exporters to a recorder."""
    kept = Kept()
    recorder = DefaultRecorder([kept], ExportCustomizationMode.BLACKLIST_SPANS, ["left out"])
    OneLoggerProvider.instance().configure(_base(), recorder)
    span = recorder.start("work", Attributes({"a": 1}), Attributes({"b": 2}))
    recorder.stop(recorder.start("left out", parent_span=span), Attributes({"c": 3}))
    assert recorder.get_active_spans_by_name("work") == [span]
    assert recorder.get_active_spans_by_name("work")[0] is span
    recorder.close()
    assert not span.active
    assert kept.closed
    (ended,) = kept.ended
    assert ended.attributes["a"].value == 1
    assert ended.id == kept.spans[0].id
    assert get_recorder().get_active_spans_by_name("work") == []


@pytest.mark.parametrize("how", ["list", "objects", "path", "variable", "folder"])
def test_exporters_from_a_configuration(
    provider: TrainingTelemetryProvider, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str
) -> None:
    """From a list, a file, the original's variable or its file in the folder; its classes are ours."""
    entries = [
        {
            "class_name": "nv_one_logger.exporter.file_exporter.FileExporter",
            "config": {"file_path": "a.json"},
        },
        {"class_name": f"{__name__}.Kept", "config": {}},
        {"class_name": "no.such.Exporter", "enabled": False},
    ]
    file = tmp_path / "one_logger_exporters_config.yaml"
    provider.with_base_config(_base())
    if how == "list":
        provider.with_export_config(exporters_config=entries)
    elif how == "objects":
        provider.with_export_config([ExporterConfig(**entry) for entry in entries])
    else:
        place = file if how == "folder" else tmp_path / "mine.json"
        place.write_text(json.dumps({"exporters": entries}))
        if how == "variable":
            monkeypatch.setenv("ONE_LOGGER_EXPORTER_CONFIG_PATH", str(place))
        provider.with_export_config(config_file_path=str(place) if how == "path" else None)
    provider.configure_provider()
    assert provider.run is not None
    first, second = (delivery.exporter for delivery in provider.run.exporters)
    assert isinstance(first, FileExporter)
    assert isinstance(second.exporter, Kept)
    with application():
        pass
    assert [span.name for span in second.exporter.ended] == ["application"]
    assert "application" in (tmp_path / "a.json").read_text()


def test_no_configuration_of_exporters(
    provider: TrainingTelemetryProvider,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing found is fine; a file that cannot be read is a warning, since no line of code names it."""
    provider.with_base_config(_base()).with_export_config()
    assert caplog.text == ""
    monkeypatch.setenv("ONE_LOGGER_EXPORTER_CONFIG_PATH", "missing.yaml")
    provider.with_export_config()
    assert "missing.yaml cannot be read" in caplog.text
    with pytest.raises(OneLoggerError, match="cannot be read"):
        provider.with_export_config(config_file_path="missing.yaml")


# Spans, events and attributes


def test_spellings_of_a_span(provider: TrainingTelemetryProvider) -> None:
    """Live records have the names of the original, and their values are ``Attribute`` objects."""
    provider.with_base_config(_base()).configure_provider()
    recorder = provider.recorder
    app = on_app_start()
    span = recorder.start("own", span_attributes=Attributes({"a": 1}))
    assert isinstance(span, Span)
    assert (span.name, span.name_str, span.active) == ("own", "own", True)
    assert span.parent_span == app
    assert span.attributes["a"] == Attribute("a", 1)
    assert span.updated_attributes == {}
    assert span.add_attribute("b", "two") == Attribute("b", "two")
    span.add_attributes(Attributes({"a": 2}))
    assert span.updated_attributes.to_json() == {"a": 2, "b": "two"}
    event = Event.create("seen", Attributes({"x": 0.5}))
    assert recorder.event(span, event) is event
    assert recorder.event(span=span, event=Event.create("kw")).name == "kw"
    error = recorder.error(span, "broken", ValueError("why"))
    assert isinstance(error, ErrorEvent)
    assert (error.error_message, error.exception_type, error.exception_message) == (
        "broken",
        "ValueError",
        "why",
    )
    with pytest.raises(OneLoggerError, match="still open"):
        span.duration_msec()
    recorder.stop(span, stop_event_attributes=Attributes({"c": 3}))
    recorder.stop(span)
    names = [event.name_str for event in span.events]
    assert names == ["span_start", "seen", "kw", "error", "span_stop"]
    assert span.start_event.name == StandardEventName.SPAN_START
    assert span.stop_event is not None
    assert span.stop_event.timestamp.seconds_since_epoch == pytest.approx(time.time(), abs=60)
    assert span.duration_msec() == span.attributes["duration_msec"].value
    assert span.attributes.get_int_value("c") == 3
    assert span.to_json()["id"] == str(span.id)
    on_app_end()


def test_spans_of_context_managers(provider: TrainingTelemetryProvider) -> None:
    """They are such spans too, typed where the span is a standard one; and they are decorators."""
    provider.with_base_config(_base(telemetry_config=_training(log_every_n_train_iterations=2)))
    provider.configure_provider()

    @application()
    def main() -> Span:
        with training_loop(train_iterations_start=4) as loop:
            assert isinstance(loop.attributes, ol.TrainingLoopAttributes)
            assert loop.attributes.train_samples_start == 32
            assert get_recorder().get_active_spans_by_name("training_loop")[0] is loop
            for _ in range(2):
                with training_iteration() as span:
                    assert span.parent_span is loop
        return loop

    loop = main()
    (update,) = [e for e in loop.events if e.name == "training_metrics_update"]
    assert isinstance(update.attributes, ol.TrainingMetricsUpdateAttributes)
    assert (update.attributes.current_iteration, update.attributes.num_train_samples) == (5, 16)
    assert update.attributes["timestamp_msec"].value == update.timestamp.milliseconds_since_epoch
    assert update.attributes.latest_loss is None
    with pytest.raises(AttributeError):
        _ = update.attributes.nothing


def test_times(provider: TrainingTelemetryProvider) -> None:
    """Starts, ends and events take a ``TracingTimestamp``; one of long ago is fine."""
    with FakeClock():
        provider.with_base_config(_base()).configure_provider()
        recorder = provider.recorder
        now = TracingTimestamp.now()
        hour_ago = TracingTimestamp.for_timestamp(now.seconds_since_epoch - 3600)
        span = recorder.start("long", start_time=hour_ago)
        event = span.add_event(Event.create("then", timestamp=hour_ago))
        recorder.stop(span, stop_time=now)
        provider.reset()
    assert span.duration_msec() == 3_600_000
    assert event.timestamp == hour_ago
    assert TracingTimestamp.from_json(hour_ago.to_json()) == hour_ago
    assert now.perf_counter_seconds - hour_ago.perf_counter_seconds == pytest.approx(3600)


def test_values_of_one_logger() -> None:
    """Attributes, events and spans that are only values, as tests of exporters make them."""

    class Own(Enum):
        NAME = "own"

    attributes = Attributes({"a": 1}).add("b", True)
    attributes.add_attribute(Attribute("c", "x"))
    assert {name: one.value for name, one in attributes.items()} == {"a": 1, "b": True, "c": "x"}
    assert Attributes.merge(attributes, Attributes({"a": 2})).get_int_value("a") == 2
    assert attributes.get_bool_value("b") is True
    assert attributes.get_str_value("none") is None
    with pytest.raises(OneLoggerError, match="must be a float"):
        attributes.get_float_value("c")
    event = Event.create(Own.NAME, attributes)
    assert (event.name, event.name_str) == (Own.NAME, "own")
    assert Event.from_json(event.to_json()) == Event.create("own", attributes, event.timestamp)
    error = ErrorEvent.create("broken", ValueError("why"))
    assert Event.from_json(error.to_json()).error_message == "broken"  # type: ignore[attr-defined]
    span = Span.create(Own.NAME, span_attributes=attributes)
    span.stop()
    assert [one.name_str for one in span.events] == ["span_start", "span_stop"]
    assert span.duration_msec() >= 0
    assert not stepwell.active_run()


@pytest.mark.parametrize(
    ("made_by", "values"),
    [
        (ol.TrainingLoopAttributes, {"train_iterations_start": 0, "train_samples_start": 0}),
        (
            ol.CheckpointSaveSpanAttributes,
            {
                "checkpoint_strategy": CheckPointStrategy.ASYNC,
                "current_iteration": 3,
                "save_checkpoint_attempt_count": 1,
            },
        ),
        (
            ol.OneLoggerInitializationAttributes,
            {
                "world_size": 2,
                "one_logger_training_telemetry_version": "2.3.1",
                "enable_for_current_rank": True,
                "session_tag": "s",
                "is_baseline_run": False,
                "summary_data_schema_version": "1.0.0",
                "node_name": "n1",
                "rank": 0,
            },
        ),
        (
            ol.TrainingTelemetryAttributes,
            {"perf_tag": ["a", "b"], "global_batch_size": 8, "log_every_n_train_iterations": 5},
        ),
        (
            ol.TrainingMetricsUpdateAttributes,
            {
                "train_iterations_start": 0,
                "current_iteration": 4,
                "num_iterations": 5,
                "train_samples_start": 0,
                "num_train_samples": 40,
                "interval": 5,
                "avg_iteration_time_sec": 0.5,
                "min_iteration_time_sec": 0.25,
                "max_iteration_time_sec": 1.0,
                "total_iteration_time_sec": 2.5,
            },
        ),
        (ol.ValidationMetricsUpdateAttributes, {"current_iteration": 4, "interval": 5}),
        (ol.TestingMetricsUpdateAttributes, {"current_iteration": 4, "interval": 5}),
        (
            ol.SaveCheckpointSuccessEventAttributes,
            {
                "checkpoint_strategy": "sync",
                "current_iteration": 3,
                "first_successful_save_checkpoint_timestamp_sec": 1.7e9,
                "latest_successful_save_checkpoint_timestamp_sec": 1.7e9,
                "save_checkpoint_success_count": 1,
                "productive_train_iterations": 3,
                "productive_train_samples": 24,
                "productive_train_iterations_sec": 1.5,
                "productive_validation_iterations_sec": 0.0,
            },
        ),
        (
            ol.SyncCheckpointMetricsUpdateAttributes,
            {
                "save_checkpoint_sync_time_total_sec": 2.0,
                "save_checkpoint_sync_time_min_sec": 1.0,
                "save_checkpoint_sync_time_max_sec": 1.0,
            },
        ),
    ],
)
def test_attribute_classes(made_by: Any, values: dict[str, Any]) -> None:
    """``create`` asks for what the original asks for, and not for what only stepwell has."""
    made = made_by.create(**values)
    assert made.to_json() == values
    assert {name: getattr(made, name) for name in values} == values
    assert made_by.create(*values.values()) == made
    name = next(iter(values))
    with pytest.raises(OneLoggerError, match=f"{name} is missing"):
        made_by.create(**{**values, name: None})
    with pytest.raises(OneLoggerError, match="is not an attribute of it"):
        made_by.create(**values, nothing=1)


# Exporters


def test_an_exporter_of_the_original_interface(provider: TrainingTelemetryProvider) -> None:
    """It gets every span and event with parents, attributes and times, and is closed with the application."""
    kept = Kept()
    provider.with_base_config(_base(telemetry_config=_training(log_every_n_train_iterations=1)))
    provider.with_exporter(kept).with_exporter(kept).configure_provider()
    assert len(provider.run.exporters) == 1  # type: ignore[union-attr]
    with application(), training_loop(train_iterations_start=0) as loop:
        loop.add_attribute("late", 1)
        with training_iteration():
            pass
        with pytest.raises(ValueError, match="dark"), timed_span("own", Attributes({"x": 1})):
            raise ValueError("dark")
    assert (kept.ready, kept.closed) == (False, True)
    names = ["application", "training_loop", "own"]
    assert [span.name for span in kept.spans] == names
    assert [span.name for span in kept.ended] == names[::-1]
    app, looped, own = kept.spans
    assert (own.parent_span, looped.parent_span, app.parent_span) == (looped, app, None)
    assert looped.id == loop.id
    assert (looped.attributes["late"].value, looped.attributes.train_iterations_start) == (1, 0)
    assert "train_iterations_start" not in looped.updated_attributes
    ((error, of),) = kept.errors
    assert (of, error.exception_type, error.error_message) == (own, "ValueError", "dark")
    updates = [(e, s) for e, s in kept.events if e.name == "training_metrics_update"]
    ((update, of),) = updates
    assert (of, update.attributes.num_iterations) == (looped, 1)
    assert [e.name_str for e in looped.events] == [
        "span_start",
        "training_metrics_update",
        "span_stop",
    ]


class Lines(BaseJsonExporter):
    """Writes the original's lines to its own file."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = Path(path)

    def _write(self, json_dict: dict[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(json_dict) + "\n")


def _job(provider: TrainingTelemetryProvider, *exporters: Any) -> None:
    training = _training(log_every_n_train_iterations=2)
    provider.with_base_config(_base(telemetry_config=training))
    for exporter in exporters:
        provider.with_exporter(exporter)
    provider.configure_provider()
    with application(), training_loop(train_iterations_start=0):
        for _ in range(2):
            with training_iteration():
                pass
        with ol.checkpoint_save(global_step=2), timed_span("write"):
            pass
        get_recorder().telemetry_data_error("half of it")
        with pytest.raises(ValueError, match="dark"), timed_span("own"):
            raise ValueError("dark")


def test_lines_of_an_own_json_exporter(provider: TrainingTelemetryProvider, tmp_path: Path) -> None:
    """They have the format of the original's files, which ``stepwell import`` reads."""
    _job(provider, Lines("lines.json"))
    lines = [json.loads(line) for line in Path("lines.json").read_text().splitlines()]
    assert [line["count"] for line in lines] == list(range(1, len(lines) + 1))
    ends = [line["name"] for line in lines if line["type"] in ("complete", "stop")]
    assert ends == ["write", "checkpoint_save_sync", "own", "training_loop", "application"]
    assert [line["name"] for line in lines if line["type"] == "complete"] == ["write"]
    provider.reset()
    imported = import_trace(Path("lines.json"), tmp_path / "imported")
    spans = stepwell.open_run(imported).spans().collect()
    assert Counter(spans["name"]) == Counter(ends)


def test_exporters_of_the_original_itself(provider: TrainingTelemetryProvider) -> None:
    """Its own file exporter, fed by stepwell, writes what an exporter derived from ours writes."""
    theirs = pytest.importorskip(
        "nv_one_logger.exporter.file_exporter", reason="needs nv-one-logger"
    )
    _job(provider, theirs.FileExporter(Path("theirs.json")), Lines("ours.json"))
    both = [Path(name).read_text().splitlines() for name in ("theirs.json", "ours.json")]
    assert [json.loads(line) for line in both[0]] == [json.loads(line) for line in both[1]]


def test_exporters_that_packages_bring(
    provider: TrainingTelemetryProvider,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Those of the original's entry points are used; one that cannot be had is a warning."""
    points = [
        EntryPoint(n, f"{__name__}:{n}", "nv_one_logger.exporter_configs")
        for n in ("Brought", "Gone")
    ]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points)
    provider.with_base_config(_base()).with_export_config().configure_provider()
    (delivery,) = provider.run.exporters  # type: ignore[union-attr]
    assert isinstance(delivery.exporter.exporter, Kept)
    assert "Training continues without this exporter" in caplog.text


class Brought:
    """An entry point of a package."""

    @staticmethod
    def get_default_config() -> dict[str, Any]:
        return {"class_name": f"{__name__}.Kept", "config": {}, "enabled": True}


def test_attributes_that_changed() -> None:
    """An exporter gets the attributes that are new at the end, and those that have changed."""
    kept = Kept()
    adapted = AdaptedExporter(kept)
    adapted.open(Source("run", 0, 0, 1, "rank-0", "host", 1, "app", started_ns=T0))
    about = (7, None, "own", None, "main", T0)
    adapted.export([SpanRecord("start", *about, None, "open", {"a": 1, "b": 1})])
    adapted.export([EventRecord("attributes", "", 7, "main", T0, {"late": 1})])
    adapted.export([SpanRecord("stop", *about, T0 + 2_500_000, "ok", {"a": 2, "b": 1, "c": 3})])
    (span,) = kept.ended
    assert span.updated_attributes.to_json() == {"a": 2, "c": 3, "late": 1, "duration_msec": 2}
    assert span.attributes["b"].value == 1


def test_another_application(
    provider: TrainingTelemetryProvider, caplog: pytest.LogCaptureFixture
) -> None:
    """Records between two applications are only in the run; the next application is exported again."""
    kept = Kept()
    provider.with_base_config(_base()).with_exporter(kept).configure_provider()
    with application():
        pass
    with timed_span("between"):
        pass
    with application():
        pass
    assert [span.name for span in kept.ended] == ["application", "application"]
    assert "Kept was closed at the end of the application" in caplog.text


def test_pauses_are_not_exported(caplog: pytest.LogCaptureFixture) -> None:
    """Garbage collections belong to no application: no exporter gets them, and none is late."""
    kept = Kept()
    adapted = AdaptedExporter(kept)
    adapted.open(Source("run", 0, 0, 1, "rank-0", "host", 1, "app", started_ns=T0))
    pause = SpanRecord("stop", 7, None, "gc", "runtime", "main", T0, T0 + 2_500_000, "ok", {})
    adapted.export([pause])
    adapted.close()
    adapted.export([pause])
    assert kept.spans == kept.ended == []
    assert "was closed at the end" not in caplog.text


class Broken(Kept):
    """Fails ``times`` times on spans that are called ``bad``."""

    times = 1

    def export_start(self, span: Span) -> None:
        if span.name == "bad" and self.times:
            self.times -= 1
            raise ExportError("not now")
        super().export_start(span)


@pytest.mark.parametrize("times", [1, 10_000])
def test_an_exporter_that_fails(
    provider: TrainingTelemetryProvider,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    times: int,
) -> None:
    """A record is given again, none twice; one that it never takes does not keep the others back."""
    monkeypatch.setattr("stepwell.telemetry.feed.FIRST_DELAY", 0.001)
    monkeypatch.setattr("stepwell.compat.one_logger.exporters.TRIES", 3)
    broken = Broken()
    broken.times = times
    provider.with_base_config(_base()).with_exporter(broken).configure_provider()
    with application():
        for name in ("good", "bad", "fine"):
            with timed_span(name):
                pass
    names = [span.name for span in broken.ended]
    assert names == (
        ["good", "bad", "fine", "application"] if times == 1 else ["good", "fine", "application"]
    )
    assert ("failed on bad" in caplog.text) is (times > 1)


def test_base_exporter() -> None:
    """It refuses to be used before and after; those of stepwell count as exporters too."""
    kept = Kept()
    span = Span.create("x")
    with pytest.raises(ExportError, match=r"before initialize\(\)"):
        kept.export_start(span)
    kept.initialize()
    kept.export_start(span)
    kept.close()
    with pytest.raises(OneLoggerError, match=r"after close\(\)"):
        kept.export_stop(span)
    assert isinstance(kept, Exporter)
    assert isinstance(FileExporter("x.json"), Exporter)
    with pytest.raises(TypeError):
        Exporter()  # type: ignore[abstract]


def test_logger_exporter(
    provider: TrainingTelemetryProvider, caplog: pytest.LogCaptureFixture
) -> None:
    """Each record is a line of the logger."""
    logger = logging.getLogger("telemetry lines")
    logger.setLevel(logging.INFO)
    provider.with_base_config(_base()).with_exporter(LoggerExporter(logger)).configure_provider()
    with application():
        pass
    lines = [record.getMessage() for record in caplog.records if record.name == logger.name]
    assert any(line.startswith("span stop application") for line in lines)


def test_otel_exporter(provider: TrainingTelemetryProvider) -> None:
    """Any exporter of OpenTelemetry's SDK gets ended spans with their events."""
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    from stepwell.compat.one_logger.otel.exporter.otel_exporter import OTelExporter

    exporter = memory.InMemorySpanExporter()
    provider.with_base_config(_base()).with_exporter(OTelExporter(exporter)).configure_provider()
    with application(), timed_span("own", Attributes({"a": 1})) as span:
        span.add_event(Event.create("seen", Attributes({"b": 2})))
    own, app = exporter.get_finished_spans()
    assert (own.name, app.name) == ("own", "application")
    assert own.parent.span_id == app.context.span_id
    assert own.attributes["a"] == 1
    assert [(event.name, event.attributes["b"]) for event in own.events] == [("seen", 2)]
    assert app.resource.attributes["service.name"] == "app"


@pytest.mark.full
def test_wandb_exporter(
    provider: TrainingTelemetryProvider, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Attributes are metrics of a W&B run, named by span, event and attribute."""
    pytest.importorskip("wandb")
    from stepwell.compat.one_logger.wandb.exporter.wandb_exporter import Config, WandBExporterAsync
    from tests.loggers.reading_back import wandb_records

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("STEPWELL_FINISH_TIMEOUT", "60")
    config = Config(project="p", save_dir=tmp_path / "wandb", entity="e", host=None, api_key=None)
    provider.with_base_config(_base(telemetry_config=_training(log_every_n_train_iterations=1)))
    provider.with_exporter(WandBExporterAsync(config)).configure_provider()
    with application(), training_loop(train_iterations_start=3), training_iteration():
        pass
    provider.reset()
    (file,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    rows = [
        record["history"]["item"] for record in wandb_records(file) if record["type"] == "history"
    ]
    values = {name: value for row in rows for name, value in row.items()}
    assert values["training_loop.train_iterations_start"] == 3
    assert values["training_loop.training_metrics_update.num_iterations"] == 1
    assert values["app_last_log_time"] == pytest.approx(time.time(), abs=600)


def test_the_recorded_span_is_at_hand(provider: TrainingTelemetryProvider) -> None:
    """Code that continues with stepwell's own interface gets the span behind the view."""
    provider.with_base_config(_base()).configure_provider()
    with timed_span("own") as span:
        assert isinstance(span.recorded, span_handle.Span)
        assert span.recorded.name == "own"
