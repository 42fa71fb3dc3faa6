"""Parts of a training step as spans, in a thread whose lane is known.

A step comes to each of these once, with caches that the step itself has filled with something else. There,
every function that is called costs a microsecond or more, and looking up what belongs to a thread costs
three. So entering and leaving are written out here, and what is known is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter_ns as _now
from typing import TYPE_CHECKING, Any

from stepwell.integrations.wrapping import LOADING, LOADING_TIME, Wrapped
from stepwell.journal import clock
from stepwell.journal.format import SLOT_MASK
from stepwell.journal.metrics import context, log, word_of, write_row
from stepwell.journal.span import Span, withdraw
from stepwell.journal.state import current_lane
from stepwell.training.current import current

if TYPE_CHECKING:
    from stepwell.journal.lane import Lane
    from stepwell.training.training_loop import TrainingLoop

LOSS = "loss"


class TrainingThread:
    """The thread that a trainer trains in, from when its loop begins.

    Attributes:
        lane: where it writes, None while that is not known.
        phases: nanoseconds in the parts of the loop's steps; None while they are not to be counted.
    """

    __slots__ = ("_loss_word", "lane", "phases")

    def __init__(self) -> None:
        self.lane: Lane | None = None
        self._loss_word = 0
        self.phases: dict[str, int] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # With a copy of its trainer goes one that knows nothing yet.
        return TrainingThread, ()

    def begin(self, loop: TrainingLoop | None) -> None:
        """This loop begins, in the calling thread."""
        self.lane = current_lane()
        self._loss_word = word_of(LOSS)
        self.phases = None if loop is None else loop.progress.phases

    def end(self) -> None:
        """It has ended."""
        self.lane = self.phases = None

    def enter(self, span: Span) -> int:
        """Enter a span; when it began."""
        lane = self.lane
        # No call from here to where the slot is ours: a signal handler may record in between.
        if lane is not None and not lane.frames:
            slot = lane.next
            if slot < lane.limit:
                lane.next = slot + 1
                word = span._word
                stack = lane.stack
                lane.metas[slot] = word | stack[-1] & SLOT_MASK
                stack.append(word | slot)
                lane.starts[slot] = start = _now()
                return start
        # The lane is unknown, the segment full, the run over, or tasks are about.
        start = _now()
        span.__enter__()
        return start

    def leave(self, span: Span) -> int:
        """Leave it again, well; when it ended."""
        lane = self.lane
        if lane is not None and not lane.frames:
            stack = lane.stack
            slot = stack[-1] ^ span._word
            # What is left of the entry is a slot only if it was this span's.
            if slot <= SLOT_MASK:
                stack.pop()
                lane.ends[slot] = end = _now()
                return end
        span.__exit__(None, None, None)
        return _now()

    def log_loss(self, loss: Any) -> None:
        """Record the loss of the step that is under way."""
        lane = self.lane
        step_word = context.step_word
        if not loss.is_cpu or loss.ndim:
            # One on an accelerator is fetched later, in the background.
            log({LOSS: loss})
        elif lane is None or not step_word or lane.row_next >= lane.row_limit:
            log({LOSS: loss.item()})
        else:
            value = float(loss.item())
            write_row(lane, _now(), value, step_word, self._loss_word, lane.number)


class Timed(Wrapped):
    """Stands in for a method: each call is a span, and its time is counted in the loop."""

    def __init__(self, original: Any, thread: TrainingThread, span: Span, attribute: str) -> None:
        super().__init__(original, timed)
        self._thread = thread
        self._span = span
        self._word = span._word
        self._attribute = attribute

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        thread = self._thread
        lane = thread.lane
        # No call from here to where the slot is ours: a signal handler may record in between.
        if lane is None or lane.frames or lane.next >= lane.limit:
            return timed(self._span, self._attribute, self._original, args, kwargs)
        slot = lane.next
        lane.next = slot + 1
        stack = lane.stack
        word = self._word
        lane.metas[slot] = word | stack[-1] & SLOT_MASK
        entry = word | slot
        stack.append(entry)
        lane.starts[slot] = start = _now()
        try:
            result = self._original(*args, **kwargs)
        except BaseException as error:
            self._span.__exit__(type(error), error, None)
            raise
        if stack[-1] == entry and not lane.frames:
            stack.pop()
            lane.ends[slot] = end = _now()
        else:
            # Others are open inside of it, or it went on in another segment.
            self._span.__exit__(None, None, None)
            end = _now()
        phases = thread.phases
        if phases is not None:
            attribute = self._attribute
            phases[attribute] = phases.get(attribute, 0) + end - start
        return result


def timed(span: Span, attribute: str, original: Any, args: Any, kwargs: Any) -> Any:
    """Record a call in whatever thread this is."""
    job = current.job
    if job is None:
        return original(*args, **kwargs)
    start = _now()
    with span:
        result = original(*args, **kwargs)
    job.count_time(attribute, _now() - start)
    return result


def timer(
    thread: TrainingThread, span: Span, attribute: str
) -> Callable[[Any], Callable[..., Any]]:
    """What makes a method into one that is timed."""

    def around(original: Any) -> Timed:
        return Timed(original, thread, span, attribute)

    return around


class Batches:
    """An iterator with the fetch of each batch recorded."""

    def __init__(self, items: Iterator[Any], thread: TrainingThread) -> None:
        self.items = items
        self._thread = thread

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        thread = self._thread
        if current.job is None:
            return next(self.items)
        start = thread.enter(LOADING)
        try:
            item = next(self.items)
        except StopIteration:
            # There was no further batch.
            withdraw(LOADING)
            raise
        except BaseException as error:
            LOADING.__exit__(type(error), error, None)
            raise
        end = thread.leave(LOADING)
        phases = thread.phases
        if phases is not None:
            phases[LOADING_TIME] = phases.get(LOADING_TIME, 0) + end - start
        return item


clock.follow(globals())
