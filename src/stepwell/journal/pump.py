"""The pump: one background thread per process, for work that training should not wait for.

It seals full segments, creates spare ones, folds in ended workers, fetches scalars from accelerators, copies
a spool to the run folder, writes heartbeats, retries after a full disk, and runs tasks of other modules. Each
task is guarded separately: a failure is reported once, and the task is tried again.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stepwell._core.errors import PROBLEMS, counts, log_warning, report
from stepwell._core.threads import start_thread
from stepwell.journal.archive import Archive, archive_kind
from stepwell.journal.cap import SizeCap
from stepwell.journal.document import ProcessDocument
from stepwell.journal.format import EVENTS, NAMES
from stepwell.journal.journal import Journal
from stepwell.journal.names import names
from stepwell.journal.seal import seal
from stepwell.journal.segment import Segment
from stepwell.journal.spool import SpoolCopy
from stepwell.journal.workers import fold_workers, remove_if_empty

TICK = 0.2
WORKERS_EVERY = 1.0
SYNC_EVERY = 1.0
MAX_RETRY = 5.0
MAX_REFUSED = 10.0
"""Seconds that the end of a run waits for a file system that refuses to store records."""
MAX_RETIRED = 256
"""Full segments that may wait while the run folder cannot be written (100 MB of a spool)."""
HOLD_OFF = {"retry": 0.0, "write back": 0.5, "seal": 1.0, "heartbeat": 1.0}
"""Seconds until a task that could not write is tried again, if not ``MAX_RETRY``."""

SMALL_SHARE = 0.001
"""The share of a core that a regular task may use. A task that needs more runs less often."""


@dataclass
class RegularTask:
    """A task that runs every ``seconds``, for the first time at ``due``."""

    seconds: float
    task: Callable[[], None]
    due: float
    share: float
    at_end: bool

    def run(self) -> None:
        """Run the task and compute when it is due again."""
        began = time.thread_time()
        self.due = time.monotonic() + self.seconds
        try:
            self.task()
        finally:
            used = time.thread_time() - began
            self.due = max(self.due, time.monotonic() + used / self.share)


class Pump:
    """Background work for one journal. ``folder`` is the process folder in the run folder."""

    def __init__(
        self, journal: Journal, folder: Path, document: ProcessDocument, cap: SizeCap
    ) -> None:
        self.journal = journal
        self.folder = folder
        self.document = document
        self.cap = cap
        self.process = folder.name
        self.archives = {
            kind: Archive(folder, kind, cap.roll_bytes) for kind in ("spans", "metrics", "workers")
        }
        self.spool = SpoolCopy(journal, folder) if journal.folder != folder else None
        journal.is_copied = self.spool is not None
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._stop = False
        self._asked = 0
        self._answered = threading.Condition()
        self._done = 0
        self._due: dict[str, float] = {}
        self._tasks: deque[Callable[[], None]] = deque()
        self._held_off: dict[str, float] = {}
        self._retry = 0.5
        self._regular: list[RegularTask] = []

    # The thread

    def every(
        self,
        seconds: float,
        task: Callable[[], None],
        *,
        first: float | None = None,
        share: float = SMALL_SHARE,
        at_end: bool = False,
    ) -> None:
        """Run a task every ``seconds``, less often if it needs more than its share of a core.

        Args:
            seconds: the interval.
            task: the function to call.
            first: seconds until the first call, if not ``seconds``.
            share: the share of a core that the task may use.
            at_end: whether to call it once more when the journal is closed.
        """
        due = time.monotonic() + (seconds if first is None else first)
        self._regular.append(RegularTask(seconds, task, due, share, at_end))

    def run_later(self, seconds: float, task: Callable[[], None]) -> None:
        """Run a task once, after this many seconds."""
        self.every(float("inf"), task, first=seconds)

    def run_soon(self, task: Callable[[], None]) -> None:
        """Run a task once, before the next round."""
        self._tasks.append(task)
        self._wake.set()

    def start(self) -> None:
        """Start the thread. If there can be none, ``flush`` and ``stop`` do the work."""
        self._thread = start_thread("stepwell-pump", self._run)

    def _run(self) -> None:
        while not self._stop:
            self._wake.wait(TICK)
            self._wake.clear()
            asked = self._asked
            self.work(everything=asked > self._done)
            # The CPU time of this thread so far; the next heartbeat writes it.
            self.document.recorder_cpu_ns = time.thread_time_ns()
            if asked > self._done:
                with self._answered:
                    self._done = asked
                    self._answered.notify_all()

    def flush(self, timeout: float) -> bool:
        """Do all waiting work. Return whether that succeeded in time."""
        if self._thread is None or not self._thread.is_alive():
            self.work(everything=True)
            return self.idle
        with self._answered:
            self._asked += 1
            asked = self._asked
            self._wake.set()
            done = self._answered.wait_for(lambda: self._done >= asked, timeout)
        return done and self.idle

    def is_ending(self) -> bool:
        """Return whether the journal is being closed. Tasks that wait should stop then."""
        return self._stop

    @property
    def idle(self) -> bool:
        """Whether no record waits to be written."""
        journal = self.journal
        return not journal.retired and not journal.scalars.pending and not journal.failing

    def stop(self, timeout: float) -> None:
        """End the thread, then seal all remaining segments."""
        self._stop = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)
            if self._thread.is_alive():
                log_warning(
                    "the run folder did not answer for %.0f s, so its last segments are not sealed. No "
                    "records are lost: readers read live files too.",
                    timeout,
                )
                self.journal.closed = True
                for lane in list(self.journal.lanes):
                    lane.close()
                return
        self._finish(min(timeout, MAX_REFUSED))

    def _finish(self, timeout: float) -> None:
        began = time.thread_time_ns()
        self._guard("task", self.run_tasks)
        for regular in self._regular:
            if regular.at_end:
                self._guard("regular", regular.task)
        self._guard("scalars", self.journal.scalars.finish)
        self.journal.closed = True
        for lane in list(self.journal.lanes):
            self.journal.retire_lane(lane)
        # First, because it frees space on a full disk. Readers also read segments that cannot be sealed.
        self.journal.drop_spare()
        self._write_back_retired(timeout)
        self._guard("names", names.retry)
        self._guard("seal", self.seal_retired)
        self._guard("workers", self.fold)
        remove_if_empty(self.journal.folder)
        if self.spool is not None:
            self._guard("spool", self.spool.finish)
        self.document.recorder_cpu_ns += time.thread_time_ns() - began
        self._guard("heartbeat", self.heartbeat)

    def _write_back_retired(self, timeout: float) -> None:
        """Write segments that are in memory only, before they are gone with the process.

        If their file system refuses, wait for it; then count what is lost.
        """
        parts = [part for parts in self.journal.retired for part in parts if part is not None]
        waiting = [part for part in parts if part.is_in_memory]
        end = time.monotonic() + timeout
        while waiting:
            try:
                waiting[-1].write_back()
                waiting.pop()
            except OSError as error:
                if time.monotonic() >= end:
                    break
                self.journal.complain(error)
                time.sleep(TICK)
        lost: Counter[str] = Counter()
        for segment in waiting:
            lost[segment.kind] += segment.count_unwritten()
        self.journal.drops.update(lost)
        if lost.total():
            log_warning(
                "%s did not accept the last %s records within %.0f s. They are lost.",
                self.journal.folder,
                f"{lost.total():,}",
                timeout,
            )

    # The work

    def work(self, everything: bool = False) -> None:
        """Do one round of all tasks that are due, or of all tasks."""
        self._guard("retry", self.retry)
        if self.journal.failing is None:
            self._guard("names", names.retry)
            self._guard("task", self.run_tasks)
        self._guard("scalars", self.journal.scalars.resolve)
        self._guard("threads", self.journal.retire_ended_threads)
        self._guard("write back", self.journal.write_back)
        self._guard("seal", self.seal_retired)
        if self.journal.wants_spare() and self.journal.failing is None:
            self._guard("spare", self.journal.prepare)
        if everything or self._is_due("workers", WORKERS_EVERY):
            self._guard("workers", self.fold)
        if everything or self._is_due("sync", SYNC_EVERY):
            self._guard("cap", self._enforce_cap)
            if self.spool is not None:
                self._guard("spool", self._copy_spool)
            self._guard("sync", self.sync)
        if everything or self._is_due("heartbeat", self.document.interval):
            self._guard("heartbeat", self.heartbeat)
        for number, regular in enumerate(self._regular):
            if time.monotonic() >= regular.due:
                self._guard(f"regular {number}", regular.run)

    def _is_due(self, task: str, every: float) -> bool:
        now = time.monotonic()
        if now < self._due.get(task, 0.0):
            return False
        self._due[task] = now + every
        return True

    def _guard(self, name: str, task: Callable[[], None]) -> None:
        """Run a task. If it cannot write, pause it for a while; recording continues meanwhile."""
        if not self._stop and time.monotonic() < self._held_off.get(name, 0.0):
            return
        try:
            task()
        except OSError as error:
            self._held_off[name] = time.monotonic() + HOLD_OFF.get(name, MAX_RETRY)
            if name == "spare" or len(self.journal.retired) > MAX_RETIRED:
                self.journal.fail(error)
            else:
                self.journal.complain(error)
        except Exception as error:
            report(f"pump {name}", error)

    def retry(self) -> None:
        """While files cannot be written, try again from time to time; resume recording on success."""
        journal = self.journal
        if journal.failing is None:
            self._retry = 0.5
            return
        if not self._is_due("retry", self._retry):
            return
        self._retry = min(self._retry * 2, MAX_RETRY)
        journal.open()
        journal.prepare()
        journal.recovered()
        self._due.pop("heartbeat", None)

    def run_tasks(self) -> None:
        """Run the tasks of ``run_soon``; one that fails on a full disk is kept for later."""
        while self._tasks:
            task = self._tasks.popleft()
            try:
                task()
            except OSError:
                self._tasks.append(task)
                raise

    def seal_retired(self) -> None:
        """Move full segments into the archives."""
        retired = self.journal.retired
        while retired:
            segment, blob = retired[0]
            # Attributes first: a sealed span must find its attributes.
            for part in (blob, segment):
                if part is not None:
                    self._seal(part)
            retired.popleft()

    def _seal(self, segment: Segment) -> None:
        if not segment.path.exists():
            return
        segment.write_back()
        data = segment.path.read_bytes() if segment.map.closed else bytes(segment.map)
        block = seal(self.process, data)
        if block is not None:
            if self.spool is not None:
                self.spool.copy_names()
            self.archives[archive_kind(segment.kind)].append(block)
            self.cap.add(len(block))
        os.unlink(segment.path)
        if self.spool is not None:
            self.spool.forget(segment)
        if not self.journal.closed:
            segment.unmap()

    def _copy_spool(self) -> None:
        if self.spool is not None:
            self.spool.copy(self.seal_retired)

    def fold(self) -> None:
        """Seal full segments of workers, and fold ended workers into the archives of this process."""
        self.cap.add(fold_workers(self.journal.folder, self.archives))

    def sync(self) -> None:
        """Flush records to disk, so that a power cut loses about one second."""
        began = time.monotonic()
        paths = [self.journal.folder / name for name in (NAMES, EVENTS)]
        paths += [archive.path for archive in self.archives.values()]
        for lane in list(self.journal.lanes):
            segments = (lane.segment, lane.blob, lane.metrics)
            paths += [segment.path for segment in segments if segment is not None]
        for path in paths:
            _sync_file(path)
        # If the disk is slow to sync, it is busy: leave it to the training.
        self._due["sync"] = time.monotonic() + max(SYNC_EVERY, 20 * (time.monotonic() - began))

    def heartbeat(self) -> None:
        """Write process.json."""
        self.document.drops = dict(self.journal.drops)
        self.document.problems = counts[PROBLEMS]
        self.document.write()

    def _enforce_cap(self) -> None:
        self.cap.enforce(self.folder, self.journal)


def _sync_file(path: Path) -> None:
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        getattr(os, "fdatasync", os.fsync)(fd)
    finally:
        os.close(fd)
