"""Answers for one screen, at its level of detail: series, timeline, rank grid, list of runs."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict

from stepwell.analysis.detail import (
    bare_entry,
    grid_at,
    list_summaries,
    metric_list,
    search_spans,
    series_at,
    span_detail,
    timeline_at,
)
from stepwell.dashboard.answers import Json, plain, plain_list
from stepwell.dashboard.catalogue import Catalogue
from stepwell.dashboard.parameters import Parameters
from stepwell.reading import RecordedRun

AXES = ("step", "epoch", "samples", "tokens", "time")
WAYS = ("mean", "rank", "spread")
BUDGET_S = 0.4
"""Time to compute summaries of runs in one request; the rest is computed in the background."""
LIVE_S = 30.0
REST = 10
"""The entry of a live run is used for this long, or for this many times the time that it took."""
MOST_COLUMNS = 200
"""Settings and metrics that are offered as columns."""


def metric_list_answer(run: RecordedRun) -> Json:
    """Return the metrics of a run and the axes that they can be drawn over."""
    answer: Json = plain(metric_list(run))
    return answer


def series_answer(run: RecordedRun, given: Parameters) -> Json:
    """Return the curves of some metrics."""
    axis = given.choice("x", AXES)
    series = series_at(
        run,
        given.texts("name"),
        x=axis,
        by=given.choice("by", WAYS),
        rank=given.whole("rank"),
        start=given.number("start"),
        end=given.number("end"),
        points=given.count("points", 800, 10, 10_000),
    )
    return {
        "x": axis,
        "series": [
            {
                "name": each.name,
                "rank": each.rank,
                "count": each.count,
                "is_downsampled": each.is_downsampled,
                "x": plain_list(each.x),
                "y": plain_list(each.y),
                "low": None if each.low is None else plain_list(each.low),
                "high": None if each.high is None else plain_list(each.high),
                "odd": plain(each.odd),
            }
            for each in series
        ],
    }


def timeline_answer(run: RecordedRun, given: Parameters) -> Json:
    """Return the boxes of a time window."""
    window = timeline_at(
        run,
        given.whole("start"),
        given.whole("end"),
        given.count("width", 1500, 50, 8192),
        ranks=given.wholes("rank"),
        offset=given.count("offset", 0, 0, 1 << 20),
        lanes=given.count("lanes", 40, 1, 200),
        budget_s=3.0,
    )
    return {
        "full": list(window.full),
        "start": window.start,
        "end": window.end,
        "names": plain(window.names),
        "lanes": [
            {
                "label": lane.label,
                "rank": lane.rank,
                "attempt": lane.attempt,
                "process": lane.process,
                "thread": lane.thread,
                "is_worker": lane.is_worker,
                "row": plain_list(lane.row),
                "start": plain_list(lane.start),
                "end": plain_list(lane.end),
                "name": plain_list(lane.name),
                "count": plain_list(lane.count),
                "id": [None if each < 0 else each for each in lane.id.tolist()],
                "flags": plain_list(lane.flags),
            }
            for lane in window.lanes
        ],
        "lane_count": window.lane_count,
        "offset": window.offset,
        "ranks": window.ranks,
        "steps": plain(window.steps),
        "missing": window.missing,
    }


def search_answer(run: RecordedRun, given: Parameters) -> Json:
    """Return the spans that contain a text."""
    text = given.text("q")
    if text is None:
        return {"hits": [], "more": False, "stats": []}
    answer: Json = plain(search_spans(run, text, given.count("limit", 200, 1, 1000)))
    return answer


def span_answer(run: RecordedRun, span: int, start: int | None) -> Json | None:
    """Return one span with its attributes and events, None if there is none with this id."""
    detail = span_detail(run, span, start)
    return None if detail is None else plain(detail)


def grid_answer(run: RecordedRun, given: Parameters) -> Json:
    """Return the times of ranks and steps in one phase."""
    first, last = given.whole("first"), given.whole("last")
    low, high = given.whole("low"), given.whole("high")
    window = grid_at(
        run,
        given.text("phase"),
        attempt=given.whole("attempt"),
        ranks=None if low is None or high is None else range(low, min(high, low + 100_000) + 1),
        steps=None if first is None or last is None else (first, last),
        width=given.count("width", 1200, 1, 4096),
        height=given.count("height", 600, 1, 4096),
    )
    return {
        "phase": window.phase,
        "phases": window.phases,
        "attempts": window.attempts,
        "attempt": window.attempt,
        "ranks": window.ranks,
        "steps": window.steps,
        "rank_count": window.rank_count,
        "step_count": window.step_count,
        "values": plain_list(window.values),
        "median_ns": window.median_ns,
    }


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
        self._known: dict[str, Json] = {}
        self._due: dict[str, float] = {}
        self._wanted: list[str] = []
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def answer(self) -> Json:
        """Return all runs, with what is known about them by now."""
        if self._catalogue.is_single:
            entries = [bare_entry(run) for run in self._catalogue.runs().values()]
            pending = [entry.id for entry in entries]
        else:
            entries, pending = list_summaries(self._catalogue.folder, budget_s=BUDGET_S)
        rows: list[Json] = [plain(asdict(entry)) for entry in entries]
        with self._lock:
            waiting = set(pending)
            rows = [
                self._known.get(row["id"], row) if row["id"] in waiting else row for row in rows
            ]
            pending = [each for each in pending if self._is_due(each)]
            self._wanted = pending
            if pending and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(
                    target=self._compute_all, name="stepwell-summaries", daemon=True
                )
                self._thread.start()
        keys = Counter(key for row in rows for key in row["config"])
        names = Counter(name for row in rows for name in row["metrics"])
        return {
            "folder": str(self._catalogue.folder),
            "runs": rows,
            "config_keys": [key for key, _ in keys.most_common(MOST_COLUMNS)],
            "metric_names": [name for name, _ in names.most_common(MOST_COLUMNS)],
            "pending": len(pending),
        }

    def goodput(self, run_id: str) -> float | None:
        """Return the goodput of a run if it is known."""
        with self._lock:
            row = self._known.get(run_id)
        return None if row is None else row["goodput"]

    def close(self) -> None:
        """Stop computing."""
        self._is_closed = True

    def _is_due(self, run_id: str) -> bool:
        """Return whether the entry of a run must be computed, for a live run from time to time."""
        row = self._known.get(run_id)
        if row is None or row["status"] != "running":
            return row is None
        return time.monotonic() >= self._due[run_id]

    def _compute_all(self) -> None:
        told = time.monotonic()
        while not self._is_closed:
            with self._lock:
                run_id = self._wanted.pop(0) if self._wanted else None
            if run_id is None:
                break
            run = self._catalogue.runs().get(run_id)
            if run is None:
                continue
            began = time.monotonic()
            try:
                row = json.loads(self._compute(run))
            except Exception:
                # A damaged run is listed without its details.
                continue
            now = time.monotonic()
            with self._lock:
                self._known[run_id] = row
                self._due[run_id] = now + max(LIVE_S, REST * (now - began))
            if time.monotonic() - told > 2.0:
                told = time.monotonic()
                self._changed()
        self._changed()
