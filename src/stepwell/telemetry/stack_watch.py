"""Python stacks of a process that makes no progress, written by the pump into ``stacks.json``.

The pump takes them from its own thread, so they show where the main thread hangs as long as that does
not hold the GIL. The file stays when the process is killed, and goes when it makes progress again.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.journal import clock
from stepwell.journal.document import STACKS, write_json
from stepwell.telemetry.source_lines import lines_of_frame

if TYPE_CHECKING:
    from stepwell.journal.journal import Journal
    from stepwell.telemetry.recorder import Recorder

EVERY = 1.0
QUIET = 5.0
"""Seconds without progress before stacks are written; then again each time that this has doubled."""
MOST_BETWEEN = 60.0
MAX_THREADS = 64
OWN_THREADS = "stepwell-"


def watch_stacks(recorder: Recorder) -> StackWatch:
    """Write the stacks of this process whenever it makes no progress."""
    watch = StackWatch(recorder.journal, recorder.folder)
    recorder.pump.every(EVERY, watch.look)
    return watch


class StackWatch:
    """Looks for progress of the main thread. Its methods are called on the pump's thread."""

    def __init__(self, journal: Journal, folder: Path) -> None:
        self._journal = journal
        self._path = folder / STACKS
        self._progress: object = None
        self._since = time.monotonic()
        self._due = QUIET
        self._is_written = False

    def look(self) -> None:
        """Write the stacks if nothing was recorded for a while; remove them if something was."""
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
        """Remove the stacks: they are no longer true."""
        if self._is_written:
            self._is_written = False
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _find_progress(self) -> object:
        """Return a value that changes when the main thread records; if it never did, when any thread does."""
        pump = threading.current_thread()
        # The pump's own lane and tracks, which have no thread, show no progress of the training.
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
    """Return where every thread of this process is, the main thread first, as JSON."""
    frames = sys._current_frames()
    main = threading.main_thread().ident
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    threads = []
    for ident in sorted(frames, key=lambda ident: (ident != main, ident)):
        name = names.get(ident, f"thread {ident}")
        if not name.startswith(OWN_THREADS):
            threads.append({"thread": name[:200], "lines": lines_of_frame(frames[ident])})
    return {"time": clock.wall(), "threads": threads[:MAX_THREADS]}
