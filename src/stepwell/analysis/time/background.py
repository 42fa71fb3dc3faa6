"""What goes on beside the thread that trains: it takes none of its time, so it is not in the ledger."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepwell.analysis.time import intervals
from stepwell.analysis.time.intervals import Set
from stepwell.analysis.time.lanes import Lane, LaneReader
from stepwell.analysis.time.words import CODE_MASK, CODES, Mask, is_one_of
from stepwell.reading.tables import ProcessTables

COMMUNICATION = "communication overlapped"
CHECKPOINT = "checkpoint in the background"
WORKERS = "data preparation in workers"
THREADS = "data preparation in threads"
KINDS = (COMMUNICATION, CHECKPOINT, WORKERS, THREADS)

_COMMUNICATION = is_one_of(frozenset((CODES["communication"],)))
_CHECKPOINT = is_one_of(frozenset((CODES["checkpoint"],)))
_DATA = is_one_of(frozenset((CODES["data"], CODES["transfer"])))
_ALL = is_one_of(frozenset(range(CODE_MASK + 1)))


@dataclass(frozen=True)
class Background:
    """One kind of work in the background of a rank.

    Attributes:
        kind: one of ``KINDS``.
        ns: for how long at least one thread or worker was at it.
        busy_ns: for how long each of them was, in all.
        count: number of spans.
    """

    kind: str
    ns: int
    busy_ns: int
    count: int


class _Gathered:
    """Stretches of time of one kind, thread by thread."""

    def __init__(self, window: tuple[int, int]) -> None:
        self._window = window
        self._sets: list[Set] = []
        self._count = 0
        self._busy = 0

    def add(self, lane: Lane, wanted: Mask, without: Set = intervals.EMPTY) -> None:
        found = _spans(lane, wanted)
        self._count += len(found[0])
        covered = intervals.clip(intervals.union(*found), *self._window)
        covered = intervals.subtraction(covered, without)
        self._busy += intervals.length(covered)
        self._sets.append(covered)

    def result(self, kind: str) -> Background:
        starts = [np.empty(0, np.int64), *(found[0] for found in self._sets)]
        ends = [np.empty(0, np.int64), *(found[1] for found in self._sets)]
        together = intervals.union(np.concatenate(starts), np.concatenate(ends))
        return Background(kind, intervals.length(together), self._busy, self._count)


def background_of(
    main: Lane, others: list[Lane], helpers: list[ProcessTables], window: tuple[int, int]
) -> list[Background]:
    """What the other threads of a rank, and its workers, did within its wall time."""
    gathered = {kind: _Gathered(window) for kind in KINDS}
    exposed = intervals.union(*_spans(main, _COMMUNICATION)) if others else intervals.EMPTY
    for lane in others:
        gathered[COMMUNICATION].add(lane, _COMMUNICATION, exposed)
        gathered[CHECKPOINT].add(lane, _CHECKPOINT)
        gathered[THREADS].add(lane, _DATA)
    for helper in helpers:
        is_worker = helper.process.about["role"] == "worker"
        for lane in LaneReader(helper).read():
            np.minimum(lane.ends, window[1], out=lane.ends)
            if is_worker:
                # Whatever it is called, that is what a worker is there for.
                gathered[WORKERS].add(lane, _ALL)
                continue
            gathered[COMMUNICATION].add(lane, _COMMUNICATION, exposed)
            gathered[CHECKPOINT].add(lane, _CHECKPOINT)
            gathered[THREADS].add(lane, _DATA)
    found = [gathered[kind].result(kind) for kind in KINDS]
    return [background for background in found if background.count]


def _spans(lane: Lane, wanted: Mask) -> Set:
    is_wanted = lane.which(wanted)
    return lane.starts[is_wanted], lane.ends[is_wanted]
