"""A training job: its application, loops and checkpoints, with their counters.

One per run and process. It turns starts and ends into spans and events; callbacks and context managers are
thin wrappers around it. A wrong order of calls is reported as misuse, not raised.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from typing import Protocol

from stepwell._core import clock
from stepwell._core.errors import report_misuse
from stepwell.telemetry import VERSION
from stepwell.telemetry.events import Attributes, Event
from stepwell.telemetry.rank_info import find_rank_info
from stepwell.telemetry.run import Run
from stepwell.telemetry.span_handle import NO_SPAN, Span, find_open, leave_unrecorded
from stepwell.training.attributes import InitializationAttributes, TrainingTelemetryAttributes
from stepwell.training.checkpoints import Checkpoints
from stepwell.training.counters import Progress
from stepwell.training.evaluation import Evaluation
from stepwell.training.resolved_config import ResolvedConfig
from stepwell.training.standard_spans import (
    WORDS,
    end_setup,
    find_span,
    moment,
    note_thread,
    open_spans,
    start_span,
    stop_span,
)
from stepwell.training.training_loop import Count, TrainingLoop, loop_attributes
from stepwell.vocabulary import StandardTrainingJobEventName as EventName
from stepwell.vocabulary import StandardTrainingJobSpanName as Name

PHASES = {
    Name.MODEL_FORWARD: "avg_forward_time_sec",
    Name.MODEL_BACKWARD: "avg_backward_time_sec",
    Name.DATA_LOADING: "avg_dataloader_time_sec",
}
"""Spans whose time is reported in the updates of a training loop, with the attribute."""


class JobPart(Protocol):
    """A part of a job that owns some of its spans."""

    def end_open(self, span: Span, end: int, error: BaseException | None) -> bool:
        """End this span and return True, or return False if it belongs to another part."""


class TrainingJob:
    """The telemetry of one training job in this process."""

    def __init__(
        self,
        config: ResolvedConfig,
        run: Run | None,
        on_loop: Callable[[TrainingLoop | None], None],
    ) -> None:
        self.config = config
        self.run = run
        self.lock = threading.RLock()
        self.application: Span | None = None
        # Number of open ``application()`` blocks besides the first, nested or in other threads.
        self._inside_again = 0
        self.loop: TrainingLoop | None = None
        # Called with the training loop when it begins, and with None when it has ended.
        self._on_loop = on_loop
        self.container: Span | None = None
        self.last: Progress | None = None
        self.training_started = 0
        self.training_time = 0
        self.training_count = 0
        self.validation = Evaluation(self, Name.VALIDATION_LOOP)
        self.testing = Evaluation(self, Name.TESTING_LOOP)
        self.checkpoints = Checkpoints(self)
        self.world_size = 1
        self._read_world_size()

    def _read_world_size(self) -> None:
        launched = 1 if self.run is None else self.run.world_size
        self.world_size = self.config.ask("world_size") or launched

    # The application

    def start_application(self, msec: float | None = None) -> Span:
        """Start the application, unless it runs already."""
        if self.application is not None and self.application.active:
            report_misuse(
                "double application",
                "The application was started twice; the second start is ignored. Call on_app_start() or "
                "application() once.",
            )
            return self.application
        if self.application is not None:
            self._begin_anew()
        self._inside_again = 0
        self.application = self.container = start_span(Name.APPLICATION, msec)
        self._record_initialization()
        if self.config.has_telemetry_config:
            self._record_config()
        return self.application

    def enter_application(self) -> Span:
        """Start the application as a block of code. A nested block does not end it."""
        span = self.application
        is_again = span is not None and span.active
        span = self.start_application()
        self._inside_again += is_again
        return span

    def leave_application(self, error: BaseException | None) -> None:
        """End the block that ``enter_application`` began."""
        if self._inside_again:
            self._inside_again -= 1
        else:
            self.end_application(None, error)

    def _begin_anew(self) -> None:
        """Reset the counters of the previous application."""
        self.last = None
        self.training_started = self.training_time = self.training_count = 0
        self.validation = Evaluation(self, Name.VALIDATION_LOOP)
        self.testing = Evaluation(self, Name.TESTING_LOOP)
        self.checkpoints = Checkpoints(self, self.checkpoints)

    def _record_initialization(self) -> None:
        config, run = self.config, self.run
        self._record(
            EventName.INITIALIZATION,
            InitializationAttributes.create(
                application_name=config.application_name,
                world_size=self.world_size,
                rank=0 if run is None else run.rank,
                local_rank=find_rank_info(os.environ).local_rank,
                node_name=socket.gethostname(),
                app_type=config.app_type,
                session_tag=self.config.ask("session_tag"),
                is_baseline_run=bool(self.config.ask("is_baseline_run")),
                enable_for_current_rank=True,
                stepwell_version=VERSION,
                summary_data_schema_version=config.summary_data_schema_version,
                custom_metadata=config.custom_metadata,
            ),
            # At the start of the application, which may be before this call.
            at=None if self.application is None else self.application.start,
        )

    def _record_config(self) -> None:
        names = TrainingTelemetryAttributes.FIELDS
        values = {name: self.config.ask(name) for name in names if hasattr(type(self.config), name)}
        values["checkpoint_strategy"] = self.config.save_checkpoint_strategy
        values |= {n: bool(v) for n, v in values.items() if n.startswith("is_")}
        self._record(
            EventName.UPDATE_TRAINING_TELEMETRY_CONFIG,
            TrainingTelemetryAttributes.create(**values),
        )

    def _record(self, name: EventName, attributes: Attributes, at: int | None = None) -> None:
        span = self.application or NO_SPAN
        span.add_event(Event(name.value, attributes, at or clock.now()))

    def reconfigure(self, config: ResolvedConfig) -> None:
        """Continue with another configuration."""
        self.config = config
        self._read_world_size()
        if self.loop is not None:
            self.loop.read_config()
        if self.application is not None and self.application.active:
            self._record_config()

    def end_application(
        self, msec: float | None = None, error: BaseException | None = None
    ) -> None:
        """End all open spans in the application, innermost first, and then the application."""
        if self.application is None or not self.application.active:
            report_misuse(
                "end application",
                "The application ended without a matching start. Configure the provider and call "
                "on_app_start() first.",
            )
            return
        note_thread(self.application)
        self._end_application(moment(msec, "end of the application"), error)

    def _end_application(self, end: int, error: BaseException | None) -> None:
        self.close_open(end, error)
        if self.application is None:
            return
        stop_span(self.application, end, error)
        self.note_container()

    def close_open(self, end: int, error: BaseException | None = None) -> None:
        """End every open span in the application, the latest first, with its final update."""
        outside = self._outside()
        for span in open_spans():
            if span.active and span not in outside:
                self._close(span, end, error)

    def close_since(self, start: int, error: BaseException | None = None) -> None:
        """End all spans that this thread has opened since ``start`` (journal clock), the latest first."""
        end = clock.now()
        for span in open_spans():
            if span.active and span.start >= start and span.is_of_this_thread:
                self._close(span, end, error)

    def _outside(self) -> list[Span]:
        """Return the application, its ancestors, and the spans that were open before it."""
        application = self.application
        if application is None or not application.active:
            return []
        around: list[Span] = [application]
        while (parent := around[-1].parent) is not None:
            around.append(parent)
        return around + [span for span in open_spans() if span.start < application.start]

    def _close(self, span: Span, end: int, error: BaseException | None) -> None:
        loop = self.loop
        if loop is not None and span is loop.span:
            self._end_loop(end, error)
            return
        parts: list[JobPart] = [self.validation, self.testing, self.checkpoints]
        if loop is not None:
            parts.append(loop)
        if not any(part.end_open(span, end, error) for part in parts):
            stop_span(span, end, error)

    # Simple spans

    def start(self, name: Name, msec: float | None = None) -> Span:
        """Start a simple span: one without counters. An open one of this name is ended first."""
        before = find_open(WORDS[name])
        if before is not None:
            report_misuse(
                f"double {name}",
                f"{name} started again before its end, so the earlier one is ended now. Call its "
                "on_…_end() at its end.",
            )
            stop_span(before, clock.now())
        return start_span(name, msec, under=self.container)

    def end(
        self, name: Name, msec: float | None = None, error: BaseException | None = None
    ) -> None:
        """End a simple span."""
        span = find_span(name)
        if span is None:
            if leave_unrecorded(WORDS[name]):
                return
            report_misuse(
                f"end {name}",
                f"{name} ended without a matching start. Call its on_…_start() first.",
            )
            return
        stop_span(span, moment(msec, f"end of {name}") if msec else clock.now(), error)

    def count_time(self, attribute: str, took: int) -> None:
        """Add nanoseconds to a phase of the training loop."""
        loop = self.loop
        if loop is not None and loop.span is self.container:
            phases = loop.progress.phases
            phases[attribute] = phases.get(attribute, 0) + took

    def note_container(self) -> None:
        """Set ``container`` to the innermost open loop, else the application."""
        loop = None if self.loop is None else self.loop.span
        span = self.validation.span or self.testing.span or loop or self.application
        self.container = span if span is not None and span.active else None

    # Training

    def start_training(
        self,
        iterations: int = 0,
        samples: int | None = None,
        iterations_target: Count | None = None,
        samples_target: Count | None = None,
        msec: float | None = None,
    ) -> Span:
        """Start a training loop at this iteration. An open one is ended first."""
        if self.loop is not None:
            report_misuse(
                "double loop",
                "A training loop started before the previous one ended, so that one is ended now. Call "
                "on_train_end() at its end.",
            )
            self._end_loop(clock.now(), None)
        end_setup(Name.TRAINING_LOOP)
        attributes = loop_attributes(self, iterations, samples, iterations_target, samples_target)
        span = start_span(Name.TRAINING_LOOP, msec, attributes, under=self.container)
        progress = Progress(
            attributes.train_iterations_start,
            attributes.train_samples_start,
            self.config.log_every_n_train_iterations,
            span.start or None,
        )
        done = attributes.completed_floating_point_operations_overall
        progress.start_flops = progress.start_flops if done is None else done
        self.loop = TrainingLoop(self, span, progress)
        self._on_loop(self.loop)
        self.note_container()
        self.last = progress
        self.training_started = self.training_started or span.start
        return span

    def end_training(self, msec: float | None = None, error: BaseException | None = None) -> None:
        """End the training loop, with a final update."""
        if self.loop is None:
            report_misuse(
                "end training loop",
                "A training loop ended without a matching start. Call on_train_start() first.",
            )
            return
        note_thread(self.loop.span)
        self._end_loop(moment(msec, "end of the training loop"), error)

    def _end_loop(self, end: int, error: BaseException | None) -> None:
        loop = self.loop
        if loop is None:
            return
        loop.finish(end, error)
        self.training_time += loop.progress.total
        self.training_count += loop.progress.completed
        self.loop = None
        self._on_loop(None)
        stop_span(loop.span, end, error)
        self.note_container()

    def start_iteration(self, msec: float | None = None) -> Span:
        """Start a training iteration. Outside a training loop it is recorded but not counted."""
        if self.loop is not None:
            return self.loop.begin(msec)
        report_misuse(
            "iteration outside",
            "A training iteration started outside a training loop: it is recorded but not counted. Call "
            "on_train_start() or training_loop() first.",
        )
        return start_span(Name.TRAINING_SINGLE_ITERATION, msec, under=self.container)

    def end_iteration(
        self,
        samples: int | None = None,
        tokens: int | None = None,
        optimizer_step: bool = True,
        error: BaseException | None = None,
        msec: float | None = None,
    ) -> None:
        """End a training iteration."""
        loop = self.loop
        if loop is not None and (loop.inside is not None or not loop.is_enabled):
            usual = samples is None and tokens is None and optimizer_step
            if usual and error is None and not msec:
                loop.end_usual()
            else:
                loop.end(samples, tokens, optimizer_step, error, msec)
            return
        self.end(Name.TRAINING_SINGLE_ITERATION, msec, error)

    def iteration_time(self) -> int:
        """Return the nanoseconds in training iterations, over all loops so far."""
        if self.loop is None:
            return self.training_time
        self.loop.progress.count_waiting()
        return self.training_time + self.loop.progress.total

    def iteration_count(self) -> int:
        """Return the number of training iterations, over all loops so far."""
        if self.loop is None:
            return self.training_count
        return self.training_count + self.loop.progress.overall - self.loop.progress.start

    # The end

    def close(self, status: str) -> None:
        """End the open spans of a run that finished. In a failed run they stay open."""
        if status != "finished":
            if self.loop is not None:
                self.loop.report_rest(clock.now())
        elif self.application is not None and self.application.active:
            self._end_application(clock.now(), None)
        else:
            self.close_open(clock.now())
