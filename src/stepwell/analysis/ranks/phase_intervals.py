"""The training thread as intervals of one phase each, with their own time.

An interval is the outermost span of a phase. The time of other phases within it belongs to those, so the
intervals of a step never count an instant twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stepwell.analysis.time.intervals import CHUNK, previous_greater
from stepwell.analysis.time.iterations import number_iterations
from stepwell.analysis.time.lanes import FOREVER, LaneReader, LaneSpans
from stepwell.analysis.time.phases import (
    CODE_MASK,
    CODES,
    ITERATION,
    LIKE_ITERATION,
    NOTHING,
    lookup_table,
)
from stepwell.reading.tables import ProcessTables

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Codes = NDArray[np.uint8]

_IS_AHEAD = lookup_table(frozenset((CODES["data"], CODES["transfer"])))
"""Phases that belong to the next step if they are outside iterations."""


@dataclass(frozen=True)
class PhaseIntervals:
    """The intervals of one process, sorted by start."""

    attempt: int
    rank: int
    step: Ints
    """The step of each interval, -1 if unknown."""
    phase: Codes
    rows: Ints
    """Index of each interval's span among the spans of the thread."""
    starts: Ints
    """Starts of all spans of the thread."""
    last_ns: int
    """The latest end of an interval, or start of an open one."""
    ns: Ints
    """Own time of each interval."""
    is_open: Bools
    failed: Ints
    """Steps of iterations that ended with an exception."""

    def start(self, which: Ints | slice) -> Ints:
        """Return the starts of some intervals. Computed on demand: there may be millions."""
        return self.starts[self.rows[which]]


def read_phase_intervals(tables: ProcessTables) -> PhaseIntervals | None:
    """Return the intervals of one process; None if it has no spans."""
    lanes = LaneReader(tables).read()
    if not lanes:
        return None
    return find_phase_intervals(tables, max(lanes, key=lambda lane: lane.rank_as_trainer))


def find_phase_intervals(tables: ProcessTables, lane: LaneSpans) -> PhaseIntervals:
    """Return the intervals of the training thread. Its open spans end at ``FOREVER``."""
    keep, ns = _own_times(lane)
    is_open, last = _ends(lane, keep)
    document = tables.process.about
    step, of_iteration = _steps(tables, lane, keep)
    return PhaseIntervals(
        attempt=int(document["attempt"]),
        rank=int(document["rank"]),
        step=step,
        phase=lane.codes[keep] & np.uint8(CODE_MASK),
        rows=keep,
        starts=lane.starts,
        last_ns=max(last, int(lane.starts[keep[is_open]].max(initial=0))),
        ns=np.maximum(ns, 0, out=ns),
        is_open=is_open,
        failed=of_iteration,
    )


def _ends(lane: LaneSpans, keep: Ints) -> tuple[Bools, int]:
    """Return which spans are open, and the latest end of the others."""
    is_open, last = np.empty(len(keep), bool), 0
    for low in range(0, len(keep), CHUNK):
        ends = lane.ends[keep[low : low + CHUNK]]
        is_open[low : low + CHUNK] = ends == FOREVER
        last = max(last, int(ends.max(where=ends != FOREVER, initial=0)))
    return is_open, last


def _own_times(lane: LaneSpans) -> tuple[Ints, Ints]:
    """Return the outermost spans of each phase, and their time without other phases in them.

    Works on chunks that fit the CPU cache, and carries spans that are open at the end of a chunk to the next.
    """
    starts, ends, codes = lane.starts, lane.ends, lane.codes & np.uint8(CODE_MASK)
    outermost, times = np.empty(len(starts), np.int64), np.empty(len(starts), np.int64)
    count, carried = 0, _Carried()
    for first in range(0, len(starts), CHUNK):
        after = min(first + CHUNK, len(starts))
        rows = np.concatenate([carried.rows, np.arange(first, after)])
        begun = len(carried.rows)
        high, phase = ends[rows], codes[rows]
        around = previous_greater(high, begun)
        root = _roots(phase, around)
        ns = np.where(high == FOREVER, 0, high - starts[rows])
        is_root = (root == np.arange(len(root))) & (phase < NOTHING)
        inner = np.flatnonzero(is_root[begun:] & (around[begun:] >= 0)) + begun
        taken = np.zeros(len(rows), np.int64)
        # Subtract the time of an interval from the interval of another phase around it.
        np.add.at(taken, root[around[inner]], ns[inner])
        ns -= taken
        if begun:
            ns[:begun] = carried.ns - taken[:begun]
            kept = carried.places >= 0
            times[carried.places[kept]] = ns[:begun][kept]
        mine = np.flatnonzero(is_root[begun:])
        outermost[count : count + len(mine)] = mine + first
        times[count : count + len(mine)] = ns[begun:][mine]
        if after < len(starts):
            chain = _open_at(around, high, int(starts[after]))
            before, own = chain[chain < begun], chain[chain >= begun]
            places = np.where(is_root[own], np.searchsorted(mine, own - begun) + count, -1)
            places = np.concatenate([carried.places[before], places])
            carried = _Carried(rows[chain], ns[chain], places)
        count += len(mine)
    return outermost[:count], times[:count]


@dataclass
class _Carried:
    """Spans that are open at the end of a chunk: rows, own times so far, and indices in the result, or -1."""

    rows: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    ns: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    places: Ints = field(default_factory=lambda: np.empty(0, np.int64))


def _open_at(around: Ints, ends: Ints, instant: int) -> Ints:
    """Return the spans that are open at an instant after all starts, the outermost first."""
    chain, at = [], len(around) - 1
    while at >= 0:
        if ends[at] >= instant:
            chain.append(at)
        at = int(around[at])
    return np.array(chain[::-1], np.int64)


def _roots(phase: Codes, around: Ints) -> Ints:
    """Return for each span the outermost span of the same phase, with no other phase in between."""
    up = np.arange(len(phase))
    same = np.flatnonzero((around >= 0) & (phase[around] == phase))
    up[same] = around[same]
    while True:
        further: Ints = up[up[same]]
        if np.array_equal(further, up[same]):
            return up
        up[same] = further


def _steps(tables: ProcessTables, lane: LaneSpans, keep: Ints) -> tuple[Ints, Ints]:
    """Return the step of each interval, and the steps of iterations that ended with an exception.

    The step is that of the iteration. Outside iterations it is the step that was set last, or for data the
    next one.
    """
    flags = (lane.codes & ITERATION) != 0
    if not flags.any():
        flags = (lane.codes & LIKE_ITERATION) != 0
    iterations = np.flatnonzero(flags)
    of_iteration = _iteration_steps(tables, lane, iterations)
    step, outside = _inside(lane, iterations, of_iteration, keep)
    is_ahead = _IS_AHEAD[lane.codes[keep[outside]] & CODE_MASK]
    ahead, others = outside[is_ahead], outside[~is_ahead]
    _use_context(tables, lane, keep, step, others)
    if len(iterations):
        begins, numbers = lane.starts[iterations], of_iteration
    else:
        begins, numbers = lane.starts[keep[others]], step[others]
    following = np.searchsorted(begins, lane.starts[keep[ahead]])
    has_next = following < len(begins)
    step[ahead[has_next]] = numbers[following[has_next]]
    _use_context(tables, lane, keep, step, ahead[~has_next])
    failed = np.isin(iterations, lane.failed) if len(lane.failed) else np.empty(0, np.int64)
    return step, of_iteration[np.flatnonzero(failed)]


def _use_context(
    tables: ProcessTables, lane: LaneSpans, keep: Ints, step: Ints, rows: Ints
) -> None:
    """Assign to these rows the step that was set last."""
    clock = (lane.starts[keep[rows]] - tables.offset).astype(np.uint64)
    step[rows] = tables.context.at(clock)[0]


def _iteration_steps(tables: ProcessTables, lane: LaneSpans, iterations: Ints) -> Ints:
    def at(instants: Ints) -> tuple[Ints, Ints]:
        return tables.context.at((instants - tables.offset).astype(np.uint64))

    return number_iterations(lane, iterations, at)[0]


def _inside(lane: LaneSpans, iterations: Ints, numbers: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """Return the step of the last iteration that began before each row, and the rows that are not in it.

    ``numbers`` are the steps of the iterations. Works on chunks to bound memory.
    """
    first = np.searchsorted(rows, iterations)
    ends, numbers = (np.concatenate([[-1], of]) for of in (lane.ends[iterations], numbers))
    step, outside = np.empty(len(rows), np.int64), [np.empty(0, np.int64)]
    for low in range(0, len(rows), CHUNK):
        high = min(low + CHUNK, len(rows))
        begin, end = np.searchsorted(first, (low, high)).tolist()
        lengths = np.diff(np.concatenate([[low], first[begin:end], [high]]))
        last = np.repeat(np.arange(begin, end + 1), lengths)
        step[low:high] = numbers[last]
        outside.append(np.flatnonzero(lane.starts[rows[low:high]] >= ends[last]) + low)
    return step, np.concatenate(outside)
