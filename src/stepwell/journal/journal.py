"""The journal of one process: its folder, its lanes, its names and its events.

Lanes ask it for segments and hand back full ones; the pump, or for a worker its parent's pump, seals them.
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
from time import monotonic
from typing import TYPE_CHECKING, Any

from stepwell.journal import clock
from stepwell.journal import span as span_module
from stepwell.journal.errors import quietly, warn_once
from stepwell.journal.format import IMPLICIT_STEP, STEP_BIAS
from stepwell.journal.lane import Lane
from stepwell.journal.masking import mask
from stepwell.journal.names import names
from stepwell.journal.scalars import DeviceScalars
from stepwell.journal.segment import Segment, file_name
from stepwell.journal.state import current_lane, state
from stepwell.journal.values import cut, encode, on_host, text_of

if TYPE_CHECKING:
    from stepwell.journal.document import ProcessDocument

EVENTS = "events.jsonl"
NAMES = "names.jsonl"
ERROR_EVENT = "error"
LOGGER = "logger"
VALUE = "value"
"""Kind of the line that says that a logger begins or ends; no event of the run."""
ITEM = "item"
"""Kind of the line with something that was logged and is no number; no event of the run either."""
REMEMBERED_ERRORS = 16
INNERMOST = -1
"""In the place of a span's identity: the innermost open one of the calling thread or task."""
MAX_AWAITED = 64
"""So many open span objects keep the segments of threads that have ended."""
MAX_MAPPED = 8
"""So many segments that wait to be sealed stay mapped."""


_HEADS: dict[tuple[str, str], bytes] = {}
"""The beginnings of event lines, up to their time."""
MAX_HEADS = 1000


def _head(kind: str, name: str) -> bytes:
    made = encode({"kind": kind, "name": cut(name, 1000)})[:-1]
    if len(_HEADS) < MAX_HEADS and len(made) < 200:
        _HEADS[kind, name] = made
    return made


class Journal:
    """What records into one process folder. ``folder`` is where the live files are."""

    def __init__(self, folder: Path, *, keeps_segments: bool = False) -> None:
        self.folder = folder
        self.lanes: list[Lane] = []
        self.drops: Counter[str] = Counter()
        self.retired: deque[tuple[Segment, Segment | None]] = deque()
        self.scalars = DeviceScalars(self)
        # The span objects that are open, by their identity.
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
        # A deque: taking from it is one step, also when two threads roll over at once.
        self._spares: deque[Segment] = deque()
        self._events_fd = -1
        self._opened = False
        self._errors: deque[dict[str, Any]] = deque(maxlen=REMEMBERED_ERRORS)
        self._torn = False
        self._retry_at = 0.0
        # Re-entrant: a logging or signal handler may record while an event is being written.
        self._lock = threading.RLock()
        span_module.prepare()

    # Opening and closing

    def open(self) -> None:
        """Make the folder and start the string table; OSError when that is impossible."""
        if not self._opened:
            self.folder.mkdir(parents=True, exist_ok=True)
            names.attach(self._open_append(NAMES))
            self._opened = True

    def open_lane(self) -> Lane:
        """A lane for the calling thread, which takes it for its own."""
        if self._keeps_segments:
            self.retire_ended_threads()
        lane = Lane(self, next(self._lane_numbers), threading.current_thread())
        self.lanes.append(lane)
        return lane

    def retire_ended_threads(self) -> None:
        """Take over the segments of threads that are gone."""
        with self._lock:
            # The main thread counts as ended while the interpreter shuts down, yet goes on.
            main = threading.main_thread()
            ended = [lane for lane in self.lanes if not lane.thread.is_alive()]
            awaited = self._awaited()
            for lane in ended:
                if lane.thread is not main and lane not in awaited:
                    self.lanes.remove(lane)
                    self.retire_lane(lane)

    def _awaited(self) -> set[Lane]:
        """Lanes with open span objects, which any thread may end; the latest ones of them."""
        return {span._lane for span in list(self.objects.values())[-MAX_AWAITED:]}

    def retire_lane(self, lane: Lane) -> None:
        """End what a lane has open, and hand over its segments."""
        lane.give_up()
        lane.close()
        for identity, span in list(self.objects.items()):
            if span._lane is lane:
                span.end = span.end or clock.now()
                self.objects.pop(identity, None)
        # Not unmapped here: the thread may live, and be inside of a span.
        for segment, blob in ((lane.segment, lane.blob), (lane.metrics, None)):
            if segment is not None and self._keeps_segments:
                self.retire(segment, blob)
            elif segment is not None:
                self.retired.append((segment, blob))

    def close_files(self) -> None:
        """Close the text files. Segments stay mapped: other threads may be inside of a span."""
        names.close()
        # A write that hangs keeps its file: the number must not come to mean another one.
        if self._lock.acquire(timeout=1.0):
            fd, self._events_fd = self._events_fd, -1
            self._lock.release()
            if fd >= 0:
                os.close(fd)

    def leave_to_parent(self) -> None:
        """In a forked child: let go of the parent's files."""
        fd, self._events_fd = self._events_fd, -1
        if fd >= 0:
            os.close(fd)

    # Segments

    def take(self, kind: str, seq: int | None = None, after: int = -1) -> Segment | None:
        """A fresh segment; None when the disk is full, the cap is reached or the folder is gone.

        Of spans, its number is above ``after``: readers take a lane's segments in that order.
        """
        if self.closed or kind in self.capped:
            return None
        if kind == "spans" and self._spares:
            with contextlib.suppress(IndexError):
                spare = self._spares.popleft()
                if spare.seq > after:
                    return spare
                # The pump was slow, and the lane had gone on without it.
                spare.discard()
        if self.failing is not None and not self._may_retry():
            return None
        try:
            segment = Segment(self.folder, kind, next(self._seq) if seq is None else seq)
        except OSError as error:
            self.fail(error)
            return None
        if self.failing is not None:
            self.recovered()
        return segment

    def _may_retry(self) -> bool:
        """Whether a worker, which has no pump to do it, should find out if space has returned."""
        if not self._keeps_segments or monotonic() < self._retry_at:
            return False
        self._retry_at = monotonic() + 1.0
        return True

    def prepare(self) -> None:
        """Make a span segment ahead of need; also finds out whether space has returned."""
        if not self._spares and not self.closed:
            self._spares.append(Segment(self.folder, "spans", next(self._seq)))

    def wants_spare(self) -> bool:
        """Whether some lane is past half of its segment."""
        return not self._spares and any(lane.next > lane.limit // 2 > 0 for lane in self.lanes)

    def retire(self, segment: Segment, blob: Segment | None) -> None:
        """Hand over a segment that its lane has left."""
        if self._keeps_segments:
            self._mark_full(segment)
            if blob is not None:
                self._mark_full(blob)
        else:
            is_in_file = not segment.is_in_memory and not (blob and blob.is_in_memory)
            if len(self.retired) >= MAX_MAPPED and not self.is_copied and is_in_file:
                # The pump is behind: it reads the file, and memory stays flat.
                segment.unmap()
                if blob is not None:
                    blob.unmap()
            self.retired.append((segment, blob))

    def write_back(self) -> None:
        """Bring files up to date with segments whose file system has refused a store."""
        for lane in list(self.lanes):
            for segment in (lane.segment, lane.blob, lane.metrics):
                if segment is not None:
                    segment.write_back()

    def drop_spare(self) -> None:
        """Remove the segment that was prepared and not needed."""
        while self._spares:
            self._spares.popleft().discard()

    @quietly
    def _mark_full(self, segment: Segment) -> None:
        # A worker runs no pump: its parent finds full segments by their name.
        segment.unmap()
        os.rename(
            segment.path, segment.path.with_name(file_name(segment.kind, segment.seq, "full"))
        )

    # What could not be recorded

    def count_drop(self, kind: str) -> None:
        """Remember that a record was not kept."""
        self.drops[kind] += 1

    def fail(self, error: OSError) -> None:
        """Note that files cannot be written; the pump tries again and calls ``recovered``."""
        self.failing = error
        self.complain(error)

    def complain(self, error: OSError) -> None:
        """Say once that something could not be written."""
        warn_once(
            f"fail {self.folder}",
            "cannot write to %s (%s): training goes on. Writing is tried again; what cannot be "
            "recorded meanwhile is dropped and counted",
            error.filename or self.folder,
            error.strerror or error,
        )

    def recovered(self) -> None:
        """Space has returned."""
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
        **about: str | int,
    ) -> None:
        """Append one line to the events, with a single write before the call returns."""
        lane = self._own_lane()
        place = lane.current_span() if span == INNERMOST else span
        self._write_line(kind, name, attributes, lane, place, time, **about)

    def is_new(self, error: BaseException) -> bool:
        """Whether this is the first time that this exception is seen."""
        # Its namespace, kept alive, tells it from a later one at the same address. Keeping the
        # exception itself would keep all variables of the frames it went through.
        own = error.__dict__
        if any(own is known for known in list(self._errors)):
            return False
        self._errors.append(own)
        if self.on_exit is not None and not isinstance(error, Exception):
            self.on_exit(error)
        return True

    def write_error(self, lane: Lane, span: int | None, error: BaseException) -> None:
        """Record an exception on the span that it went through first."""
        about = {
            "exception_type": type(error).__qualname__,
            "exception_message": cut(str(mask(text_of(error))), 2000),
        }
        self._write_line("event", ERROR_EVENT, about, lane, span)

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
        **about: str | int,
    ) -> None:
        place = lane.place or lane.encode_place()
        if about:
            place = place[:-1] + b"," + encode(about)[1:]
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
        """Write a line; what kept it from being written, if anything did."""
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

    # Values that are no host scalars

    @quietly
    def take_odd_value(
        self, lane: Lane, name: str, value: Any, step_word: int, time: int, word: int
    ) -> None:
        """Keep a logged value that is not a number in host memory."""
        if hasattr(value, "detach") and not on_host(value) and value.numel() == 1:
            self.scalars.add(lane, time, value, step_word, word)
            if self._keeps_segments:
                self.scalars.resolve_in_background()
            return
        step = None if step_word & IMPLICIT_STEP else step_word - STEP_BIAS
        keep = state.keep_value
        if keep is None or not keep(self, text_of(name), value, step):
            self.write_event(VALUE, text_of(name), {"value": value, "step": step})
