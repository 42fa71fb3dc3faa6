"""Spans for the parts of a training step, in a thread whose lane is known.

Each of these runs once per step, with CPU caches that the step itself has filled. There, every function
call costs a microsecond or more, and looking up data of a thread costs three. So entering and leaving are
inlined here, and the lane is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter_ns as _now
from typing import TYPE_CHECKING, Any

from stepwell._core import clock
from stepwell.integrations.wrappers import LOADING, LOADING_TIME, Wrapped
from stepwell.journal.format import SLOT_MASK
from stepwell.journal.metrics import context, log, word_of, write_row
from stepwell.journal.span import NamedSpan, withdraw
from stepwell.journal.state import current_lane
from stepwell.training.calls import current

if TYPE_CHECKING:
    from stepwell.journal.lane import Lane
    from stepwell.training.training_loop import TrainingLoop

LOSS = "loss"


class TrainingThread:
    """The thread that a trainer trains in.

    Attributes:
        lane: its lane, None while unknown.
        phases: nanoseconds in the parts of the loop's steps, None while they are not counted.
    """

    __slots__ = ("_loss_word", "lane", "phases")

    def __init__(self) -> None:
        self.lane: Lane | None = None
        self._loss_word = 0
        self.phases: dict[str, int] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # The copy of a trainer gets a new, empty object.
        return TrainingThread, ()

    def begin(self, loop: TrainingLoop | None) -> None:
        """Begin a loop in the calling thread."""
        self.lane = current_lane()
        self._loss_word = word_of(LOSS)
        self.phases = None if loop is None else loop.progress.phases

    def end(self) -> None:
        """End the loop."""
        self.lane = self.phases = None

    def enter(self, span: NamedSpan) -> int:
        """Enter a span. Return its start time."""
        lane = self.lane
        # No function call until the slot is reserved: a signal handler may record in between.
        if lane is not None and not lane.frames:
            slot = lane.next
            if slot < lane.limit:
                lane.next = slot + 1
                word = span.name_word
                stack = lane.stack
                lane.metas[slot] = word | stack[-1] & SLOT_MASK
                stack.append(word | slot)
                lane.starts[slot] = start = _now()
                return start
        # The lane is unknown, the segment is full, the run is over, or asyncio tasks are running.
        start = _now()
        span.__enter__()
        return start

    def leave(self, span: NamedSpan) -> int:
        """Leave a span without an exception. Return its end time."""
        lane = self.lane
        if lane is not None and not lane.frames:
            stack = lane.stack
            slot = stack[-1] ^ span.name_word
            # The rest of the entry is a slot only if the entry belongs to this span.
            if slot <= SLOT_MASK:
                stack.pop()
                lane.ends[slot] = end = _now()
                return end
        span.__exit__(None, None, None)
        return _now()

    def log_loss(self, loss: Any) -> None:
        """Record the loss of the current step."""
        lane = self.lane
        step_word = context.step_word
        if not loss.is_cpu or loss.ndim:
            # A value on an accelerator is fetched later, in the background.
            log({LOSS: loss})
        elif lane is None or not step_word or lane.row_next >= lane.row_limit:
            log({LOSS: loss.item()})
        else:
            value = float(loss.item())
            write_row(lane, _now(), value, step_word, self._loss_word, lane.number)


class Timed(Wrapped):
    """Replaces a method: each call is a span, and its time is added to the phases of the loop."""

    def __init__(
        self, original: Any, thread: TrainingThread, span: NamedSpan, attribute: str
    ) -> None:
        super().__init__(original, timed)
        self._thread = thread
        self._span = span
        self.name_word = span.name_word
        self._attribute = attribute

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        thread = self._thread
        lane = thread.lane
        # No function call until the slot is reserved: a signal handler may record in between.
        if lane is None or lane.frames or lane.next >= lane.limit:
            return timed(self._span, self._attribute, self._original, args, kwargs)
        slot = lane.next
        lane.next = slot + 1
        stack = lane.stack
        word = self.name_word
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
            # Spans inside it are still open, or it continues in another segment.
            self._span.__exit__(None, None, None)
            end = _now()
        phases = thread.phases
        if phases is not None:
            attribute = self._attribute
            phases[attribute] = phases.get(attribute, 0) + end - start
        return result


def timed(span: NamedSpan, attribute: str, original: Any, args: Any, kwargs: Any) -> Any:
    """Record a call, in any thread."""
    job = current.job
    if job is None:
        return original(*args, **kwargs)
    start = _now()
    with span:
        result = original(*args, **kwargs)
    job.count_time(attribute, _now() - start)
    return result


def timer(
    thread: TrainingThread, span: NamedSpan, attribute: str
) -> Callable[[Any], Callable[..., Any]]:
    """Return a function that replaces a method by a timed one, for ``Wrappings.replace``."""

    def around(original: Any) -> Timed:
        return Timed(original, thread, span, attribute)

    return around


class RecordedBatches:
    """An iterator that records the fetch of each batch."""

    def __init__(self, items: Iterator[Any], thread: TrainingThread) -> None:
        self.items = items
        self._thread = thread

    def __iter__(self) -> RecordedBatches:
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
