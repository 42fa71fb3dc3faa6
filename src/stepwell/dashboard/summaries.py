"""The list of runs, completed in the background."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass

from stepwell._core import clock
from stepwell.analysis.run_list import RETRY_S, bare_entry, summaries_of
from stepwell.dashboard.answers.values import Json, plain
from stepwell.dashboard.catalogue import Catalogue
from stepwell.reading import RecordedRun
from stepwell.reading.run import Stamp, stamp_of

BUDGET_S = 0.4
"""Time to compute summaries of runs in one request; the rest is computed in the background."""
LIVE_S = 30.0
REST = 10
"""The entry of a live run is used for this long, or for this many times the time that it took."""
ANNOUNCE_S = 2.0
"""Viewers are told about new entries at most this often."""
MOST_COLUMNS = 200
"""Settings and metrics that are offered as columns."""
log = logging.getLogger("stepwell.dashboard")


@dataclass(frozen=True)
class Known:
    """The complete entry of a run, the state of the run that it describes, and when it may be replaced."""

    row: Json
    stamp: Stamp
    due: float


class Summaries:
    """The list of runs. Findings and goodput are computed in the background, newest run first.

    Args:
        catalogue: the runs.
        changed: called when more is known about them.
        compute: returns the complete entry of a run as JSON.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        changed: Callable[[], None],
        compute: Callable[[RecordedRun], bytes],
    ) -> None:
        self._catalogue = catalogue
        self._changed = changed
        self._compute = compute
        self._lock = threading.Lock()
        self._known: dict[str, Known] = {}
        self._wanted: list[str] = []
        self._current: str | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def answer(self) -> Json:
        """Return all runs, with what is known about them by now."""
        runs = self._catalogue.runs()
        entries, incomplete = summaries_of(runs.items(), budget_s=BUDGET_S)
        rows: dict[str, Json] = {entry.id: plain(asdict(entry)) for entry in entries}
        stamps = {run_id: stamp_of(runs[run_id]) for run_id in incomplete}
        with self._lock:
            pending = [
                run_id
                for run_id, stamp in stamps.items()
                if _is_due(self._known.get(run_id), rows[run_id], stamp)
            ]
            for run_id in incomplete:
                if run_id in self._known:
                    rows[run_id] = _updated(self._known[run_id].row, rows[run_id])
            self._wanted = [run_id for run_id in pending if run_id != self._current]
            if self._wanted and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(
                    target=self._compute_all, name="stepwell-summaries", daemon=True
                )
                self._thread.start()
        keys = Counter(key for row in rows.values() for key in row["config"])
        names = Counter(name for row in rows.values() for name in row["metrics"])
        return {
            "folder": str(self._catalogue.folder),
            "runs": list(rows.values()),
            "config_keys": [key for key, _ in keys.most_common(MOST_COLUMNS)],
            "metric_names": [name for name, _ in names.most_common(MOST_COLUMNS)],
            "pending": len(pending),
        }

    def goodputs(self) -> dict[str, float | None]:
        """Return the goodput of each run, None if it is not known yet."""
        return {row["id"]: row["goodput"] for row in self.answer()["runs"]}

    def close(self) -> None:
        """Stop computing."""
        self._is_closed = True

    def _compute_all(self) -> None:
        announced = time.monotonic()
        while not self._is_closed:
            with self._lock:
                run_id = self._current = self._wanted.pop(0) if self._wanted else None
                if run_id is None:
                    self._thread = None
                    break
            run = self._catalogue.runs().get(run_id)
            if run is not None:
                self._compute_one(run_id, run)
            if time.monotonic() - announced > ANNOUNCE_S:
                announced = time.monotonic()
                self._changed()
        self._changed()

    def _compute_one(self, run_id: str, run: RecordedRun) -> None:
        began = time.monotonic()
        stamp = stamp_of(run)
        try:
            row = json.loads(self._compute(run))
        except Exception:
            # Listed without details.
            if not self._is_closed:
                log.warning("The summary of run %s cannot be computed", run_id, exc_info=True)
            row = plain(asdict(bare_entry(run)))
        due = clock.due_after(began, LIVE_S, REST)
        with self._lock:
            self._known[run_id] = Known({**row, "id": run_id}, stamp, due)


def _is_due(known: Known | None, row: Json, stamp: Stamp) -> bool:
    """Return whether the entry of a run must be computed: for a live run, from time to time.

    One that could not be computed, which has no findings, is tried again much later.
    """
    if known is None or known.row["status"] != row["status"]:
        return True
    if known.stamp != stamp:
        return time.monotonic() >= known.due
    return known.row["findings"] is None and time.monotonic() >= known.due + RETRY_S


def _updated(known: Json, now: Json) -> Json:
    """Return a known entry with what a run's documents say now: it may have ended or been restarted."""
    row = {**known, "ranks": now["ranks"], "attempts": now["attempts"]}
    if known["status"] != now["status"]:
        row |= {"status": now["status"], "status_text": now["status_text"]}
    return row
