"""Python stacks as source lines: of tracebacks, and of processes that make no progress (``stacks.json``).

A source line has file, line, function and text, never values of variables; literals of secrets are masked.
The pump writes ``stacks.json`` from its own thread, so it shows where the main thread hangs unless that
holds the GIL. The file stays if the process is killed, and is removed when it makes progress again.
"""

from __future__ import annotations

import contextlib
import itertools
import linecache
import re
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from stepwell._core import clock
from stepwell._core.files import write_json
from stepwell._core.masking import mask_source
from stepwell.journal.format import STACKS

if TYPE_CHECKING:
    from stepwell.journal.journal import Journal
    from stepwell.telemetry.recorder import Recorder

EVERY = 1.0
QUIET = 5.0
"""Seconds without progress before stacks are written; then again each time the interval has doubled."""
MOST_BETWEEN = 60.0
MAX_THREADS = 64
OWN_THREADS = "stepwell-"

OUTERMOST = 10
"""Lines kept from the start of a deep stack, and …"""
INNERMOST = 30
"""… from its end."""
MAX_SOURCE = 200
MAX_NAME = 400
MAX_WALKED = 10_000
SourceLine = dict[str, Any]
_Place = tuple[CodeType, int]
_T = TypeVar("_T")
_FRAME = re.compile(
    r'^  File "(?P<file>.*)", line (?P<line>\d+), in (?P<function>.+)\n?', re.MULTILINE
)
_STARTS = (
    # ExceptionWrapper of torch._utils
    re.compile(
        r"Caught \S+ (?:in )?(?P<where>.+)\.\nOriginal (?P<trace>Traceback \(most recent call last\):\n)"
    ),
    # ProcessRaisedException of torch.multiprocessing.spawn
    re.compile(
        r"-- (?P<where>Process \d+) terminated with the following error:\n"
        r"(?P<trace>Traceback \(most recent call last\):\n)"
    ),
)
_TRACEBACK = re.compile(r"^(?:Original )?Traceback \(most recent call last\):\n", re.MULTILINE)
_ERROR = re.compile(r"^(?P<type>[^\s:]+)(?:: (?P<message>.*))?\Z", re.MULTILINE | re.DOTALL)


def watch_stacks(recorder: Recorder) -> StackWatch:
    """Start to write the stacks of this process whenever it makes no progress."""
    watch = StackWatch(recorder.journal, recorder.folder)
    recorder.pump.every(EVERY, watch.look)
    return watch


class StackWatch:
    """Checks the main thread for progress. Its methods are called on the pump's thread."""

    def __init__(self, journal: Journal, folder: Path) -> None:
        self._journal = journal
        self._path = folder / STACKS
        self._progress: object = None
        self._since = time.monotonic()
        self._due = QUIET
        self._is_written = False

    def look(self) -> None:
        """Write the stacks if nothing was recorded for a while; otherwise remove them."""
        progress = self._find_progress()
        now = time.monotonic()
        if progress != self._progress:
            self._progress, self._since, self._due = progress, now, QUIET
            self.remove()
            return
        quiet = now - self._since
        if quiet >= self._due:
            self._due = quiet + min(quiet, MOST_BETWEEN)
            write_json(self._path, {**describe_threads(), "quiet_s": round(quiet, 1)})
            self._is_written = True

    def remove(self) -> None:
        """Remove the stacks, which are out of date."""
        if self._is_written:
            self._is_written = False
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _find_progress(self) -> object:
        """Return a value that changes when the main thread records, or any thread if that never did."""
        pump = threading.current_thread()
        # Without the pump's own lane, and tracks, which have no thread: they are not progress of the
        # training.
        lanes = [
            lane
            for lane in list(self._journal.lanes)
            if lane.thread is not pump and lane.title["native"]
        ]
        main = [lane for lane in lanes if lane.thread is threading.main_thread()]
        return [
            (lane.number, lane.seq_bits, lane.next, lane.row_next, len(lane.stack))
            for lane in main or lanes
        ]


def describe_threads() -> dict[str, Any]:
    """Return the stacks of all threads of this process as JSON, the main thread first."""
    frames = sys._current_frames()
    main = threading.main_thread().ident
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    threads = []
    for ident in sorted(frames, key=lambda ident: (ident != main, ident)):
        name = names.get(ident, f"thread {ident}")
        if not name.startswith(OWN_THREADS):
            threads.append({"thread": name[:200], "lines": lines_of_frame(frames[ident])})
    return {"time": clock.wall(), "threads": threads[:MAX_THREADS]}


def lines_of_traceback(traceback: TracebackType | None) -> list[SourceLine]:
    """Return the source lines of a traceback, outermost first."""
    places: list[_Place] = []
    while traceback is not None and len(places) < MAX_WALKED:
        places.append((traceback.tb_frame.f_code, traceback.tb_lineno))
        traceback = traceback.tb_next
    return _lines(places)


def lines_of_frame(frame: FrameType | None) -> list[SourceLine]:
    """Return the source lines of a stack, outermost first."""
    places: list[_Place] = []
    while frame is not None and len(places) < MAX_WALKED:
        places.append((frame.f_code, frame.f_lineno or 0))
        frame = frame.f_back
    return _lines(places[::-1])


def lines_of_text(traceback: str) -> list[SourceLine]:
    """Return the source lines of a formatted traceback, outermost first."""
    return [
        _line(frame["file"], int(frame["line"]), frame["function"], _source_after(traceback, frame))
        for frame in _kept(list(_FRAME.finditer(traceback)))
    ]


def _source_after(traceback: str, frame: re.Match[str]) -> str:
    line = traceback[frame.end() :].partition("\n")[0]
    return line.strip() if line.startswith("    ") else ""


def _lines(places: list[_Place]) -> list[SourceLine]:
    return [
        _line(
            code.co_filename,
            number,
            getattr(code, "co_qualname", code.co_name),
            linecache.getline(code.co_filename, number).strip(),
        )
        for code, number in _kept(places)
    ]


def _kept(places: list[_T]) -> Iterable[_T]:
    if len(places) <= OUTERMOST + INNERMOST:
        return places
    return itertools.chain(places[:OUTERMOST], places[-INNERMOST:])


def _line(file: str, number: int, function: str, source: str) -> SourceLine:
    return {
        "file": file[-MAX_NAME:],
        "line": number,
        "function": function[:MAX_NAME],
        "source": mask_source(source[:MAX_SOURCE]),
    }


@dataclass(frozen=True)
class RemoteError:
    """An exception of another process or thread, whose traceback is in the message of torch's exception.

    For example of DataLoader workers, the pin-memory thread, DataParallel replicas and
    ``torch.multiprocessing.spawn``.

    Attributes:
        raised_in: the process or thread: ``DataLoader worker 0``.
        type: the name of its class.
        message: its message.
        lines: its source lines, outermost first.
        announcement: the message of the exception that contains it, up to the traceback.
    """

    raised_in: str
    type: str
    message: str
    lines: list[SourceLine]
    announcement: str


def remote_error(message: str) -> RemoteError | None:
    """Return the innermost exception whose traceback a message contains, or None."""
    starts = [match for pattern in _STARTS for match in pattern.finditer(message)]
    if not starts:
        return None
    innermost = max(starts, key=lambda match: match.start())
    # The last of several chained exceptions is the one that was raised.
    *_, trace = _TRACEBACK.finditer(message)
    text = message[trace.end() :].rstrip()
    error = _ERROR.search(text)
    lines = lines_of_text(text if error is None else text[: error.start()])
    if error is None or not lines:
        return None
    where = innermost["where"].replace("worker process ", "worker ")
    return RemoteError(
        raised_in=where[:1].lower() + where[1:] if where.startswith("Process") else where,
        type=error["type"].rpartition(".")[2],
        message=error["message"] or "",
        lines=lines,
        announcement=message[: min(match.start("trace") for match in starts)]
        .removesuffix("Original ")
        .strip(),
    )
