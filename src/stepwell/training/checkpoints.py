"""Checkpoint saves: attempts, successes and failures, and the training progress that they make safe."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell._core import clock
from stepwell._core.checks import COUNT
from stepwell._core.errors import report_misuse
from stepwell._core.values import cut, number, shown, text_of
from stepwell.telemetry.events import Attributes, Event
from stepwell.telemetry.span_handle import NO_SPAN, Span, find_open
from stepwell.training.attributes import (
    CheckpointSaveSpanAttributes,
    SaveCheckpointFailureEventAttributes,
    SaveCheckpointSuccessEventAttributes,
    SyncCheckpointMetricsUpdateAttributes,
)
from stepwell.training.config import CheckPointStrategy
from stepwell.training.counters import SECOND, Durations
from stepwell.training.standard_spans import WORDS, moment, start_span, stop_span
from stepwell.vocabulary import StandardTrainingJobEventName as EventName
from stepwell.vocabulary import StandardTrainingJobSpanName as Name

if TYPE_CHECKING:
    from stepwell.training.job import TrainingJob

MAX_PENDING = 1000
"""Number of saves whose outcome can be reported later. Older ones are forgotten."""
LONGEST_LOOK = 0.05
"""Largest number of seconds to spend on measuring the size of a checkpoint."""
SPANS = {
    CheckPointStrategy.SYNC: Name.CHECKPOINT_SAVE_SYNC,
    CheckPointStrategy.ASYNC: Name.CHECKPOINT_SAVE_ASYNC,
}
PathLike = str | os.PathLike[str]


@dataclass
class Save:
    """One attempt to save. ``productive`` is the training progress when it began."""

    step: int
    strategy: CheckPointStrategy
    span: Span
    path: PathLike | None
    productive: dict[str, Any]
    owner: Checkpoints
    number: int
    is_concluded: bool = False

    def record(self, name: EventName, attributes: Attributes, when: int) -> None:
        """Record an event on its span, which may have ended."""
        self.span.add_event(Event(name.value, attributes, when))


@dataclass
class SaveStats:
    """The number of saves with one strategy, and the time that training waited for them."""

    attempts: int = 0
    times: Durations = field(default_factory=Durations)


class Checkpoints:
    """The checkpoint saves of a job."""

    def __init__(self, job: TrainingJob, earlier: Checkpoints | None = None) -> None:
        self.job = job
        # Saves of the previous application, whose outcome may be reported now.
        self._earlier = earlier
        if earlier is not None:
            earlier._earlier = None
        self._tallies = {strategy: SaveStats() for strategy in CheckPointStrategy}
        self._open: list[Save] = []
        self._pending: dict[int, Save] = {}
        self._begun = 0
        self._newest_success = 0
        self._successes = 0
        self._failures = 0
        self._first_success = 0
        self._latest_success = 0
        self._safe: dict[str, Any] = {}

    def start(
        self,
        step: int,
        msec: float | None = None,
        path: PathLike | None = None,
        strategy: CheckPointStrategy | str | None = None,
    ) -> Span:
        """Start saving the checkpoint of this step."""
        if self.job.config.ask("is_save_checkpoint_enabled") is False:
            return NO_SPAN
        chosen = self._strategy(strategy)
        step = self._begun_step(step)
        self._end_double()
        tally = self._tallies[chosen]
        tally.attempts += 1
        attributes = CheckpointSaveSpanAttributes.create(
            checkpoint_strategy=chosen,
            current_iteration=step,
            save_checkpoint_attempt_count=tally.attempts,
        )
        span = start_span(SPANS[chosen], msec, attributes, under=self.job.container)
        self._begun += 1
        save = Save(step, chosen, span, path, self._productive(), self, self._begun)
        self._open.append(save)
        self._pending[save.number] = save
        if len(self._pending) > MAX_PENDING:
            del self._pending[next(iter(self._pending))]
        return span

    def _strategy(self, given: CheckPointStrategy | str | None) -> CheckPointStrategy:
        if given is None:
            return self.job.config.save_checkpoint_strategy
        try:
            return CheckPointStrategy(given)
        except ValueError:
            wanted = " or ".join(repr(item.value) for item in CheckPointStrategy)
            report_misuse(
                "save strategy",
                f"The strategy of a checkpoint save must be {wanted}, got {shown(given)}. The strategy "
                "of the configuration is used instead.",
            )
            return self.job.config.save_checkpoint_strategy

    def _begun_step(self, given: Any) -> int:
        """Return the given step, or the number of iterations so far if that is wrong."""
        step = _whole(given)
        if step is not None:
            return step
        progress = self.job.last
        step = 0 if progress is None else progress.overall
        report_misuse(
            "save step",
            f"global_step of a checkpoint save must be a whole number of at least 0, got {shown(given)}. "
            f"The iterations so far are used instead: {step}.",
        )
        return step

    def _end_double(self) -> None:
        """End a save of this thread or task that is still open when another begins."""
        for name in SPANS.values():
            before = find_open(WORDS[name])
            if before is not None:
                report_misuse(
                    "double save",
                    "A checkpoint save started before the previous one ended, so that one is ended now. Call "
                    "on_save_checkpoint_end() when the code that saves returns.",
                )
                self.end(span=before)

    def _productive(self) -> dict[str, Any]:
        """Return the training progress so far, which a checkpoint would make safe."""
        job, progress = self.job, self.job.last
        seconds = job.iteration_time() / SECOND
        productive: dict[str, Any] = {
            "productive_train_iterations": 0 if progress is None else progress.overall,
            "productive_train_samples": None if progress is None else progress.samples_overall,
            "productive_train_iterations_sec": seconds,
            "productive_validation_iterations_sec": job.validation.total.total / SECOND,
        }
        if progress is not None and progress.flops_per_sample:
            done = progress.flops_overall
            productive["productive_train_tflops"] = None if done is None else done / 1e12
        return productive

    def end(
        self,
        msec: float | None = None,
        error: BaseException | None = None,
        span: Span | None = None,
    ) -> None:
        """End a save: training continues. ``succeed`` and ``fail`` record the outcome."""
        save = self._find_ending(span, ". Call on_save_checkpoint_start() first.")
        if save is not None:
            self._end(save, moment(msec, "end of a checkpoint save"), error)

    def conclude(self, error: BaseException | None) -> None:
        """End a save that is a block of code. An exception means failure, its absence success."""
        save = self._find_ending(None, ", or was ended inside.")
        if save is None:
            return
        end = clock.now()
        if not save.is_concluded and error is not None:
            self._fail(self._conclude(save), error, end)
        elif not save.is_concluded and save.strategy is CheckPointStrategy.SYNC:
            self._check_in_time(save)
            self._succeed(self._conclude(save), end, None)
        self._end(save, end, error)

    def _find_ending(self, span: Span | None, hint: str) -> Save | None:
        """Return the save to end; without one, report the misuse and return None."""
        if self.job.config.ask("is_save_checkpoint_enabled") is False and not self._open:
            return None
        save = self._find_open(span)
        if save is None:
            report_misuse("end save", f"A checkpoint save ended without a matching start{hint}")
        return save

    def _find_open(self, span: Span | None) -> Save | None:
        if span is not None:
            return next((save for save in self._open if save.span is span), None)
        mine = [save for save in self._open if find_open(save.span.name_word) is save.span]
        mine = mine or [save for save in self._open if save.span.is_of_this_thread]
        if self._open and not mine:
            report_misuse(
                "save in thread",
                "A checkpoint save ended in another thread than it started in.",
            )
        candidates = mine or self._open
        return candidates[-1] if candidates else None

    def _end(self, save: Save, end: int, error: BaseException | None) -> None:
        self._open.remove(save)
        times = self._tallies[save.strategy].times
        times.add(max(0, end - save.span.start))
        attributes = SyncCheckpointMetricsUpdateAttributes.create(
            save_checkpoint_sync_time_total_sec=times.total / SECOND,
            save_checkpoint_sync_time_min_sec=times.shortest / SECOND,
            save_checkpoint_sync_time_max_sec=times.longest / SECOND,
            save_checkpoint_sync_time_avg_sec=times.total / times.count / SECOND,
            save_checkpoint_count=times.count,
        )
        save.record(EventName.SYNC_CHECKPOINT_METRICS_UPDATE, attributes, end)
        stop_span(save.span, end, error)

    def end_open(self, span: Span, end: int, error: BaseException | None) -> bool:
        """End this span and return True, or return False if it belongs to another part of the job."""
        save = next((save for save in self._open if save.span is span), None)
        if save is not None:
            self._end(save, end, error)
        return save is not None

    # Outcome

    def succeed(self, step: int, msec: float | None = None, path: PathLike | None = None) -> None:
        """Record that the checkpoint of this step is complete, possibly long after its span has ended."""
        if self.job.config.ask("is_save_checkpoint_enabled") is False:
            return
        when = moment(msec, "time of a checkpoint success")
        save = self._take_pending(step, "saved")
        if save is not None:
            save.owner._check_in_time(save)
            save.owner._succeed(save, when, path)

    def settle(
        self, span: Span, error: BaseException | None = None, path: PathLike | None = None
    ) -> None:
        """Record the outcome of the save of this span, unless it is recorded already.

        No misuse is reported: a background save may take longer than the application, and the user may have
        reported its outcome.
        """
        waiting = [*self._pending.values()]
        if self._earlier is not None:
            waiting += self._earlier._pending.values()
        save = next((save for save in waiting if save.span is span), None)
        if save is not None and error is None:
            save.owner._succeed(self._conclude(save), clock.now(), path)
        elif save is not None:
            save.owner._fail(self._conclude(save), error, clock.now())

    def _check_in_time(self, save: Save) -> None:
        application = self.job.application
        has_ended = application is not None and not application.active
        if has_ended or self.job.checkpoints is not self:
            report_misuse(
                "late success",
                f"The checkpoint of step {save.step} was completed after the end of the application. "
                "Call on_app_end() after all checkpoints are written.",
            )

    def _succeed(self, save: Save, when: int, path: PathLike | None) -> None:
        self._successes += 1
        # An earlier success may be reported later.
        self._first_success = min(self._first_success or when, when)
        self._latest_success = max(self._latest_success, when)
        is_late = save.number < self._newest_success
        self._newest_success = max(self._newest_success, save.number)
        self._keep_safe(save.productive)
        size, folder = _measure(path if path is not None else save.path)
        started = self.job.training_started
        attributes = SaveCheckpointSuccessEventAttributes.create(
            checkpoint_strategy=save.strategy,
            current_iteration=save.step,
            first_successful_save_checkpoint_timestamp_sec=clock.to_wall(self._first_success) / 1e9,
            latest_successful_save_checkpoint_timestamp_sec=clock.to_wall(self._latest_success)
            / 1e9,
            save_checkpoint_success_count=self._successes,
            training_start_timestamp_sec=clock.to_wall(started) / 1e9 if started else None,
            checkpoint_size=size,
            checkpoint_directory=folder,
            is_late=is_late or None,
            **self._safe,
        )
        save.record(EventName.SAVE_CHECKPOINT_SUCCESS, attributes, when)

    def _take_pending(self, given: Any, outcome: str) -> Save | None:
        """Return the save of this step whose outcome is not recorded yet, None if there is none."""
        step = _whole(given)
        save = None
        for checkpoints in (self, self._earlier):
            if step is not None and save is None and checkpoints is not None:
                save = checkpoints._find_pending(step)
        if save is not None:
            return self._conclude(save)
        report_misuse(
            f"unknown {outcome}",
            f"A checkpoint of step {shown(given)} is reported as {outcome}, but no save of that step is "
            "pending: it was not started, or was reported already.",
        )
        return None

    def _find_pending(self, step: int) -> Save | None:
        waiting = reversed(self._pending.values())
        return next((save for save in waiting if save.step == step), None)

    def is_pending(self, step: int) -> bool:
        """Return whether the outcome of a save of this step is not recorded yet."""
        return any(save.step == step for save in self._pending.values())

    def _conclude(self, save: Save) -> Save:
        """Mark the outcome of a save as recorded. Return the save."""
        save.is_concluded = True
        save.owner._pending.pop(save.number, None)
        return save

    def _keep_safe(self, productive: dict[str, Any]) -> None:
        """Update the safe progress, unless a newer checkpoint has made more safe already."""
        for name, value in productive.items():
            before = self._safe.get(name)
            if value is not None and (before is None or value > before):
                self._safe[name] = value

    def fail(
        self,
        step: int,
        error: BaseException | str | None = None,
        msec: float | None = None,
    ) -> None:
        """Record that the checkpoint of this step could not be saved."""
        if self.job.config.ask("is_save_checkpoint_enabled") is False:
            return
        when = moment(msec, "time of a checkpoint failure")
        save = self._take_pending(step, "failed")
        if save is not None:
            save.owner._fail(save, error, when)

    def _fail(self, save: Save, error: BaseException | str | None, when: int) -> None:
        self._failures += 1
        is_exception = isinstance(error, BaseException)
        attributes = SaveCheckpointFailureEventAttributes.create(
            checkpoint_strategy=save.strategy,
            current_iteration=save.step,
            save_checkpoint_failure_count=self._failures,
            error_message=None if error is None else cut(text_of(error), 2000),
            exception_type=type(error).__qualname__ if is_exception else None,
            exception_message=cut(text_of(error), 2000) if is_exception else None,
        )
        save.record(EventName.SAVE_CHECKPOINT_FAILURE, attributes, when)


def _whole(value: Any) -> int | None:
    """Return a step as a plain int, also from a tensor with one element; None if it is not a step."""
    try:
        return COUNT.take(value)
    except ValueError:
        step = None if isinstance(value, bool) else number(value)
        return int(step) if step is not None and step >= 0 and step.is_integer() else None


def _measure(path: PathLike | None) -> tuple[int | None, str | None]:
    """Return size and folder of a checkpoint; the size is None if measuring takes too long."""
    if path is None:
        return None, None
    try:
        place = Path(path)
        if place.is_dir():
            return _folder_size(place), str(place)
        return (place.stat().st_size if place.exists() else None), str(place.parent)
    except (OSError, TypeError, ValueError):
        return None, text_of(path)


def _folder_size(folder: Path) -> int | None:
    give_up = time.monotonic() + LONGEST_LOOK
    total = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            total += os.stat(os.path.join(parent, name), follow_symlinks=False).st_size
            if time.monotonic() > give_up:
                return None
    return total
