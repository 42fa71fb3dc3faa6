"""The training interface as documented: the same sequences of calls, completed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import stepwell
import stepwell.testing
from stepwell import training
from stepwell._core.errors import StepwellError
from stepwell.exporters import Exporter, FileExporter, Record
from stepwell.telemetry import Attributes, Event, Span, timed_span
from stepwell.training import (
    ApplicationConfig,
    ExportCustomizationMode,
    TrainingTelemetryBuilder,
    TrainingTelemetryConfig,
    TrainingTelemetryProvider,
    application,
    on_app_end,
    on_app_start,
    on_model_init_end,
    on_model_init_start,
    on_train_start,
    on_training_single_iteration_end,
    on_training_single_iteration_start,
    training_iteration,
    training_loop,
)
from tests.nesting.tree import check_tree, edges, finished

EPOCHS, BATCHES = 2, 7
TREE = {
    ("application", None): 1,
    ("training_loop", "application"): 1,
    ("training_single_iteration", "training_loop"): EPOCHS * BATCHES,
}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test has its own folder and an unconfigured provider."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPWELL_STRICT", "1")
    provider = TrainingTelemetryProvider.instance()
    provider.reset()
    yield
    provider.reset()


def _config(**more: Any) -> TrainingTelemetryConfig:
    return TrainingTelemetryConfig(
        world_size_or_fn=5,
        is_log_throughput_enabled_or_fn=True,
        flops_per_sample_or_fn=100,
        global_batch_size_or_fn=32,
        log_every_n_train_iterations=10,
        application_name="test_app",
        perf_tag_or_fn="test_perf",
        session_tag_or_fn="test_session",
        **more,
    )


def _finished() -> tuple[Any, pl.DataFrame]:
    """The run that the provider started, finished, and its spans."""
    run = TrainingTelemetryProvider.instance().run
    assert run is not None
    spans = finished(run)
    return stepwell.open_run(run.path), spans


def _about(run: Any, name: str) -> list[dict[str, Any]]:
    events = run.events().collect().sort("time_ns").filter(pl.col("name") == name)
    return [json.loads(text) for text in events["attributes"]]


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_context_manager_block() -> None:
    """A decorated main, a loop and its iterations; configured by the builder before main is called."""

    @application()
    def main() -> None:
        with training_loop(train_iterations_start=0):
            for _ in range(EPOCHS):
                for _ in range(BATCHES):
                    with training_iteration():
                        pass

    config = _config()
    (
        TrainingTelemetryBuilder()
        .with_base_telemetry_config(config)
        .with_exporter(FileExporter(file_path=Path("training_telemetry.json")))
        .configure_provider()
    )
    main()
    exported = _lines(Path("training_telemetry.json"))
    run, spans = _finished()
    assert edges(spans) == TREE
    assert [u["current_iteration"] for u in _about(run, "training_metrics_update")] == [9, 13]
    (told,) = _about(run, "one_logger_initialization")
    assert (told["application_name"], told["session_tag"]) == ("test_app", "test_session")
    assert told["world_size"] == 5
    (about,) = _about(run, "update_training_telemetry_config")
    assert (about["perf_tag"], about["flops_per_sample"]) == ("test_perf", 100)
    # When main returns, the file has everything but the short spans.
    ended = {line["name"] for line in exported if line["type"] in ("stop", "complete")}
    assert ended == {"application", "training_loop"}


def test_callback_block() -> None:
    """Nobody calls on_train_end: the same tree and the same updates as with context managers."""

    def main() -> None:
        (
            TrainingTelemetryBuilder()
            .with_base_telemetry_config(_config())
            .with_exporter(FileExporter(file_path=Path("training_telemetry.json")))
            .configure_provider()
        )
        on_app_start()
        on_train_start(train_iterations_start=0)
        for _ in range(EPOCHS):
            for _ in range(BATCHES):
                on_training_single_iteration_start()
                on_training_single_iteration_end()
        on_app_end()

    main()
    run, spans = _finished()
    assert edges(spans) == TREE
    assert set(spans["status"]) == {"ok"}
    updates = _about(run, "training_metrics_update")
    assert [(u["current_iteration"], u["is_final"]) for u in updates] == [(9, False), (13, True)]


def test_core_block() -> None:
    """Configured twice in a row, an attribute on the loop's span, an own span and an own event in it."""
    config = _config()
    (
        TrainingTelemetryBuilder()
        .with_base_telemetry_config(config)
        .with_exporter(FileExporter(file_path=Path("training_telemetry.json")))
        .with_export_customization(
            export_customization_mode=ExportCustomizationMode.WHITELIST_SPANS,
            span_name_filter=["my_custom_span"],
        )
        .configure_provider()
    )
    TrainingTelemetryProvider.instance().configure(
        config=config,
        exporters=[],
    )
    with training_loop(train_iterations_start=0) as span:
        span.add_attribute("my_custom_attribute", "my_custom_value")
        with timed_span(
            "my_custom_span",
            span_attributes=Attributes({"my_custom_attribute": "my_custom_value"}),
        ):
            TrainingTelemetryProvider.instance().recorder.event(
                Event.create("my_event", Attributes({"my_custom_attribute": 7}))
            )
    run, spans = _finished()
    assert edges(spans) == {("training_loop", None): 1, ("my_custom_span", "training_loop"): 1}
    for text in spans["attributes"]:
        assert json.loads(text)["my_custom_attribute"] == "my_custom_value"
    assert _about(run, "my_event") == [{"my_custom_attribute": 7}]
    lines = _lines(Path("training_telemetry.json"))
    # The second configuration has neither taken the exporter away nor added it again.
    assert [(line["type"], line["name"]) for line in lines if line["type"] != "source"] in (
        [("complete", "my_custom_span"), ("event", "my_event")],
        [("start", "my_custom_span"), ("event", "my_event"), ("stop", "my_custom_span")],
    )


def test_configuration_in_two_parts() -> None:
    """The application's part first, the training's when the application has started."""
    base = ApplicationConfig(
        application_name="test_app", session_tag_or_fn="test_session", world_size_or_fn=5
    )
    part = TrainingTelemetryConfig(
        world_size_or_fn=5,
        is_log_throughput_enabled_or_fn=True,
        flops_per_sample_or_fn=100,
        global_batch_size_or_fn=32,
        log_every_n_train_iterations=10,
        perf_tag_or_fn="test_perf",
    )
    provider = TrainingTelemetryProvider.instance()
    exporter = FileExporter(file_path=Path("training_telemetry.json"))
    provider.with_base_config(base).with_exporter(exporter).configure_provider()
    on_app_start()
    provider.set_training_telemetry_config(part)
    on_model_init_start()
    on_model_init_end()
    on_train_start(train_iterations_start=0)
    for _ in range(10):
        on_training_single_iteration_start()
        on_training_single_iteration_end()
    on_app_end()
    run, spans = _finished()
    assert edges(spans)["model_initialization", "application"] == 1
    (told,) = _about(run, "one_logger_initialization")
    (about,) = _about(run, "update_training_telemetry_config")
    assert "perf_tag" not in told
    assert (about["perf_tag"], about["log_every_n_train_iterations"]) == ("test_perf", 10)
    (update,) = _about(run, "training_metrics_update")
    assert update["total_flops"] == 10 * 32 * 100
    assert run.labels == {
        "application_name": "test_app",
        "session_tag": "test_session",
        "perf_tag": "test_perf",
    }


def test_configurations_that_contradict_each_other() -> None:
    """Two values for one field are refused by name, and what was in force stays."""
    provider = TrainingTelemetryProvider.instance()
    provider.configure(ApplicationConfig(application_name="a", world_size_or_fn=5))
    on_app_start()
    with pytest.raises(StepwellError, match="world_size_or_fn is 5 in one and 4 in the other"):
        provider.set_training_telemetry_config(TrainingTelemetryConfig(world_size_or_fn=4))
    assert provider.config.world_size == 5
    assert not provider.config.has_telemetry_config
    provider.set_training_telemetry_config(TrainingTelemetryConfig(perf_tag_or_fn="p"))
    assert provider.config.perf_tag == "p"
    on_app_end()
    run, _ = _finished()
    assert len(_about(run, "update_training_telemetry_config")) == 1


@pytest.mark.parametrize(
    "config", ["test_app", {"application_name": "a"}, 5, TrainingTelemetryConfig]
)
def test_what_is_no_configuration(config: Any) -> None:
    """Something else in the place of a configuration is refused, and starts no run."""
    provider = TrainingTelemetryProvider.instance()
    with pytest.raises(StepwellError, match="must be an ApplicationConfig or a Training"):
        provider.configure(config)
    with pytest.raises(StepwellError, match="must be a TrainingTelemetryConfig"):
        provider.set_training_telemetry_config(config)
    assert provider.run is None
    assert not provider.is_configured


def test_provider_can_be_reset() -> None:
    """After a reset it is as new, the run that it had started is finished, and the next one is another."""
    provider = TrainingTelemetryProvider.instance()
    with pytest.raises(StepwellError, match="not configured"):
        _ = provider.config
    provider.configure(_config(strict=True))
    first = provider.run
    assert first is not None
    provider.reset()
    assert TrainingTelemetryProvider.instance() is provider
    assert first.status == "finished"
    assert (provider.run, provider.is_configured, provider.job) == (None, False, None)
    provider.configure(TrainingTelemetryConfig(application_name="other"))
    assert provider.config.session_tag is None
    run, _ = _finished()
    assert run.id != first.id
    assert run.labels == {"application_name": "other"}


class Counts(Exporter):
    """An exporter that counts."""

    def __init__(self) -> None:
        self.opened = 0
        self.names: list[str] = []

    def open(self, source: Any) -> None:
        self.opened += 1

    def export(self, records: Any) -> None:
        found: list[Record] = list(records)
        self.names += [record.name for record in found if record.type == "stop"]


def test_configuring_twice_keeps_exporters() -> None:
    """Exporters are added, none is lost, and one that is given again is not fed twice."""
    first, second = Counts(), Counts()
    provider = TrainingTelemetryProvider.instance()
    provider.configure(_config(), [first])
    run = provider.run
    provider.configure(exporters=[second])
    provider.configure(_config(), [first])
    assert provider.run is run
    with application(), timed_span("mine"):
        pass
    assert (first.opened, second.opened) == (1, 1)
    assert sorted(first.names) == sorted(second.names) == ["application", "mine"]


def test_run_that_is_active_already(tmp_path: Path) -> None:
    """A run that the user has started is recorded into, labelled, and not finished by the provider."""
    own = stepwell.init("mine", dir=tmp_path / "elsewhere")
    provider = TrainingTelemetryProvider.instance()
    provider.configure(_config())
    assert provider.run is own
    with application(), training_loop(), training_iteration():
        pass
    provider.reset()
    assert own.status == "running"
    with own.span("after"):
        pass
    spans = finished(own)
    assert set(spans["name"]) == {
        "application",
        "training_loop",
        "training_single_iteration",
        "after",
    }
    assert not Path("runs").exists()
    assert stepwell.open_run(own.path).labels["session_tag"] == "test_session"


def test_standard_spans_without_a_provider(tmp_path: Path) -> None:
    """In a run of one's own the standard spans need no configuration."""
    own = stepwell.init("mine", dir=tmp_path / "elsewhere")
    with application(), training_loop(5), training_iteration():
        pass
    run = stepwell.open_run(own.path)
    assert edges(finished(own))["training_single_iteration", "training_loop"] == 1
    (update,) = _about(run, "training_metrics_update")
    assert update["current_iteration"] == 5


# Nothing is recorded

STARTS: dict[str, Callable[[], Any]] = {
    **{
        name: getattr(training, name)
        for name in training.__all__
        if name.startswith("on_") and name.endswith("_start")
    },
    "on_save_checkpoint_start": lambda: training.on_save_checkpoint_start(5),
}
ENDS: dict[str, Callable[[], Any]] = {
    **{
        name: getattr(training, name)
        for name in training.__all__
        if name.startswith("on_") and not name.endswith("_start")
    },
    "on_save_checkpoint_success": lambda: training.on_save_checkpoint_success(5),
    "on_save_checkpoint_failure": lambda: training.on_save_checkpoint_failure(5, "why"),
}
BLOCKS: dict[str, Callable[[], Any]] = {
    **{
        name: getattr(training, name)
        for name in (
            *("application", "distributed_init", "dataloader_init", "model_init"),
            *("optimizer_init", "checkpoint_load", "training_loop", "training_iteration"),
            *("data_loading", "model_forward", "zero_grad", "model_backward", "optimizer_update"),
            *("validation_loop", "validation_iteration", "testing_loop", "testing_iteration"),
            "checkpoint_save_finalization",
        )
    },
    "checkpoint_save": lambda: training.checkpoint_save(5),
    "sized iteration": lambda: training_iteration(samples=3, tokens=4, optimizer_step=False),
}


def _does_nothing(span: Span) -> None:
    """Whether a span can be used like any other, and leaves nothing."""
    assert isinstance(span, Span)
    span.add_attribute("name", "value")
    span.add_attributes({"more": 1})
    span.add_event(Event.create("event"))
    span.add_event("event", {"a": 1})
    span.record_error(ValueError())
    span.stop({"late": 1})
    assert not span.active
    assert (span.attributes, span.events, span.parent, span.id) == ({}, [], None, 0)
    assert span.duration_ns == span.duration_msec == span.duration == 0
    assert "not recorded" in repr(span)


def _use_everything() -> None:
    for start in STARTS.values():
        _does_nothing(start())
    for end in ENDS.values():
        assert end() is None
    for block in BLOCKS.values():
        with block() as span:
            _does_nothing(span)

        @block()
        def work(x: int) -> int:
            return x + 1

        assert work(1) == 2
        error = ValueError("passes")
        with pytest.raises(ValueError, match="passes") as caught, block():
            raise error
        assert caught.value is error


def test_without_a_run() -> None:
    """Before anything is configured every call works and records nothing."""
    _use_everything()
    with timed_span("mine") as span:
        _does_nothing(span)
    assert os.listdir() == []


def test_mode_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """With STEPWELL_MODE=off the same program runs, and leaves no file at all."""
    monkeypatch.setenv("STEPWELL_MODE", "off")
    provider = TrainingTelemetryProvider.instance()
    exporter = Counts()
    provider.configure(_config(), [FileExporter(file_path="telemetry.json"), exporter])
    assert provider.is_configured
    _use_everything()
    with timed_span("mine") as span:
        _does_nothing(span)
    provider.recorder.event(Event.create("event"))
    provider.set_training_telemetry_config(_config())
    provider.reset()
    assert os.listdir() == []
    assert exporter.opened == 0


@pytest.mark.parametrize("off", [False, lambda: False])
def test_rank_that_does_not_record(off: Any) -> None:
    """On a rank that is switched off no run is started, and every span is a do-nothing one."""
    provider = TrainingTelemetryProvider.instance()
    exporter = Counts()
    provider.configure(_config(enable_for_current_rank=off), [exporter])
    assert provider.is_configured
    assert provider.run is None
    _use_everything()
    with timed_span("mine") as span:
        _does_nothing(span)
    assert os.listdir() == []
    assert exporter.opened == 0
    # Switched on again, it records.
    provider.configure(_config(enable_for_current_rank=lambda: True))
    with application() as span:
        assert span.active
    assert edges(_finished()[1]) == {("application", None): 1}


def test_rank_that_records_no_training_but_its_own_spans(tmp_path: Path) -> None:
    """In a run of the user's own, only the standard spans are left out."""
    own = stepwell.init("mine", dir=tmp_path / "elsewhere")
    TrainingTelemetryProvider.instance().configure(_config(enable_for_current_rank=False))
    _use_everything()
    with own.span("mine"), training_iteration():
        pass
    assert edges(finished(own)) == {("mine", None): 1}
    assert stepwell.open_run(own.path).events().collect().height == 0


def test_logging_can_be_disabled_by_force() -> None:
    """force_disable_logging leaves all training out until the provider is configured again."""
    provider = TrainingTelemetryProvider.instance()
    provider.configure(_config())
    provider.force_disable_logging()
    _use_everything()
    provider.configure(_config())
    with application():
        pass
    assert edges(_finished()[1]) == {("application", None): 1}


def test_strictness_of_the_environment_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a configuration that asks for it is strict, and it does not loosen what a test asked for."""
    monkeypatch.delenv("STEPWELL_STRICT")
    provider = TrainingTelemetryProvider.instance()
    with stepwell.testing.recorded():
        provider.configure(_config())
        with pytest.raises(StepwellError):
            on_app_end()
    provider.configure(_config(strict=True))
    with pytest.raises(StepwellError):
        on_app_end()
    provider.configure(_config())
    on_app_end()
    check_tree(_finished()[1])
