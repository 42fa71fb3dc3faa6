"""Named spans: the hot path of the recorder.

A ``NamedSpan`` can be entered any number of times: repeatedly, recursively, from many threads and tasks. Its
state while it is open is in the lane of the thread. The methods that run for every span are inlined by hand
to avoid calls, and replaced by empty ones while nothing is recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns as _now
from types import TracebackType
from typing import Any, TypeVar

from stepwell._core import clock
from stepwell._core.errors import never_raises, report
from stepwell._core.values import MAX_TEXT, NULL, RARE, encode, fast_encoder
from stepwell.journal import task_spans
from stepwell.journal.format import ATTRIBUTE_SHIFT, ERROR, NAME_MASK, NAME_SHIFT, SLOT_MASK, SPAN
from stepwell.journal.lane import DROPPED, Lane
from stepwell.journal.names import names
from stepwell.journal.state import current_lane, hide_lane, is_current, local, state

F = TypeVar("F", bound=Callable[..., Any])

NO_ERRORS = (GeneratorExit, StopIteration, StopAsyncIteration)
"""Exceptions with which Python ends a loop: not an error of the span around it."""


def _no_loop() -> object | None:
    return None


_running_loop: Callable[[], object | None] = _no_loop
_encode: Callable[[Any], bytes] = encode


def prepare() -> None:
    """Load what recording needs: the check for a running event loop, and the encoder of msgspec."""
    global _running_loop, _encode
    from asyncio.events import _get_running_loop

    _running_loop = _get_running_loop
    _encode = fast_encoder()


class NamedSpan:
    """A span with a name. ``with span: ...`` records it; it also decorates functions."""

    __slots__ = ("name_word",)

    def __init__(self, name: str, category: str = "") -> None:
        self.name_word = names.intern(SPAN, name, category) << NAME_SHIFT

    @property
    def name(self) -> str:
        """The name of the span."""
        return names.key(self.name_word >> NAME_SHIFT)[2]

    @property
    def category(self) -> str:
        """The category of the name, "" for none."""
        return names.key(self.name_word >> NAME_SHIFT)[1]

    def __enter__(self) -> NamedSpan:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def __call__(self, function: F) -> F:
        from stepwell.journal.decorator import decorate

        return decorate(self, function)

    @never_raises
    def set(self, **attributes: Any) -> None:
        """Add attributes to the innermost open span of this name in this thread or task."""
        lane = current_lane() if state.enabled else None
        slot = 0 if lane is None else lane.find(self.name_word)
        if lane is None or not slot:
            return
        offset = lane.put_attributes(_merge(lane.attributes_of(slot), attributes))
        slot = lane.find(self.name_word)
        if offset:
            kept = lane.metas[slot] & (SLOT_MASK | NAME_MASK)
            lane.metas[slot] = kept | offset << ATTRIBUTE_SHIFT

    def __reduce__(self) -> tuple[Any, ...]:
        # Name ids are valid in this process only: another one looks up the name.
        return type(self), (self.name, self.category)

    def __repr__(self) -> str:
        return f"<span {self.category + ':' if self.category else ''}{self.name}>"


class AttributedSpan(NamedSpan):
    """A span that records these attributes whenever it is entered."""

    __slots__ = ("attributes",)

    attributes: dict[str, Any]

    # The caller fills the slots: twice as fast as an __init__ in Python.
    __init__ = object.__init__

    def __enter__(self) -> AttributedSpan:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _with_attributes, (self.name, self.category, self.attributes)


class IdleSpan(NamedSpan):
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
    span.name_word = names.intern(SPAN, name, category) << NAME_SHIFT
    span.attributes = attributes
    return span


def _enter(self: NamedSpan) -> NamedSpan:
    try:
        lane: Lane = local.lane
    except AttributeError:
        _enter_slowly(self)
        return self
    if _running_loop() is not None:
        _enter_task(self, lane)
        return self
    # No call until the slot is reserved: a signal handler may record in between.
    slot = lane.next
    if slot >= lane.limit:
        _enter_slowly(self)
        return self
    lane.next = slot + 1
    stack = lane.stack
    word = self.name_word
    lane.metas[slot] = word | stack[-1] & SLOT_MASK
    stack.append(word | slot)
    lane.starts[slot] = _now()
    return self


def _enter_with_attributes(self: Any) -> Any:
    try:
        lane: Lane = local.lane
        data = _encode(self.attributes)
    except Exception:
        # The first span of this thread, or a value that msgspec cannot encode.
        enter_with(self, encode(self.attributes))
        return self
    size = len(data)
    # msgspec writes NaN as null and cuts nothing; `encode` tells NaN from None.
    is_odd = size > MAX_TEXT or (RARE in data and data.find(NULL) >= 0)
    if is_odd or _running_loop() is not None:
        enter_with(self, encode(self.attributes))
        return self
    # No call until slot and offset are reserved: a signal handler may record in between.
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
    word = self.name_word
    lane.metas[slot] = word | stack[-1] & SLOT_MASK | offset << ATTRIBUTE_SHIFT - 3
    stack.append(word | slot)
    lane.starts[slot] = _now()
    return self


def enter_with(self: NamedSpan, data: bytes) -> None:
    """Enter with encoded attributes. Call it only while a journal is active."""
    try:
        lane: Lane = local.lane
    except AttributeError:
        _enter_slowly(self, data)
        return
    if _running_loop() is not None:
        _enter_slowly(self, data)
        return
    size = len(data)
    # No call until slot and offset are reserved: a signal handler may record in between.
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
    word = self.name_word
    lane.metas[slot] = word | stack[-1] & SLOT_MASK | offset << ATTRIBUTE_SHIFT - 3
    stack.append(word | slot)
    lane.starts[slot] = _now()


def enter_unrecorded(self: NamedSpan) -> None:
    """Enter without recording; spans opened inside get the parent of this one."""
    lane = current_lane()
    if lane is None:
        return
    if _running_loop() is not None:
        task_spans.enter_unrecorded(lane, self.name_word)
    else:
        lane.stack.append(self.name_word | DROPPED | lane.plain_parent_slot())


@never_raises
def withdraw(self: NamedSpan) -> None:
    """Remove the innermost open span of this name in this thread or task, as if never entered."""
    lane: Lane | None = getattr(local, "lane", None)
    if lane is None:
        return
    slot = 0
    if lane.frames:
        frame = task_spans.leave(self.name_word, 0)
        slot = 0 if frame is None else frame.slot
    if not slot:
        slot = lane.leave(self.name_word, _now())
    if slot:
        # Readers skip a row without a start; its children get its parent.
        lane.starts[slot] = 0


def _exit(
    self: NamedSpan,
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
            slot = entry ^ self.name_word
            # The result is a slot number only if the entry has the name of this span.
            if slot <= SLOT_MASK:
                lane.ends[slot] = _now()
                return
            lane.stack.append(entry)
        elif _leave_task(self.name_word):
            return
    _exit_slowly(self, lane, error)


@never_raises
def _enter_slowly(self: NamedSpan, attributes: bytes = b"") -> None:
    """Enter for the first time in this thread, in a new segment, or inside a running loop."""
    lane = current_lane()
    if lane is None:
        return
    word = self.name_word
    if _running_loop() is not None:
        task_spans.enter(lane, word, attributes)
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


@never_raises
def _exit_slowly(self: NamedSpan, lane: Lane, error: BaseException | None) -> None:
    """Leave with an error, out of order, or inside a running loop."""
    failed = error is not None and not isinstance(error, NO_ERRORS)
    flags = ERROR if failed else 0
    if failed and error is not None and lane.journal.is_new(error):
        # One event per exception, on the innermost span that it leaves. Written before the end, so that
        # a reader that sees the end can see the event.
        lane.journal.write_error(lane, lane.find_origin(self.name_word), error)
    frame = task_spans.leave(self.name_word, flags) if lane.frames else None
    if frame is None:
        lane.leave(self.name_word, _now() | flags)
    elif isinstance(error, GeneratorExit):
        # The loop may have closed the generator in another context. The context of the user still has
        # this span, and has to skip it.
        frame.origin = 0


def _merge(old: bytes, attributes: dict[str, Any]) -> bytes:
    """Return an encoded attribute set with these attributes added."""
    if not old:
        return encode(attributes)
    from stepwell._core.values import merge_encoded

    return merge_encoded(old, attributes)


def _enter_task(self: NamedSpan, lane: Lane) -> None:
    """Open a span in the running task."""
    if lane.limit == 0:
        _enter_slowly(self)
        return
    try:
        task_spans.enter(lane, self.name_word, b"")
    except Exception as error:
        report("span", error)


def _leave_task(word: int) -> bool:
    """Close a span of the running task; return whether there was one."""
    try:
        return task_spans.leave(word, 0) is not None
    except Exception as error:
        report("span", error)
        return True


# While nothing is recorded, __exit__ is a function in C that returns a false value.
_nothing: Any = "".format

leave = _exit
"""Leave a span that was entered while a journal was active."""
enter_with_attributes = _enter_with_attributes
"""Enter a span with its attributes. Call it only while a journal is active."""

_on = (_enter, _enter_with_attributes, _exit)
_off = (NamedSpan.__enter__, AttributedSpan.__enter__, _nothing)


def _switch(enabled: bool) -> None:
    plain, attributed, leave = _on if enabled else _off
    NamedSpan.__enter__ = plain  # type: ignore[method-assign]
    AttributedSpan.__enter__ = attributed
    NamedSpan.__exit__ = leave  # type: ignore[method-assign]


clock.follow(globals())
state.switches.append(_switch)
_switch(False)
