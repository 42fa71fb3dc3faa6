"""Work of other threads and processes, which takes no time of the training thread: not in the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepwell.analysis.timeline import intervals
from stepwell.analysis.timeline.intervals import Set
from stepwell.analysis.timeline.lanes import LaneReader, LaneSpans
from stepwell.analysis.timeline.phases import CODE_MASK, CODES, Mask, lookup_table
from stepwell.reading.tables import ProcessTables

COMMUNICATION = "communication overlapped"
CHECKPOINT = "checkpoint in the background"
WORKERS = "data preparation in workers"
THREADS = "data preparation in threads"
KINDS = (COMMUNICATION, CHECKPOINT, WORKERS, THREADS)

_COMMUNICATION = lookup_table(frozenset((CODES["communication"],)))
_CHECKPOINT = lookup_table(frozenset((CODES["checkpoint"],)))
_DATA = lookup_table(frozenset((CODES["data"], CODES["transfer"])))
_ALL = lookup_table(frozenset(range(CODE_MASK + 1)))


@dataclass(frozen=True)
class Background:
    """One kind of work in the background of a rank.

    Attributes:
        kind: one of ``KINDS``.
        ns: time during which at least one thread or worker did it.
        busy_ns: the sum of the times of all threads and workers.
        count: number of spans.
    """

    kind: str
    ns: int
    busy_ns: int
    count: int


class _Collector:
    """Adds up the time of one kind, thread by thread."""

    def __init__(self, window: tuple[int, int]) -> None:
        self._window = window
        self._sets: list[Set] = []
        self._count = 0
        self._busy = 0

    def add(self, lane: LaneSpans, wanted: Mask, without: Set = intervals.EMPTY) -> None:
        spans = _spans(lane, wanted)
        self._count += len(spans[0])
        covered = intervals.clip(intervals.union(*spans), *self._window)
        covered = intervals.subtraction(covered, without)
        self._busy += intervals.length(covered)
        self._sets.append(covered)

    def result(self, kind: str) -> Background:
        starts = [np.empty(0, np.int64), *(covered[0] for covered in self._sets)]
        ends = [np.empty(0, np.int64), *(covered[1] for covered in self._sets)]
        together = intervals.union(np.concatenate(starts), np.concatenate(ends))
        return Background(kind, intervals.length(together), self._busy, self._count)


def background_of(
    main: LaneSpans,
    others: list[LaneSpans],
    helpers: Sequence[ProcessTables],
    window: tuple[int, int],
) -> list[Background]:
    """Return the work of the other threads of a rank and of its helper processes, within its wall time."""
    collectors = {kind: _Collector(window) for kind in KINDS}
    exposed = intervals.union(*_spans(main, _COMMUNICATION)) if others else intervals.EMPTY

    def add_thread(lane: LaneSpans) -> None:
        collectors[COMMUNICATION].add(lane, _COMMUNICATION, exposed)
        collectors[CHECKPOINT].add(lane, _CHECKPOINT)
        collectors[THREADS].add(lane, _DATA)

    for lane in others:
        add_thread(lane)
    for helper in helpers:
        is_worker = helper.process.document["role"] == "worker"
        for lane in LaneReader(helper).read():
            np.minimum(lane.ends, window[1], out=lane.ends)
            if is_worker:
                # Workers prepare data, whatever their spans are called.
                collectors[WORKERS].add(lane, _ALL)
            else:
                add_thread(lane)
    results = [collectors[kind].result(kind) for kind in KINDS]
    return [background for background in results if background.count]


def _spans(lane: LaneSpans, wanted: Mask) -> Set:
    is_wanted = lane.which(wanted)
    return lane.starts[is_wanted], lane.ends[is_wanted]
