"""The training loop and its iterations: the hot path of a job."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter_ns as _now
from typing import TYPE_CHECKING, Any

from stepwell._core import clock
from stepwell._core.errors import StepwellError, report, report_misuse, warn_once
from stepwell._core.values import text_of
from stepwell.journal.metrics import latest, set_context
from stepwell.journal.state import state
from stepwell.telemetry.events import Event
from stepwell.telemetry.span_handle import NO_SPAN, Span, find_open, is_failure
from stepwell.training.attributes import TrainingLoopAttributes, TrainingMetricsUpdateAttributes
from stepwell.training.counters import Progress, plus
from stepwell.training.standard_spans import WORDS, end_parts, moment, start_span, stop_span
from stepwell.vocabulary import LOSSES
from stepwell.vocabulary import StandardTrainingJobEventName as EventName
from stepwell.vocabulary import StandardTrainingJobSpanName as Name

if TYPE_CHECKING:
    from stepwell.journal.lane import Lane
    from stepwell.training.job import TrainingJob

ITERATION = WORDS[Name.TRAINING_SINGLE_ITERATION]
UPDATE = EventName.TRAINING_METRICS_UPDATE.value
MAX_WAITING = 1000
"""Largest number of iterations that wait to be counted together."""

Count = int | Callable[[], int]


class TrainingLoop:
    """An open training loop."""

    __slots__ = (
        "_asks",
        "_every",
        "_expected",
        "_is_special",
        "_job",
        "_look",
        "_loss",
        "_losses",
        "_objects",
        "_others",
        "_samples",
        "_seq_length",
        "_tokens",
        "inside",
        "is_enabled",
        "progress",
        "span",
        "step",
    )

    def __init__(self, job: TrainingJob, span: Span, progress: Progress) -> None:
        self._job = job
        self.span = span
        self.progress = progress
        self.inside: Span | None = None
        self._others: list[Span] = []
        self._loss: float | None = None
        journal = span._journal
        self._objects: dict[int, Any] = {} if journal is None else journal.objects
        self._samples = self._tokens = self._seq_length = self._expected = 0
        self.step = progress.start
        self.read_config()

    def read_config(self) -> None:
        """Read the job's configuration, at the start and after a change."""
        config, progress = self._job.config, self.progress
        self.is_enabled = self._job.config.ask("is_train_iterations_enabled") is not False
        self._losses = LOSSES if config.loss_metric is None else (config.loss_metric,)
        # Plain values are read once, functions are called in each iteration.
        self._asks = config.counts_are_functions
        # Whether the next iteration may differ from the usual size, so that the fast path is not possible.
        self._is_special = self._asks or bool(self._others or progress.partial_passes)
        self._every = config.log_every_n_train_iterations
        progress.expect_update(self._every)
        self._look = min(progress.next_update, self.step + MAX_WAITING)
        self._ask_config()

    def _ask_config(self) -> None:
        config, progress = self._job.config, self.progress
        try:
            self._samples = config.global_batch_size or self._expected
            self._seq_length = config.seq_length or 0
            self._tokens = self._samples * self._seq_length
            work = config.flops_per_sample if config.is_log_throughput_enabled else 0
            if work != progress.flops_per_sample:
                # The waiting iterations have the previous size.
                progress.count_waiting()
                progress.flops_per_sample = work or 0
        except StepwellError as error:
            report_misuse("config function", str(error))

    def expect_samples(self, samples: int) -> None:
        """Set the samples per iteration, used if neither the iteration nor the configuration has them."""
        self._expected = samples
        self._ask_config()

    # Iterations

    def begin(self, msec: float | None = None) -> Span:
        """Start an iteration."""
        return self._begin_slowly(msec) if msec else self.enter()

    def enter(self, lane: Lane | None = None) -> Span:
        """Start an iteration now. ``with training_iteration()`` calls it directly.

        ``lane``: the lane of this thread, if the caller knows that no asyncio task is running.
        """
        try:
            if self.inside is not None or not self.is_enabled:
                return self._begin_slowly(None)
            span: Span = Span()
            span._attributes = span._events = None
            span._parent = self.span
            span._begin_step(ITERATION, self.span.id, self.step, lane)
            self.inside = self._objects[span.id] = span
            return span
        except Exception as error:
            report("training_iteration", error)
            return NO_SPAN

    def leave(self, kind: object, error: BaseException | None, trace: object) -> None:
        """End an iteration of the usual size. ``with training_iteration()`` calls it directly."""
        try:
            if error is None and self.inside is not None:
                self.end_usual()
            else:
                self._job.end_iteration(error=error)
        except StepwellError as problem:
            report_misuse("end_iteration", str(problem))
        except Exception as problem:
            report("training_iteration", problem)

    def end_usual(self, lane: Lane | None = None) -> None:
        """End the open iteration, of the usual size. This is the fast path."""
        span = self.inside
        if span is None or self._is_special:
            self.end()
            return
        self.inside = None
        if not span._finish_now(lane):
            _ended_out_of_order(span)
        try:
            del self._objects[span.id]
        except KeyError:
            # The user has stopped the span.
            pass
        self.progress.waiting.append((span.start, span.end, self._samples, self._tokens))
        self.step = step = self.step + 1
        if step >= self._look:
            self._look_whether_due()

    def end_sized(self, samples: int | None, lane: Lane | None = None) -> None:
        """End the open iteration, with an optimizer step and this many samples."""
        if (samples is None or samples == self._samples) and not self._is_special:
            self.end_usual(lane)
        else:
            self.end(samples)

    def end(
        self,
        samples: int | None = None,
        tokens: int | None = None,
        optimizer_step: bool = True,
        error: BaseException | None = None,
        msec: float | None = None,
    ) -> None:
        """End the open iteration."""
        span = self.inside
        if msec or error is not None or self._others or span is None:
            if not self.is_enabled and span is None:
                if error is None or not is_failure(error):
                    self._count_unrecorded(samples, tokens, optimizer_step)
                return
            span, end = self._end_slowly(msec, error)
            if span is None or (error is not None and is_failure(error)):
                # A failed iteration is recorded but not counted.
                return
        else:
            self.inside = None
            self._objects.pop(span.id, None)
            if not span._finish(_now()):
                _ended_out_of_order(span)
            end = span.end
        self._count(span.start, end, samples, tokens, optimizer_step)

    def skip(self) -> None:
        """Withdraw the open iteration: nothing was trained in it."""
        span, self.inside = self.inside, None
        if span is not None:
            self._objects.pop(span.id, None)
            self.withdraw([span])
            end_parts(span, span.end)

    def withdraw(self, spans: list[Span]) -> None:
        """Withdraw iterations without an optimizer step; the current step is the one before them."""
        for span in spans:
            span._withdraw()
        if self.step > self.progress.start:
            set_context(self.step - 1, None)

    def _look_whether_due(self) -> None:
        """Count the waiting iterations, and write an update if one is due."""
        progress = self.progress
        progress.count_waiting()
        if self.step >= progress.next_update:
            self.update()
        self._look = min(progress.next_update, self.step + MAX_WAITING)

    def _count(
        self, start: int, end: int, samples: int | None, tokens: int | None, optimizer_step: bool
    ) -> None:
        """Count a pass that is not of the usual size."""
        progress = self.progress
        if self._asks:
            self._ask_config()
        samples, tokens = self._take(samples, tokens)
        self._is_special = self._asks or not optimizer_step or bool(self._others)
        if not optimizer_step:
            progress.accumulate(start, end, samples, tokens)
            return
        progress.waiting.append((start, end, *self._sizes(samples, tokens)))
        if progress.partial_passes:
            progress.count_waiting()
        self.step += 1
        if self.step >= self._look:
            self._look_whether_due()

    def _count_unrecorded(
        self, samples: int | None, tokens: int | None, optimizer_step: bool
    ) -> None:
        """Count an iteration that is not recorded; checkpoints and validations report the count."""
        if self._asks:
            self._ask_config()
        samples, tokens = self._take(samples, tokens)
        if optimizer_step:
            self.progress.count_unrecorded(*self._sizes(samples, tokens))
            self.step += 1
        else:
            self.progress.hold(samples, tokens)

    def _sizes(self, samples: int | None, tokens: int | None) -> tuple[int, int]:
        """Return samples and tokens of an iteration with its accumulated passes; by default as configured."""
        progress = self.progress
        if progress.partial_passes:
            samples = plus(progress.partial_samples, samples)
            tokens = plus(progress.partial_tokens, tokens)
        if samples is None:
            samples = self._samples
        return samples, samples * self._seq_length if tokens is None else tokens

    def _take(self, samples: Any, tokens: Any) -> tuple[int | None, int | None]:
        """Return the given samples and tokens, None for a missing or wrong one."""
        if samples is None and tokens is None:
            return None, None
        counts: list[int | None] = []
        for name, value in (("samples", samples), ("tokens", tokens)):
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, int) or value < 0
            ):
                try:
                    value = int(value)
                except Exception:
                    value = -1
            if value is not None and value < 0:
                report_misuse(
                    name, f"{name} of training_iteration() must be a number of at least 0."
                )
                value = None
            counts.append(value)
        if counts[1] is None and counts[0] is not None:
            counts[1] = counts[0] * self._seq_length
        return counts[0], counts[1]

    def _begin_slowly(self, msec: float | None) -> Span:
        if not self.is_enabled:
            return NO_SPAN
        before = self.inside
        if before is not None:
            if find_open(ITERATION) is before:
                report_misuse(
                    "double iteration",
                    "A training iteration started before the previous one ended, so that one is ended now.",
                )
                self.end()
            else:
                report_misuse(
                    "iterations in threads",
                    "Two threads or tasks are in a training iteration at the same time, and each one counts. "
                    "Call training_iteration() only where the optimizer step is made.",
                )
                self._others.append(before)
                self._is_special = True
        # Before the span begins, so that it belongs to its own step.
        set_context(self.step, None)
        self.inside = span = start_span(Name.TRAINING_SINGLE_ITERATION, msec, under=self.span)
        return span

    def _end_slowly(
        self, msec: float | None, error: BaseException | None
    ) -> tuple[Span | None, int]:
        span = self.inside
        if self._others:
            candidates = self.open_iterations()
            here = find_open(ITERATION)
            mine = [other for other in candidates if other is here]
            span = (mine or candidates)[-1]
            self._drop(span)
            if not mine:
                other_thread()
        elif span is None:
            report_misuse(
                "end training iteration", "A training iteration ended without a matching start."
            )
            return None, 0
        else:
            self.inside = None
        end = moment(msec, "end of a training iteration")
        stop_span(span, end, error)
        end_parts(span, span.end)
        return span, span.end

    # Updates

    def update(self, end: int = 0) -> None:
        """Write an update event with the progress of the loop; the final one with its ``end``."""
        try:
            progress = self.progress
            if not progress.flops_per_sample:
                self._note_missing_work()
            attributes = progress.attributes(self._job.world_size)
            self._loss = loss = self._latest_loss()
            if loss is not None and math.isfinite(loss):
                attributes["latest_loss"] = loss
            first, last = clock.to_wall(progress.first_end), clock.to_wall(progress.last_end)
            attributes["first_logged_train_iterations_finish_timestamp_sec"] = first / 1e9
            attributes["last_logged_train_iterations_finish_timestamp_sec"] = last / 1e9
            attributes["is_final"] = bool(end)
            kept = TrainingMetricsUpdateAttributes.adopt(attributes)
            self.span.add_event(Event(UPDATE, kept, end or clock.now()))
            progress.close_window(self._every)
        except Exception as error:
            report("training update", error)

    def _note_missing_work(self) -> None:
        """Warn if throughput is enabled but cannot be computed."""
        if not self._job.config.ask("is_log_throughput_enabled"):
            return
        samples = "Samples per second are reported"
        if not self.progress.samples:
            samples = "Samples per second need global_batch_size_or_fn"
        warn_once(
            "throughput without flops",
            "TFLOP/s are not reported: is_log_throughput_enabled is set, but flops_per_sample_or_fn is not. "
            f"{samples}.",
        )

    def _latest_loss(self) -> float | None:
        journal = state.journal
        if journal is not None:
            for name in self._losses:
                value = latest(name, list(journal.lanes))
                if value is not None:
                    return value
        return self._loss

    def finish(self, end: int, error: BaseException | None = None) -> None:
        """End the open iterations, and write the final update if iterations are not reported yet."""
        for span in self.open_iterations():
            self.end_open(span, end, error)
        self.report_rest(end)

    def report_rest(self, end: int) -> None:
        """Write the final update, if iterations are not reported yet."""
        progress = self.progress
        progress.count_waiting()
        if progress.since_update and self.is_enabled:
            self.update(end)

    def open_iterations(self) -> list[Span]:
        """Return the open iterations; there are several if several threads train."""
        return [*self._others, *([] if self.inside is None else [self.inside])]

    def _drop(self, span: Span) -> None:
        """Remove an iteration from the open ones."""
        left = self.open_iterations()
        left.remove(span)
        self.inside = left.pop() if left else None
        self._others = left

    def end_open(self, span: Span, end: int, error: BaseException | None) -> bool:
        """End this span and return True, or return False if it belongs to another part of the job."""
        if span not in self.open_iterations():
            return False
        self._drop(span)
        stop_span(span, end, error)
        self._count(span.start, span.end, None, None, True)
        return True


def _ended_out_of_order(span: Span) -> None:
    """Clean up after an iteration that was not the innermost open span of this thread."""
    if not span.is_of_this_thread:
        other_thread()
    elif span._frame is None:
        # In an asyncio event loop, no span counts as the innermost.
        end_parts(span, span.end)


def other_thread() -> None:
    """Report a misuse: an iteration ended in another thread than it started in."""
    report_misuse(
        "iteration in thread",
        "A training iteration ended in another thread than it started in.",
    )


def loop_attributes(
    job: TrainingJob,
    start: int,
    samples: int | None,
    iterations_target: Count | None,
    samples_target: Count | None,
) -> TrainingLoopAttributes:
    """Return the start and the targets of a loop, from the call and the configuration."""
    batch = job.config.ask("global_batch_size")
    seq_length = job.config.ask("seq_length")
    start = _checked("train_iterations_start", start) or 0
    samples = _checked("train_samples_start", samples)
    # If the last loop ended here, its samples are counted, not estimated by the current batch size.
    last = job.last if job.last is not None and job.last.overall == start else None
    done = None
    if samples is None and last is not None:
        samples, done = last.samples_overall, last.flops_overall
    if samples is None and batch is not None:
        samples = start * batch
    target = _checked("train_iterations_target", iterations_target)
    target = target or job.config.ask("train_iterations_target")
    target_samples = _checked("train_samples_target", samples_target)
    target_samples = target_samples or job.config.ask("train_samples_target")
    work = (
        job.config.ask("flops_per_sample") if job.config.ask("is_log_throughput_enabled") else None
    )
    if not work:
        done = None
    elif not done and samples is not None:
        done = samples * work
    return TrainingLoopAttributes.create(
        train_iterations_start=start,
        train_samples_start=samples,
        train_iterations_target=target,
        train_samples_target=target_samples,
        train_tokens_target=seq_length * target_samples if seq_length and target_samples else None,
        completed_floating_point_operations_overall=done,
    )


def _checked(name: str, given: Count | None) -> int | None:
    """Return an argument of a loop, or the result of its function; None for a wrong one."""
    number: int | None = None
    try:
        value = given() if callable(given) else given
    except Exception as error:
        why = f"function raised {type(error).__name__}: {text_of(error)}"
    else:
        try:
            number = TrainingLoopAttributes.FIELDS[name].take(value)
            return number
        except ValueError as error:
            why = str(error)
    report_misuse(f"loop {name}", f"{name} of a training loop {why}. It is ignored.")
    return None


clock.follow(globals())
