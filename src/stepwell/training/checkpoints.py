"""Saving checkpoints: attempts, successes and failures, and what of the training they make safe."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.journal import clock
from stepwell.journal.errors import StepwellError, misuse
from stepwell.journal.values import cut, text_of
from stepwell.telemetry.events import Event
from stepwell.telemetry.live import NO_SPAN, Span
from stepwell.training.attributes import (
    CheckpointSaveSpanAttributes,
    SaveCheckpointFailureEventAttributes,
    SaveCheckpointSuccessEventAttributes,
    SyncCheckpointMetricsUpdateAttributes,
)
from stepwell.training.counters import SECOND, Durations
from stepwell.training.standard_spans import moment, start_span, stop_span
from stepwell.training.values import CheckPointStrategy
from stepwell.training.vocabulary import StandardTrainingJobEventName as EventName
from stepwell.training.vocabulary import StandardTrainingJobSpanName as Name

if TYPE_CHECKING:
    from stepwell.training.job import TrainingJob

MAX_PENDING = 1000
"""Saves that may wait for word of their success; of older ones it comes too late."""
LONGEST_LOOK = 0.05
"""Seconds to spend on adding up the files of a checkpoint."""
SPANS = {
    CheckPointStrategy.SYNC: Name.CHECKPOINT_SAVE_SYNC,
    CheckPointStrategy.ASYNC: Name.CHECKPOINT_SAVE_ASYNC,
}
PathLike = str | os.PathLike[str]


@dataclass
class Save:
    """One attempt to save, and what would be safe with it: the training done when it began."""

    step: int
    strategy: CheckPointStrategy
    span: Span
    path: PathLike | None
    productive: dict[str, Any]


@dataclass
class Tally:
    """What became of the saves with one strategy."""

    attempts: int = 0
    successes: int = 0
    failures: int = 0
    times: Durations = field(default_factory=Durations)


class Checkpoints:
    """The checkpoint saves of a job."""

    def __init__(self, job: TrainingJob) -> None:
        self.job = job
        self._tallies = {strategy: Tally() for strategy in CheckPointStrategy}
        self._open: list[Save] = []
        self._pending: dict[int, Save] = {}
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
        """Start to save the state of this step."""
        if self.job.ask("is_save_checkpoint_enabled") is False:
            return NO_SPAN
        chosen = self._strategy(strategy)
        tally = self._tallies[chosen]
        tally.attempts += 1
        attributes = CheckpointSaveSpanAttributes.create(
            checkpoint_strategy=chosen,
            current_iteration=step,
            save_checkpoint_attempt_count=tally.attempts,
        )
        span = start_span(SPANS[chosen], msec, attributes, under=self.job.container)
        save = Save(step, chosen, span, path, self._productive())
        self._open.append(save)
        self._pending[step] = save
        if len(self._pending) > MAX_PENDING:
            del self._pending[next(iter(self._pending))]
        return span

    def _strategy(self, given: CheckPointStrategy | str | None) -> CheckPointStrategy:
        if given is None:
            return self.job.config.save_checkpoint_strategy
        try:
            return CheckPointStrategy(given)
        except ValueError:
            words = " or ".join(repr(item.value) for item in CheckPointStrategy)
            raise StepwellError(f"strategy is {given!r}: write {words}") from None

    def _productive(self) -> dict[str, Any]:
        """The training done so far; a checkpoint of now makes it safe."""
        job, progress = self.job, self.job.last
        seconds = job.iteration_time() / SECOND
        found: dict[str, Any] = {
            "productive_train_iterations": 0 if progress is None else progress.overall,
            "productive_train_samples": None if progress is None else progress.samples_overall,
            "productive_train_iterations_sec": seconds,
            "productive_validation_iterations_sec": job.validation.total.total / SECOND,
        }
        if progress is not None and progress.flops_per_sample:
            found["productive_train_tflops"] = progress.flops_overall / 1e12
        return found

    def end(
        self,
        msec: float | None = None,
        error: BaseException | None = None,
        span: Span | None = None,
    ) -> None:
        """End a save: training goes on. Whether it succeeded is said by itself."""
        if self.job.ask("is_save_checkpoint_enabled") is False and not self._open:
            return
        save = self._find_open(span)
        if save is None:
            misuse("end save", "a checkpoint save is ended that was not started")
            return
        self._end(save, moment(msec, "end of a checkpoint save"), error)

    def conclude(self, step: int, error: BaseException | None) -> None:
        """End a save that is a block of code: its exception, or its end, says what became of it."""
        if self.job.ask("is_save_checkpoint_enabled") is False and not self._open:
            return
        save = self._find_open(None)
        if error is not None:
            self.fail(step, error)
        elif save is not None and save.strategy is CheckPointStrategy.SYNC:
            self.succeed(step)
        if save is not None:
            self._end(save, clock.now(), error)

    def _find_open(self, span: Span | None) -> Save | None:
        if span is not None:
            return next((save for save in self._open if save.span is span), None)
        mine = [save for save in self._open if save.span.is_of_this_thread]
        if self._open and not mine:
            misuse(
                "save in thread",
                "a checkpoint save is ended in another thread than it was started in",
            )
        found = mine or self._open
        return found[-1] if found else None

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
        name = EventName.SYNC_CHECKPOINT_METRICS_UPDATE
        save.span.add_event(Event(name.value, attributes, clock.now()))
        stop_span(save.span, end, error)

    def end_open(self, span: Span, end: int, error: BaseException | None) -> bool:
        """End this span if it is one of these; whether it was."""
        save = next((save for save in self._open if save.span is span), None)
        if save is not None:
            self._end(save, end, error)
        return save is not None

    # What became of it

    def succeed(self, step: int, msec: float | None = None, path: PathLike | None = None) -> None:
        """The checkpoint of this step is complete; perhaps long after its span has ended."""
        if self.job.ask("is_save_checkpoint_enabled") is False:
            return
        when = moment(msec, "time of a checkpoint success")
        save = self._pending.pop(step, None)
        if save is None:
            misuse(
                "unknown success",
                f"a checkpoint of step {step!r} is reported as saved that was never started",
            )
            return
        if self.job.application is not None and not self.job.application.active:
            misuse(
                "late success",
                f"the checkpoint of step {step} was complete after the application had ended",
            )
        tally = self._tallies[save.strategy]
        tally.successes += 1
        wall = clock.to_wall(when) / 1e9
        self._first_success = self._first_success or when
        self._latest_success = max(self._latest_success, when)
        is_late = self._keep_safe(save.productive)
        size, folder = _measure(path if path is not None else save.path)
        started = self.job.training_started
        attributes = SaveCheckpointSuccessEventAttributes.create(
            checkpoint_strategy=save.strategy,
            current_iteration=step,
            first_successful_save_checkpoint_timestamp_sec=clock.to_wall(self._first_success) / 1e9,
            latest_successful_save_checkpoint_timestamp_sec=wall,
            save_checkpoint_success_count=tally.successes,
            training_start_timestamp_sec=clock.to_wall(started) / 1e9 if started else None,
            checkpoint_size=size,
            checkpoint_directory=folder,
            is_late=is_late or None,
            **self._safe,
        )
        name = EventName.SAVE_CHECKPOINT_SUCCESS
        save.span.add_event(Event(name.value, attributes, when))

    def _keep_safe(self, productive: dict[str, Any]) -> bool:
        """Note what is safe now; whether a newer checkpoint had made more safe already."""
        before = self._safe.get("productive_train_iterations", -1)
        is_late = bool(productive["productive_train_iterations"] < before)
        for name, value in productive.items():
            known = self._safe.get(name)
            if value is not None and (known is None or value > known):
                self._safe[name] = value
        return is_late

    def fail(
        self,
        step: int,
        error: BaseException | str | None = None,
        msec: float | None = None,
    ) -> None:
        """The checkpoint of this step could not be saved."""
        if self.job.ask("is_save_checkpoint_enabled") is False:
            return
        when = moment(msec, "time of a checkpoint failure")
        save = self._pending.pop(step, None)
        if save is None:
            misuse(
                "unknown failure",
                f"a checkpoint of step {step!r} is reported as failed that was never started",
            )
            return
        tally = self._tallies[save.strategy]
        tally.failures += 1
        is_exception = isinstance(error, BaseException)
        attributes = SaveCheckpointFailureEventAttributes.create(
            checkpoint_strategy=save.strategy,
            current_iteration=step,
            save_checkpoint_failure_count=tally.failures,
            error_message=None if error is None else cut(text_of(error), 2000),
            exception_type=type(error).__qualname__ if is_exception else None,
            exception_message=cut(text_of(error), 2000) if is_exception else None,
        )
        name = EventName.SAVE_CHECKPOINT_FAILURE
        save.span.add_event(Event(name.value, attributes, when))


def _measure(path: PathLike | None) -> tuple[int | None, str | None]:
    """Size and folder of a checkpoint; None for what cannot be found out quickly."""
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
