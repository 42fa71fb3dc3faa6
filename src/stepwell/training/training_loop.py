"""The training loop and its iterations: the part of a job that runs a million times."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns as _now
from typing import TYPE_CHECKING, Any

from stepwell.journal import clock
from stepwell.journal.errors import StepwellError, misuse, report
from stepwell.journal.metrics import latest, set_context
from stepwell.journal.state import state
from stepwell.telemetry.events import Event
from stepwell.telemetry.live import NO_SPAN, Span
from stepwell.training.attributes import TrainingLoopAttributes, TrainingMetricsUpdateAttributes
from stepwell.training.counters import Progress
from stepwell.training.standard_spans import WORDS, moment, start_span, stop_span
from stepwell.training.vocabulary import StandardTrainingJobEventName as EventName
from stepwell.training.vocabulary import StandardTrainingJobSpanName as Name

if TYPE_CHECKING:
    from stepwell.training.job import TrainingJob

ITERATION = WORDS[Name.TRAINING_SINGLE_ITERATION]
MAX_WAITING = 1000
"""So many iterations wait at most to be counted, all at once."""
COUNTS = ("global_batch_size_or_fn", "seq_length_or_fn", "flops_per_sample_or_fn")
LOSSES = ("loss", "train_loss", "train/loss")

Count = int | Callable[[], int]


class TrainingLoop:
    """A training loop that is under way."""

    __slots__ = (
        "_asks",
        "_every",
        "_is_special",
        "_job",
        "_look",
        "_loss",
        "_losses",
        "_objects",
        "_others",
        "_samples",
        "_seq_length",
        "_step",
        "_tokens",
        "inside",
        "is_enabled",
        "progress",
        "span",
    )

    def __init__(self, job: TrainingJob, span: Span, progress: Progress) -> None:
        config = job.config
        self._job = job
        self.span = span
        self.progress = progress
        self.is_enabled = job.ask("is_train_iterations_enabled") is not False
        self._every = config.log_every_n_train_iterations
        self.inside: Span | None = None
        self._others: list[Span] = []
        self._loss: float | None = None
        self._losses = LOSSES if config.loss_metric is None else (config.loss_metric,)
        journal = span._journal
        self._objects: dict[int, Any] = {} if journal is None else journal.objects
        # What is a plain value is looked up once, what is a function is asked for each iteration.
        self._asks = any(callable(getattr(config, field)) for field in COUNTS)
        # Whether the next iteration is not just one more of the usual size.
        self._is_special = self._asks
        self._samples = self._tokens = self._seq_length = 0
        self._step = progress.start
        self._look = min(progress.next_update, self._step + MAX_WAITING)
        self._ask_config()

    def _ask_config(self) -> None:
        config, progress = self._job.config, self.progress
        try:
            self._samples = config.global_batch_size or 0
            self._seq_length = config.seq_length or 0
            self._tokens = self._samples * self._seq_length
            if config.is_log_throughput_enabled:
                progress.flops_per_sample = config.flops_per_sample or 0
        except StepwellError as error:
            misuse("config function", str(error))

    # Iterations

    def begin(self, msec: float | None = None) -> Span:
        """Start an iteration."""
        if msec or self.inside is not None or not self.is_enabled:
            return self._begin_slowly(msec)
        span: Span = Span()
        span._attributes = span._events = None
        span._parent = self.span
        span._begin_step(ITERATION, self.span.id, self._step)
        self.inside = self._objects[span.id] = span
        return span

    def end_usual(self) -> None:
        """End the iteration that is under way, one more of the usual size. The quick way."""
        span = self.inside
        if span is None or self._is_special:
            self.end()
            return
        if not span._finish_now() and not span.is_of_this_thread:
            other_thread()
        self.inside = None
        del self._objects[span.id]
        self.progress.waiting.append((span.start, span.end, self._samples, self._tokens))
        self._step = step = self._step + 1
        if step >= self._look:
            self._look_whether_due()

    def end(
        self,
        samples: int | None = None,
        tokens: int | None = None,
        optimizer_step: bool = True,
        error: BaseException | None = None,
        msec: float | None = None,
    ) -> None:
        """End the iteration that is under way."""
        span = self.inside
        if msec or error is not None or self._others or span is None:
            span, end = self._end_slowly(msec, error)
            if span is None:
                return
        else:
            self.inside = None
            self._objects.pop(span.id, None)
            end = _now()
            if not span._finish(end) and not span.is_of_this_thread:
                other_thread()
        self._count(span.start, end, samples, tokens, optimizer_step)

    def _look_whether_due(self) -> None:
        """Report if it is time, and see to it that not too many iterations wait to be counted."""
        progress = self.progress
        progress.count_waiting()
        if self._step >= progress.next_update:
            self.update()
        self._look = min(progress.next_update, self._step + MAX_WAITING)

    def _count(
        self, start: int, end: int, samples: int | None, tokens: int | None, optimizer_step: bool
    ) -> None:
        """Count a pass that is not just one more of the usual size."""
        progress = self.progress
        if self._asks:
            self._ask_config()
        if type(samples) is not int or type(tokens) is not int or samples < 0 or tokens < 0:
            samples, tokens = self._take(samples, tokens)
        self._is_special = self._asks or not optimizer_step or bool(self._others)
        if not optimizer_step:
            progress.accumulate(start, end, samples, tokens)
            return
        if progress.partial_time:
            samples += progress.partial_samples
            tokens += progress.partial_tokens
            progress.partial_samples = progress.partial_tokens = 0
        samples = samples or self._samples
        tokens = tokens or samples * self._seq_length
        progress.waiting.append((start, end, samples, tokens))
        if progress.partial_time:
            progress.count_waiting()
        self._step += 1
        if self._step >= self._look:
            self._look_whether_due()

    def _take(self, samples: Any, tokens: Any) -> tuple[int, int]:
        """Numbers of samples and tokens as given, 0 where none or a wrong one was."""
        counts = []
        for name, value in (("samples", samples), ("tokens", tokens)):
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, int) or value < 0
            ):
                try:
                    value = int(value)
                except Exception:
                    value = -1
            if value is not None and value < 0:
                misuse(name, f"training_iteration({name}=…) takes a number of {name}, 0 or more")
                value = None
            counts.append(value or 0)
        return counts[0], counts[1]

    def _begin_slowly(self, msec: float | None) -> Span:
        if not self.is_enabled:
            return NO_SPAN
        before = self.inside
        if before is not None:
            if before.is_of_this_thread:
                misuse(
                    "double iteration",
                    "a training iteration is started inside of one: the earlier one is ended first",
                )
                self.end()
            else:
                misuse(
                    "iterations in threads",
                    "two threads are in training_iteration at once: each of them counts",
                )
                self._others.append(before)
                self._is_special = True
        span = start_span(Name.TRAINING_SINGLE_ITERATION, msec, under=self.span)
        self.inside = span
        set_context(self._step, None)
        return span

    def _end_slowly(
        self, msec: float | None, error: BaseException | None
    ) -> tuple[Span | None, int]:
        if not self.is_enabled:
            return None, 0
        span = self.inside
        if self._others:
            candidates = [*self._others, *([] if span is None else [span])]
            mine = [other for other in candidates if other.is_of_this_thread]
            span = (mine or candidates)[-1]
            candidates.remove(span)
            self.inside = candidates.pop() if candidates else None
            self._others = candidates
            if not mine:
                other_thread()
        elif span is None:
            misuse("end training iteration", "a training iteration is ended that was not started")
            return None, 0
        else:
            self.inside = None
        end = moment(msec, "end of a training iteration")
        stop_span(span, end, error)
        return span, span.end

    # Updates

    def update(self, is_final: bool = False) -> None:
        """Report where the loop is."""
        try:
            progress = self.progress
            attributes = progress.attributes(self._job.world_size)
            self._loss = self._latest_loss()
            attributes["latest_loss"] = self._loss
            first, last = clock.to_wall(progress.first_end), clock.to_wall(progress.last_end)
            attributes["first_logged_train_iterations_finish_timestamp_sec"] = first / 1e9
            attributes["last_logged_train_iterations_finish_timestamp_sec"] = last / 1e9
            attributes["is_final"] = is_final
            kept = TrainingMetricsUpdateAttributes.trusted(attributes)
            self.span.add_event(Event(EventName.TRAINING_METRICS_UPDATE.value, kept, clock.now()))
            progress.close_window(self._every)
        except Exception as error:
            report("training update", error)

    def _latest_loss(self) -> float | None:
        journal = state.journal
        if journal is not None:
            for name in self._losses:
                value = latest(name, list(journal.lanes))
                if value is not None:
                    return value
        return self._loss

    def finish(self, end: int) -> None:
        """End what is under way, and report the iterations that no update has told of yet."""
        for span in self.open_iterations():
            self.end_open(span, end, None)
        progress = self.progress
        progress.count_waiting()
        if progress.partial_time:
            # Gradients that were accumulated when the loop ended.
            self._count(progress.last_end, progress.last_end, 0, 0, True)
        if progress.since_update:
            self.update(is_final=True)

    def open_iterations(self) -> list[Span]:
        """The iterations that are under way, in several threads perhaps."""
        return [*self._others, *([] if self.inside is None else [self.inside])]

    def end_open(self, span: Span, end: int, error: BaseException | None) -> bool:
        """End this span if it is one of these; whether it was."""
        left = self.open_iterations()
        if span not in left:
            return False
        left.remove(span)
        self.inside = left.pop() if left else None
        self._others = left
        stop_span(span, end, error)
        self._count(span.start, span.end, None, None, True)
        return True


def other_thread() -> None:
    """Note that an iteration ended in another thread than it began in."""
    misuse(
        "iteration in thread",
        "a training iteration is ended in another thread than it was started in",
    )


def loop_attributes(
    job: TrainingJob,
    start: int,
    samples: int | None,
    iterations_target: Count | None,
    samples_target: Count | None,
) -> TrainingLoopAttributes:
    """Where a loop starts and is meant to end, from the call and the configuration."""
    batch = job.ask("global_batch_size")
    seq_length = job.ask("seq_length")
    if samples is None and batch is not None and type(start) is int:
        samples = start * batch
    target = _value(iterations_target, job.ask("train_iterations_target"))
    target_samples = _value(samples_target, job.ask("train_samples_target"))
    work = job.ask("flops_per_sample") if job.ask("is_log_throughput_enabled") else None
    done = samples * work if work and samples is not None else None
    return TrainingLoopAttributes.create(
        train_iterations_start=start,
        train_samples_start=samples,
        train_iterations_target=target,
        train_samples_target=target_samples,
        train_tokens_target=seq_length * target_samples if seq_length and target_samples else None,
        completed_floating_point_operations_overall=done,
    )


def _value(given: Count | None, otherwise: int | None) -> int | None:
    if given is None:
        return otherwise
    return given() if callable(given) else given


clock.follow(globals())
