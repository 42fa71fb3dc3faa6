"""Validation and testing loops, and their iterations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepwell._core import clock
from stepwell._core.errors import report_misuse
from stepwell.telemetry.events import Attributes, Event
from stepwell.telemetry.span_handle import NO_SPAN, Span, find_open, leave_unrecorded
from stepwell.training.attributes import (
    TestingMetricsUpdateAttributes,
    ValidationMetricsUpdateAttributes,
)
from stepwell.training.counters import Durations
from stepwell.training.standard_spans import (
    WORDS,
    end_parts,
    end_setup,
    find_span,
    moment,
    note_thread,
    open_spans,
    start_span,
    stop_span,
)
from stepwell.vocabulary import StandardTrainingJobEventName as EventName
from stepwell.vocabulary import StandardTrainingJobSpanName as Name

if TYPE_CHECKING:
    from stepwell.training.job import TrainingJob

KINDS = {
    Name.VALIDATION_LOOP: (
        Name.VALIDATION_SINGLE_ITERATION,
        "is_validation_iterations_enabled",
        EventName.VALIDATION_METRICS_UPDATE,
        ValidationMetricsUpdateAttributes,
    ),
    Name.TESTING_LOOP: (
        Name.TESTING_SINGLE_ITERATION,
        "is_test_iterations_enabled",
        EventName.TESTING_METRICS_UPDATE,
        TestingMetricsUpdateAttributes,
    ),
}


class Evaluation:
    """The validation loops or the testing loops of a job. At most one is open."""

    def __init__(self, job: TrainingJob, name: Name) -> None:
        self.job = job
        self.name = name
        self.iteration, self._switch, self._event, self._attributes = KINDS[name]
        self.span: Span | None = None
        self.total = Durations()
        self._times = Durations()
        self._is_enabled = True
        self._count_before = 0
        self._unrecorded = 0

    # The loop

    def start(self, msec: float | None = None) -> Span:
        """Start a loop. An open one is ended first."""
        if self.span is not None:
            report_misuse(
                f"double {self.name}",
                f"{self.name} started again before its end, so the earlier one is ended now.",
            )
            self._end_loop(clock.now(), None)
        self._is_enabled = self.job.config.ask(self._switch) is not False
        self._times = Durations()
        self._unrecorded = 0
        end_setup(self.name)
        self.span = start_span(self.name, msec, under=self.job.container)
        self.job.note_container()
        return self.span

    def end(self, msec: float | None = None, error: BaseException | None = None) -> None:
        """End the loop, with an update about its iterations."""
        if self.span is None:
            report_misuse(
                f"end {self.name}",
                f"{self.name} ended without a matching start. Call its on_…_start() first.",
            )
            return
        note_thread(self.span)
        self._end_loop(moment(msec, f"end of {self.name}"), error)

    def _end_loop(self, end: int, error: BaseException | None) -> None:
        span = self.span
        if span is None:
            return
        for iteration in self._open_iterations():
            report_misuse(
                f"open {self.iteration}",
                f"{self.name} ended while {self.iteration} was open, so that is ended with it.",
            )
            self._end_iteration(iteration, end, error)
        span.add_event(Event(self._event.value, self._report(), end))
        self.span = None
        stop_span(span, end, error)
        self.job.note_container()

    def _report(self) -> Attributes:
        progress = self.job.last
        trained = 0 if progress is None else progress.overall
        # By the number of iterations, not by their index: training may have restarted since.
        count = self.job.iteration_count()
        interval = count - self._count_before
        self._count_before = count
        return self._attributes.create(
            current_iteration=max(0, trained - 1),
            interval=interval,
            num_iterations=self._times.count + self._unrecorded,
            **self._times.seconds(),
        )

    # Its iterations

    def start_iteration(self, msec: float | None = None) -> Span:
        """Start an iteration."""
        if self.span is None:
            report_misuse(
                f"{self.iteration} outside",
                f"{self.iteration} started outside {self.name}: it is recorded but not counted.",
            )
        elif not self._is_enabled:
            return NO_SPAN
        before = find_open(WORDS[self.iteration])
        if before is not None:
            report_misuse(
                f"double {self.iteration}",
                f"{self.iteration} started again before its end, so the earlier one is ended now.",
            )
            self._end_iteration(before, clock.now(), None)
        return start_span(self.iteration, msec, under=self.job.container)

    def end_iteration(self, msec: float | None = None, error: BaseException | None = None) -> None:
        """End an iteration."""
        if self.span is not None and not self._is_enabled:
            self._unrecorded += 1
            return
        span = find_span(self.iteration)
        if span is None:
            if leave_unrecorded(WORDS[self.iteration]):
                self._unrecorded += 1
                return
            report_misuse(
                f"end {self.iteration}",
                f"{self.iteration} ended without a matching start. Call its on_…_start() first.",
            )
            return
        self._end_iteration(span, moment(msec, f"end of {self.iteration}"), error)

    def _end_iteration(self, span: Span, end: int, error: BaseException | None) -> None:
        stop_span(span, end, error)
        end_parts(span, span.end)
        if self.span is not None:
            self._times.add(span.end - span.start)
            self.total.add(span.end - span.start)

    def _open_iterations(self) -> list[Span]:
        return [span for span in open_spans() if span.name_word == WORDS[self.iteration]]

    def end_open(self, span: Span, end: int, error: BaseException | None) -> bool:
        """End this span and return True, or return False if it belongs to another part of the job."""
        if span is self.span:
            self._end_loop(end, error)
        elif span in self._open_iterations():
            self._end_iteration(span, end, error)
        else:
            return False
        return True
