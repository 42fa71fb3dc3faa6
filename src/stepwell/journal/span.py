"""Spans: the hot path of the recorder.

A ``Span`` is a name to enter as often as one likes: again, recursively, from many threads and tasks. It
keeps no state of its own while open; that is in the lane of the thread. The methods that run for every
span are written out by hand, without a call that could be saved, and they are swapped for empty ones
while nothing records.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns as _now
from types import TracebackType
from typing import Any, TypeVar

from stepwell.journal import clock, frames
from stepwell.journal.errors import quietly, report
from stepwell.journal.format import ATTRIBUTE_SHIFT, ERROR, NAME_MASK, NAME_SHIFT, SLOT_MASK
from stepwell.journal.lane import DROPPED, Lane
from stepwell.journal.names import SPAN, names
from stepwell.journal.state import current_lane, hide_lane, is_current, local, state
from stepwell.journal.values import MAX_TEXT, NULL, RARE, encode, encode_quickly

F = TypeVar("F", bound=Callable[..., Any])

NO_ERRORS = (GeneratorExit, StopIteration, StopAsyncIteration)
"""How Python ends a loop is no failure of the span around it."""


def _no_loop() -> object | None:
    return None


_running_loop: Callable[[], object | None] = _no_loop
_encode: Callable[[Any], bytes] = encode


def prepare() -> None:
    """Get ready to record: tell asyncio code from plain code, and encode quickly."""
    global _running_loop, _encode
    from asyncio.events import _get_running_loop

    _running_loop = _get_running_loop
    _encode = encode_quickly()


class Span:
    """A named stretch of time; ``with span: ...`` records it, and it decorates functions."""

    __slots__ = ("_word",)

    def __init__(self, name: str, category: str = "") -> None:
        self._word = names.intern(SPAN, name, category) << NAME_SHIFT

    @property
    def name(self) -> str:
        """What it is called."""
        return names.key(self._word >> NAME_SHIFT)[2]

    @property
    def category(self) -> str:
        """The group of names it belongs to, "" for none."""
        return names.key(self._word >> NAME_SHIFT)[1]

    def __enter__(self) -> Span:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def __call__(self, function: F) -> F:
        from stepwell.journal.decorate import decorate

        return decorate(self, function)

    @quietly
    def set(self, **attributes: Any) -> None:
        """Add attributes to the innermost open span of this name in this thread or task."""
        lane = current_lane() if state.enabled else None
        slot = 0 if lane is None else lane.find(self._word)
        if lane is None or not slot:
            return
        offset = lane.put_attributes(_merge(lane.attributes_of(slot), attributes))
        slot = lane.find(self._word)
        if offset:
            kept = lane.metas[slot] & (SLOT_MASK | NAME_MASK)
            lane.metas[slot] = kept | offset << ATTRIBUTE_SHIFT

    def __reduce__(self) -> tuple[Any, ...]:
        # Ids belong to this process: another one has to look the name up.
        return type(self), (self.name, self.category)

    def __repr__(self) -> str:
        return f"<span {self.category + ':' if self.category else ''}{self.name}>"


class AttributedSpan(Span):
    """A span whose every entry carries these attributes."""

    __slots__ = ("attributes",)

    attributes: dict[str, Any]

    # Whoever makes one fills its slots: without an __init__ in Python that is twice as fast.
    __init__ = object.__init__

    def __enter__(self) -> AttributedSpan:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _with_attributes, (self.name, self.category, self.attributes)


class IdleSpan(Span):
    """A span that is never recorded."""

    __slots__ = ()

    def __enter__(self) -> IdleSpan:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def set(self, **attributes: Any) -> None:
        """Do nothing."""


def _with_attributes(name: str, category: str, attributes: dict[str, Any]) -> AttributedSpan:
    span: AttributedSpan = AttributedSpan()
    span._word = names.intern(SPAN, name, category) << NAME_SHIFT
    span.attributes = attributes
    return span


def _enter(self: Span) -> Span:
    try:
        lane: Lane = local.lane
    except AttributeError:
        _enter_slowly(self)
        return self
    if _running_loop() is not None:
        _enter_task(self, lane)
        return self
    # No call from here to where the slot is ours: a signal handler may record in between.
    slot = lane.next
    if slot >= lane.limit:
        _enter_slowly(self)
        return self
    lane.next = slot + 1
    stack = lane.stack
    word = self._word
    lane.metas[slot] = word | stack[-1] & SLOT_MASK
    stack.append(word | slot)
    lane.starts[slot] = _now()
    return self


def _enter_with_attributes(self: Any) -> Any:
    try:
        lane: Lane = local.lane
        data = _encode(self.attributes)
    except Exception:
        # The first span of this thread, or a value that only the careful way can keep.
        enter_with(self, encode(self.attributes))
        return self
    size = len(data)
    # msgspec writes NaN as null, which the careful way tells from None, and cuts nothing.
    is_odd = size > MAX_TEXT or (RARE in data and data.find(NULL) >= 0)
    if is_odd or _running_loop() is not None:
        enter_with(self, encode(self.attributes))
        return self
    # No call from here to where slot and offset are ours: a signal handler may record in between.
    slot = lane.next
    offset = lane.blob_next
    after = offset + size
    if slot >= lane.limit or after >= lane.blob_limit:
        _enter_slowly(self, data)
        return self
    lane.next = slot + 1
    lane.blob_next = (after + 8) & -8
    lane.blob_map[offset:after] = data
    stack = lane.stack
    word = self._word
    lane.metas[slot] = word | stack[-1] & SLOT_MASK | offset << ATTRIBUTE_SHIFT - 3
    stack.append(word | slot)
    lane.starts[slot] = _now()
    return self


def enter_with(self: Span, data: bytes) -> None:
    """Enter with attributes that are encoded already. To be called only while something records."""
    try:
        lane: Lane = local.lane
    except AttributeError:
        _enter_slowly(self, data)
        return
    if _running_loop() is not None:
        _enter_slowly(self, data)
        return
    size = len(data)
    # No call from here to where slot and offset are ours: a signal handler may record in between.
    slot = lane.next
    if slot >= lane.limit:
        _enter_slowly(self, data)
        return
    if data is lane.last_data:
        offset = lane.last_offset
        lane.next = slot + 1
    else:
        offset = lane.blob_next
        after = offset + size
        if after >= lane.blob_limit:
            _enter_slowly(self, data)
            return
        lane.next = slot + 1
        lane.blob_next = (after + 8) & -8
        lane.blob_map[offset:after] = data
        lane.last_offset = offset
        lane.last_data = data
    stack = lane.stack
    word = self._word
    lane.metas[slot] = word | stack[-1] & SLOT_MASK | offset << ATTRIBUTE_SHIFT - 3
    stack.append(word | slot)
    lane.starts[slot] = _now()


def enter_unrecorded(self: Span) -> None:
    """Enter so that leaving finds nothing to record; what is opened inside passes it over."""
    lane = current_lane()
    if lane is None:
        return
    if _running_loop() is not None:
        frames.enter_unrecorded(lane, self._word)
    else:
        lane.stack.append(self._word | DROPPED | lane.plain_parent_slot())


@quietly
def withdraw(self: Span) -> None:
    """Take back the innermost open span of this name in this thread or task, as if never entered."""
    lane: Lane | None = getattr(local, "lane", None)
    if lane is None:
        return
    slot = 0
    if lane.frames:
        frame = frames.leave(self._word, 0)
        slot = 0 if frame is None else frame.slot
    if not slot:
        slot = lane.leave(self._word, _now())
    if slot:
        # A row without a start is none; what was opened inside passes it over.
        lane.starts[slot] = 0


def _exit(
    self: Span,
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> None:
    try:
        lane: Lane = local.lane
    except AttributeError:
        return
    if kind is None:
        if not lane.frames:
            entry = lane.stack.pop()
            slot = entry ^ self._word
            # What is left of the entry is a slot only if it was this span's.
            if slot <= SLOT_MASK:
                lane.ends[slot] = _now()
                return
            lane.stack.append(entry)
        elif _leave_task(self._word):
            return
    _exit_slowly(self, lane, error)


@quietly
def _enter_slowly(self: Span, attributes: bytes = b"") -> None:
    """Enter for the first time in this thread, in a new segment, or inside a running loop."""
    lane = current_lane()
    if lane is None:
        return
    word = self._word
    if _running_loop() is not None:
        frames.enter(lane, word, attributes)
        return
    is_own = is_current(lane)
    try:
        if is_own:
            hide_lane(lane)
        lane.make_room()
        offset = lane.put_attributes(attributes) if attributes else 0
        parent = lane.plain_parent_slot()
        slot = lane.reserve()
        if not slot:
            lane.stack.append(parent | word | DROPPED)
            return
        lane.metas[slot] = parent | word | offset << ATTRIBUTE_SHIFT
        lane.stack.append(word | slot)
        lane.starts[slot] = _now()
    finally:
        if is_own:
            local.lane = lane


@quietly
def _exit_slowly(self: Span, lane: Lane, error: BaseException | None) -> None:
    """Leave with an error, out of order, or inside a running loop."""
    failed = error is not None and not isinstance(error, NO_ERRORS)
    flags = ERROR if failed else 0
    if failed and error is not None and lane.journal.is_new(error):
        # One record for an exception, on the innermost span that it went through. Before its end, so
        # that whoever sees that one can see the other.
        lane.journal.write_error(lane, lane.find_origin(self._word), error)
    frame = frames.leave(self._word, flags) if lane.frames else None
    if frame is None:
        lane.leave(self._word, _now() | flags)
    elif isinstance(error, GeneratorExit):
        # Perhaps closed by the loop, in a context of its own: the user's still has this frame, and
        # is to pass it over.
        frame.origin = 0


def _merge(old: bytes, attributes: dict[str, Any]) -> bytes:
    """An encoded attribute set with these added."""
    if not old:
        return encode(attributes)
    from stepwell.journal.careful import merge

    return merge(old, attributes)


def _enter_task(self: Span, lane: Lane) -> None:
    """Open a span of the running task."""
    if lane.limit == 0:
        _enter_slowly(self)
        return
    try:
        frames.enter(lane, self._word, b"")
    except Exception as error:
        report("span", error)


def _leave_task(word: int) -> bool:
    """Whether this closed a span of the running task."""
    try:
        return frames.leave(word, 0) is not None
    except Exception as error:
        report("span", error)
        return True


# While nothing records, leaving a span is a call that C answers with something false.
_nothing: Any = "".format

leave = _exit
"""Leave a span that was entered while something recorded."""
enter_with_attributes = _enter_with_attributes
"""Enter a span with its attributes. To be called only while something records."""

_on = (_enter, _enter_with_attributes, _exit)
_off = (Span.__enter__, AttributedSpan.__enter__, _nothing)


def _switch(enabled: bool) -> None:
    plain, attributed, leave = _on if enabled else _off
    Span.__enter__ = plain  # type: ignore[method-assign]
    AttributedSpan.__enter__ = attributed
    Span.__exit__ = leave  # type: ignore[method-assign]


clock.follow(globals())
state.switches.append(_switch)
_switch(False)
