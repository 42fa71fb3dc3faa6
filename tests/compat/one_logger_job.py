"""A training job written for nv-one-logger; ROOT stands for the package that its names come from.

Time passes only where it says ``advance``, so that both packages measure the same.
"""

ORIGINAL_CLOCK = """
import time

shown = [1.7e9, 1e6]
time.time, time.perf_counter = lambda: shown[0], lambda: shown[1]


def advance(seconds):
    shown[:] = [clock + seconds for clock in shown]
"""

OUR_CLOCK = """
from stepwell.testing import FakeClock

clock = FakeClock(1.7e9, 1e6)
clock.__enter__()
advance = clock.advance
"""

JOB = """
import json
from enum import Enum
from pathlib import Path

from ROOT.api.config import OneLoggerConfig
from ROOT.api.timed_span import get_recorder, timed_span
from ROOT.core.attributes import Attributes
from ROOT.core.event import Event
from ROOT.training_telemetry.api import callbacks as on
from ROOT.training_telemetry.api import context
from ROOT.training_telemetry.api.config import TrainingTelemetryConfig
from ROOT.training_telemetry.api.training_telemetry_provider import TrainingTelemetryProvider


class Own(str, Enum):
    AUGMENT = "augment"

    def __str__(self):
        return self.value


class Records:
    # An exporter of the original interface, which keeps what it is given.
    def __init__(self):
        self.lines = []
        self.states = []

    def initialize(self):
        self.states.append("initialized")

    def close(self):
        self.states.append("closed")

    def add(self, kind, name, span, attributes):
        above = None if span is None or span.parent_span is None else span.parent_span.name_str
        self.lines.append([kind, name, above, attributes.to_json()])

    def export_start(self, span):
        assert span.active and span.stop_event is None
        assert span.events[0].name_str == span.start_event.name_str == "span_start"
        self.add("start", span.name_str, span, span.attributes)

    def export_stop(self, span):
        assert not span.active and span.duration_msec() == span.attributes["duration_msec"].value
        assert span.events[-1].name_str == span.stop_event.name_str == "span_stop"
        assert "duration_msec" in span.updated_attributes
        self.add("stop", span.name_str, span, span.attributes)

    def export_event(self, event, span):
        assert event.timestamp.milliseconds_since_epoch == event.attributes["timestamp_msec"].value
        self.lines.append(["event", event.name_str, span.name_str, event.attributes.to_json()])

    def export_error(self, event, span):
        self.lines.append(["error", event.exception_type, span.name_str, event.attributes.to_json()])

    def export_telemetry_data_error(self, error):
        self.lines.append(["data error", error.error_message, None, error.attributes.to_json()])


records = Records()
provider = TrainingTelemetryProvider.instance()
provider.with_base_config(OneLoggerConfig(
    application_name="compared", session_tag_or_fn="same", world_size_or_fn=lambda: 2,
    custom_metadata={"team": "vision"},
))
provider.with_exporter(records)
provider.configure_provider()

on.on_app_start()
assert provider.config.telemetry_config is None
provider.set_training_telemetry_config(TrainingTelemetryConfig(
    perf_tag_or_fn="fast", global_batch_size_or_fn=lambda: 32, seq_length_or_fn=128,
    flops_per_sample_or_fn=10**9, train_iterations_target_or_fn=12, train_samples_target_or_fn=384,
    log_every_n_train_iterations=5, is_log_throughput_enabled_or_fn=True,
))
assert provider.config.telemetry_config.global_batch_size == 32
for setting_up in (
    context.model_init, context.dataloader_init, context.checkpoint_load, context.optimizer_init
):
    advance(0.125)
    with setting_up():
        advance(0.5)
advance(0.125)
on.on_distributed_init_start()
advance(0.25)
on.on_distributed_init_end()
advance(0.125)
with context.training_loop(train_iterations_start=0) as loop:
    advance(0.125)
    loop.add_attribute("flavour", "vanilla")
    for iteration in range(12):
        advance(0.125)
        with context.training_iteration():
            advance(0.125 * (iteration + 1))
        if iteration == 5:
            with context.checkpoint_save(global_step=6):
                advance(1.5)
        advance(0.125)
        if iteration in (5, 11):
            with context.validation_loop():
                for batch in range(2):
                    with context.validation_iteration():
                        advance(0.25 + batch)
        if iteration == 7:
            with timed_span(Own.AUGMENT, span_attributes=Attributes({"images": 3})) as span:
                advance(0.5)
                event = Event.create("flipped", Attributes({"axis": 1, "ratio": 0.5}))
                get_recorder().event(span, event)
            advance(0.125)
            try:
                with timed_span(Own.AUGMENT):
                    advance(0.25)
                    raise ValueError("too dark")
            except ValueError:
                pass
    advance(0.125)
advance(0.125)
with context.testing_loop():
    advance(0.25)
advance(0.125)
on.on_app_end()
assert records.states == ["initialized", "closed"]
Path("records.json").write_text(json.dumps(records.lines))
"""
