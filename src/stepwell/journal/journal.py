"""The journal of one process: its folder, lanes and events.

Lanes take segments from it and return full ones. The pump seals them; for a worker, the pump of its parent.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any

from stepwell._core import clock
from stepwell._core.errors import never_raises, warn_once
from stepwell._core.masking import mask
from stepwell._core.values import cut, encode, on_host, text_of
from stepwell.journal import span as span_module
from stepwell.journal.format import (
    ERROR_EVENT,
    EVENTS,
    IMPLICIT_STEP,
    NAME_SHIFT,
    NAMES,
    SPAN,
    STEP_BIAS,
    VALUE,
)
from stepwell.journal.lane import Lane
from stepwell.journal.names import names
from stepwell.journal.scalars import DeviceScalars
from stepwell.journal.segment import Segment, file_name
from stepwell.journal.state import current_lane, state

if TYPE_CHECKING:
    from stepwell.journal.document import ProcessDocument

REMEMBERED_ERRORS = 16
INNERMOST = -1
"""In place of a span id: the innermost open span of the calling thread or task."""
MAX_AWAITED = 64
"""Open span handles that keep the segments of ended threads."""
MAX_CREATING = 4
"""Segments that are created at the same time."""
MAX_MAPPED = 8
"""Segments that stay mapped while they wait to be sealed."""


_HEADS: dict[tuple[str, str], bytes] = {}
"""Cached beginnings of event lines, up to their time."""
MAX_HEADS = 1000


def _head(kind: str, name: str) -> bytes:
    head = encode({"kind": kind, "name": cut(name, 1000)})[:-1]
    if len(_HEADS) < MAX_HEADS and len(head) < 200:
        _HEADS[kind, name] = head
    return head


class Journal:
    """Records into one process folder. ``folder`` is the folder of the live files."""

    def __init__(self, folder: Path, *, keeps_segments: bool = False) -> None:
        self.folder = folder
        self.lanes: list[Lane] = []
        self.drops: Counter[str] = Counter()
        self.retired: deque[tuple[Segment, Segment | None]] = deque()
        self.scalars = DeviceScalars(self)
        # Open span handles by their id.
        self.objects: dict[int, Any] = {}
        self.failing: OSError | None = None
        # Called with a SystemExit or KeyboardInterrupt that leaves a span.
        self.on_exit: Callable[[BaseException], None] | None = None
        self.closed = False
        self.is_copied = False
        self.capped: frozenset[str] = frozenset()
        self.document: ProcessDocument | None = None
        self._keeps_segments = keeps_segments
        self._seq = itertools.count()
        self._lane_numbers = itertools.count()
        # A segment holds a descriptor until it is mapped, and hundreds of threads may begin at once.
        # A SimpleQueue of permits: unlike a semaphore, a signal handler may enter it at any time.
        self._permits: SimpleQueue[None] = SimpleQueue()
        for _ in range(MAX_CREATING):
            self._permits.put(None)
        # A deque: popleft is atomic, also when two threads roll over at the same time.
        self._spares: deque[Segment] = deque()
        self._events_fd = -1
        self._opened = False
        self._errors: deque[dict[str, Any]] = deque(maxlen=REMEMBERED_ERRORS)
        self._torn = False
        self._retry_at = 0.0
        # Re-entrant: a logging or signal handler may record while an event is written.
        self._lock = threading.RLock()
        span_module.prepare()

    # Opening and closing

    def open(self) -> None:
        """Create the folder and the file of names. Raise OSError if that fails."""
        if not self._opened:
            self.folder.mkdir(parents=True, exist_ok=True)
            names.attach(self._open_append(NAMES))
            self._opened = True

    def open_lane(self) -> Lane:
        """Return a new lane for the calling thread."""
        if self._keeps_segments:
            self.retire_ended_threads()
        lane = Lane(self, next(self._lane_numbers), threading.current_thread())
        self.lanes.append(lane)
        return lane

    def retire_ended_threads(self) -> None:
        """Retire the lanes of threads that have ended."""
        with self._lock:
            # While the interpreter shuts down, the main thread counts as ended but still runs.
            main = threading.main_thread()
            ended = [lane for lane in self.lanes if not lane.thread.is_alive()]
            awaited = self._awaited()
            for lane in ended:
                if lane.thread is not main and lane not in awaited:
                    self.lanes.remove(lane)
                    self.retire_lane(lane)

    def _awaited(self) -> set[Lane]:
        """Return the lanes of the latest open span handles, which any thread may end."""
        return {span._lane for span in list(self.objects.values())[-MAX_AWAITED:]}

    def retire_lane(self, lane: Lane) -> None:
        """End the open spans of a lane, and hand over its segments for sealing."""
        lane.abandon_open()
        lane.close()
        for identity, span in list(self.objects.items()):
            if span._lane is lane:
                span.end = span.end or clock.now()
                self.objects.pop(identity, None)
        # Not unmapped here: the thread may still be alive, with open spans.
        for segment, blob in ((lane.segment, lane.blob), (lane.metrics, None)):
            if segment is not None and self._keeps_segments:
                self.retire(segment, blob)
            elif segment is not None:
                self.retired.append((segment, blob))

    def close_files(self) -> None:
        """Close the text files. Segments stay mapped: other threads may have open spans."""
        names.close()
        # If a write hangs, its file stays open: the descriptor must not be reused for another file.
        if self._lock.acquire(timeout=1.0):
            fd, self._events_fd = self._events_fd, -1
            self._lock.release()
            if fd >= 0:
                os.close(fd)

    def leave_to_parent(self) -> None:
        """Close the files of the parent, in a forked child."""
        fd, self._events_fd = self._events_fd, -1
        if fd >= 0:
            os.close(fd)

    # Segments

    def take(self, kind: str, seq: int | None = None, after: int = -1) -> Segment | None:
        """Return a new segment; None if the disk is full, the cap is reached or the folder was removed.

        The number of a span segment is above ``after``: readers order the segments of a lane by number.
        """
        if self.closed or kind in self.capped:
            return None
        if kind == "spans" and self._spares:
            with contextlib.suppress(IndexError):
                spare = self._spares.popleft()
                if spare.seq > after:
                    return spare
                # The pump was slow, and the lane has a later segment already.
                spare.discard()
        if self.failing is not None and not self._may_retry():
            return None
        try:
            segment = self._create(kind, next(self._seq) if seq is None else seq)
        except OSError as error:
            self.fail(error)
            return None
        if self.failing is not None:
            self.recovered()
        return segment

    def _create(self, kind: str, seq: int) -> Segment:
        # A file system that hangs for some threads must not stop the others here: these go on without.
        has_permit = True
        try:
            self._permits.get(timeout=1.0)
        except Empty:
            has_permit = False
        try:
            return Segment(self.folder, kind, seq)
        finally:
            if has_permit:
                self._permits.put(None)

    def _may_retry(self) -> bool:
        """Return whether to try again: for workers, which have no pump that retries."""
        if not self._keeps_segments or monotonic() < self._retry_at:
            return False
        self._retry_at = monotonic() + 1.0
        return True

    def prepare(self) -> None:
        """Create a spare span segment. Raise OSError if there is still no space."""
        if not self._spares and not self.closed:
            self._spares.append(self._create("spans", next(self._seq)))

    def wants_spare(self) -> bool:
        """Return whether a lane has used half of its segment and there is no spare one."""
        return not self._spares and any(lane.next > lane.limit // 2 > 0 for lane in self.lanes)

    def retire(self, segment: Segment, blob: Segment | None) -> None:
        """Hand over a segment that its lane no longer uses, with its attributes."""
        if self._keeps_segments:
            self._mark_full(segment)
            if blob is not None:
                self._mark_full(blob)
        else:
            is_in_file = not segment.is_in_memory and not (blob and blob.is_in_memory)
            if len(self.retired) >= MAX_MAPPED and not self.is_copied and is_in_file:
                # The pump is behind: it will read the file, and memory use stays constant.
                segment.unmap()
                if blob is not None:
                    blob.unmap()
            self.retired.append((segment, blob))

    def write_back(self) -> None:
        """Update the files of segments that are in memory because their file system refused a store."""
        for lane in list(self.lanes):
            for segment in (lane.segment, lane.blob, lane.metrics):
                if segment is not None:
                    segment.write_back()

    def drop_spare(self) -> None:
        """Remove the spare segment."""
        while self._spares:
            self._spares.popleft().discard()

    @never_raises
    def _mark_full(self, segment: Segment) -> None:
        # A worker has no pump: its parent finds full segments by their suffix.
        segment.unmap()
        os.rename(
            segment.path, segment.path.with_name(file_name(segment.kind, segment.seq, "full"))
        )

    # Problems

    def count_drop(self, kind: str) -> None:
        """Count a record that was dropped."""
        self.drops[kind] += 1

    def fail(self, error: OSError) -> None:
        """Note that files cannot be written. The pump retries and calls ``recovered``."""
        self.failing = error
        self.complain(error)

    def complain(self, error: OSError) -> None:
        """Warn once that a file cannot be written."""
        warn_once(
            f"fail {self.folder}",
            "cannot write to %s (%s). Training continues and writing is retried; records that cannot be "
            "written meanwhile are dropped and counted.",
            error.filename or self.folder,
            error.strerror or error,
        )

    def recovered(self) -> None:
        """Resume recording: files can be written again."""
        self.failing = None
        names.retry()
        if self.document is not None:
            self.document.drops = dict(self.drops)
            with contextlib.suppress(OSError):
                self.document.write()

    # Events

    def write_event(
        self,
        kind: str,
        name: str,
        attributes: Mapping[str, Any],
        *,
        span: int | None = INNERMOST,
        time: int = 0,
        **fields: str | int,
    ) -> None:
        """Append a line to the events, with a single write before the call returns."""
        lane = self._own_lane()
        place = lane.current_span() if span == INNERMOST else span
        self._write_line(kind, name, attributes, lane, place, time, **fields)

    def is_new(self, error: BaseException) -> bool:
        """Return whether this exception was not seen before."""
        # Its __dict__ identifies it: kept alive, it cannot be confused with a later exception at the same
        # address. The exception itself would keep all variables of its stack frames alive.
        own = error.__dict__
        if any(own is seen for seen in list(self._errors)):
            return False
        self._errors.append(own)
        if self.on_exit is not None and not isinstance(error, Exception):
            self.on_exit(error)
        return True

    def write_error(self, lane: Lane, span: int | None, error: BaseException) -> None:
        """Record an exception on the innermost span that it leaves."""
        attributes = {
            "exception_type": type(error).__qualname__,
            "exception_message": cut(str(mask(text_of(error))), 2000),
        }
        self._write_line("event", ERROR_EVENT, attributes, lane, span)

    def _own_lane(self) -> Lane:
        lane = current_lane()
        return lane if lane is not None and lane.journal is self else self.open_lane()

    def _write_line(
        self,
        kind: str,
        name: str,
        attributes: Mapping[str, Any],
        lane: Lane,
        span: int | None,
        time: int = 0,
        **fields: str | int,
    ) -> None:
        place = lane.place or lane.encode_place()
        if fields:
            place = place[:-1] + b"," + encode(fields)[1:]
        what = _HEADS.get((kind, name)) or _head(kind, name)
        where = b"null" if span is None else b"%d" % span
        when = b',"time":%d,"span":%b,' % (time or clock.now(), where)
        line = what + when + place[1:-1] + b',"attributes":' + encode(attributes) + b"}\n"
        if self.closed:
            self.count_drop("events")
            return
        with self._lock:
            problem = self._append(line)
        if problem is not None:
            self.count_drop("events")
            self.fail(problem)

    def _append(self, line: bytes) -> OSError | None:
        """Write a line; return the error if it could not be written."""
        try:
            if self._events_fd < 0:
                self._events_fd = self._open_append(EVENTS)
            data = b"\n" + line if self._torn else line
            self._torn = os.write(self._events_fd, data) != len(data)
        except OSError as error:
            return error
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) if self._torn else None

    def _open_append(self, name: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        flags |= getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
        return os.open(self.folder / name, flags, 0o644)

    # Values that are not scalars in host memory

    @never_raises
    def take_odd_value(
        self, lane: Lane, name: str, value: Any, step_word: int, time: int, word: int
    ) -> None:
        """Record a logged value that is not a number in host memory."""
        if hasattr(value, "detach") and not on_host(value) and value.numel() == 1:
            self.scalars.add(lane, time, value, step_word, word)
            if self._keeps_segments:
                self.scalars.resolve_in_background()
            return
        step = None if step_word & IMPLICIT_STEP else step_word - STEP_BIAS
        keep = state.keep_value
        if keep is None or not keep(self, text_of(name), value, step):
            self.write_event(VALUE, text_of(name), {"value": value, "step": step})


class Track:
    """A lane without a thread, for spans that have ended; readers show it as a thread of this name.

    Only one thread may write, usually that of the pump.
    """

    def __init__(self, journal: Journal, name: str) -> None:
        self.journal = journal
        self.name = name
        self._lane: Lane | None = None

    def write(self, name: str, category: str, start: int, end: int, attributes: bytes) -> bool:
        """Write a span with times of the monotonic clock. Return whether there was space for it."""
        lane = self._lane or self._open()
        word = names.intern(SPAN, name, category) << NAME_SHIFT
        return lane.write_finished(word, start, end, attributes)

    def _open(self) -> Lane:
        lane = self.journal.open_lane()
        # The main thread never ends, so the lane is not retired.
        lane.thread = threading.main_thread()
        lane.title = {**lane.title, "thread": self.name, "native": 0}
        self._lane = lane
        return lane
