"""The runs that a server shows, and its answers about them.

A request names a run by its id, which is looked up here; no part of a request ever becomes a path. Answers
are kept while the run does not change. A live run changes all the time: then the previous answer is returned
while a new one is computed, so that a slow answer about a large run delays no request.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, TimeoutError
from dataclasses import dataclass
from pathlib import Path

from stepwell._core import clock
from stepwell._core.errors import StepwellError
from stepwell.analysis.cache import RecentValues
from stepwell.reading import RecordedRun, list_runs
from stepwell.reading.documents import check_format, clean
from stepwell.reading.process import process_folders
from stepwell.reading.remote import address_of
from stepwell.reading.run import RUN, Stamp, stamp_of

LIST_S = 1.0
REMOTE_LIST_S = 30.0
"""How long the list of runs is used before the folder is read again, also on object storage."""
FRESH_S = 1.0
REST = 5
"""An answer about a live run is used for this many times the time that it took, at least ``FRESH_S``."""
PATIENCE_S = 0.8
MOST_BYTES = 256 << 20
"""Size of the answers that are kept."""
WORKERS = 2
SLOW_WORKERS = 2
"""Answers that are made at the same time: those for one screen, and those that read all records of a run."""


@dataclass
class Kept:
    """An answer, the state of the run that it describes, and the time that it took."""

    body: bytes
    stamps: tuple[Stamp, ...]
    is_live: bool
    due: float
    took: float


class Catalogue:
    """The runs in a folder, or a single run.

    Args:
        folder: a folder of runs; or a run folder, which is then the only run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._is_single = (folder / RUN).is_file() or bool(process_folders(folder))
        self._list_s = LIST_S if address_of(folder) is None else REMOTE_LIST_S
        self._lock = threading.Lock()
        # Listing a large folder takes long. Answers do not wait for it.
        self._list_lock = threading.Lock()
        self._runs: dict[str, RecordedRun] = {}
        self._listed = -REMOTE_LIST_S
        self._kept = RecentValues(MOST_BYTES)
        self._pending: dict[Hashable, Future[bytes]] = {}
        self._workers = ThreadPoolExecutor(WORKERS, "stepwell-answer")
        self._slow_workers = ThreadPoolExecutor(SLOW_WORKERS, "stepwell-slow-answer")

    # Runs

    def runs(self) -> dict[str, RecordedRun]:
        """Return all runs by id, newest first."""
        with self._list_lock:
            if time.monotonic() - self._listed >= self._list_s:
                runs = [RecordedRun(self.folder)] if self._is_single else list_runs(self.folder)
                self._runs = runs_by_id(runs)
                self._listed = time.monotonic()
            return self._runs

    def find(self, run_id: str) -> RecordedRun:
        """Return the run with this id. Raises ``UnknownRunError`` if there is none."""
        run = self.runs().get(run_id)
        if run is None:
            raise UnknownRunError(f"There is no run {run_id[:200]!r} in {self.folder}")
        check_format(run.id, run.document)
        # A new reader: run.json may have changed.
        return RecordedRun(run.folder, run.mirror, run.stored_bytes)

    # Answers

    def answer(
        self,
        key: Hashable,
        runs: Sequence[RecordedRun],
        make: Callable[[], bytes],
        *,
        is_slow: bool = False,
        instead: Callable[[], bytes] | None = None,
    ) -> bytes:
        """Return a kept answer about these runs if it is still right, else make it.

        While a live run changes, an answer may be a little behind; it is then an ``OldAnswer``. Answers that
        are slow do not delay others. With ``instead``, return that if the answer takes longer than
        ``PATIENCE_S``; the next request gets it.
        """
        stamps = tuple(map(stamp_of, runs))
        is_live = any(run.status == "running" for run in runs)
        with self._lock:
            kept: Kept | None = self._kept.get(key)
            if kept is not None:
                # When a run is killed, its documents do not change, but it may have new records.
                is_unchanged = kept.stamps == stamps and not kept.is_live
                due_s = kept.due - time.monotonic()
                if is_live and due_s > 0:
                    return OldAnswer(kept.body, due_s)
                if not is_live and is_unchanged:
                    return kept.body
            pending = self._pending.get(key)
            is_older = is_live and pending is not None
            if pending is None:
                workers = self._slow_workers if is_slow else self._workers
                pending = workers.submit(self._make, key, stamps, is_live, make)
                self._pending[key] = pending
        if kept is not None and is_live and kept.took > FRESH_S:
            return OldAnswer(kept.body, kept.took)
        try:
            body = pending.result(None if instead is None else PATIENCE_S)
        except TimeoutError:
            if instead is None:
                raise
            return instead()
        return OldAnswer(body, FRESH_S) if is_older else body

    def _make(
        self,
        key: Hashable,
        stamps: tuple[Stamp, ...],
        is_live: bool,
        make: Callable[[], bytes],
    ) -> bytes:
        began = time.monotonic()
        try:
            body = make()
        finally:
            with self._lock:
                self._pending.pop(key, None)
        if not isinstance(body, IncompleteAnswer):
            due = clock.due_after(began, FRESH_S, REST)
            kept = Kept(body, stamps, is_live, due, time.monotonic() - began)
            self._kept.put(key, kept, len(body))
        return body

    def close(self) -> None:
        """Stop the threads. Answers that are being made are not waited for."""
        for workers in (self._workers, self._slow_workers):
            workers.shutdown(wait=False, cancel_futures=True)


class IncompleteAnswer(bytes):
    """An answer to which more can be added when it is asked for again. It is not kept."""


class OldAnswer(bytes):
    """An answer about a live run that was begun before this request, so it may miss the newest records.

    Attributes:
        due_s: seconds after which the next request gets a newer one.
    """

    due_s: float

    def __new__(cls, body: bytes, due_s: float) -> OldAnswer:
        """Wrap a body."""
        answer = super().__new__(cls, body)
        answer.due_s = due_s
        return answer


class UnknownRunError(StepwellError):
    """No run has the requested id."""


def runs_by_id(runs: Sequence[RecordedRun]) -> dict[str, RecordedRun]:
    """Return runs by id, in the same order. A copied run gets the name of its folder as id."""
    originals = {run.id: run for run in runs if run.folder.name == run.id}
    by_id: dict[str, RecordedRun] = {}
    for run in runs:
        key = run.id
        if originals.get(key, run) is not run or key in by_id:
            key = clean(run.folder.name)
            while key in by_id or originals.get(key, run) is not run:
                key += "+"
        by_id[key] = run
    return by_id
