"""The thread that trains as stretches: one phase each, with the time that is its own.

A stretch is the outermost span of a phase. What other phases take inside of it is theirs, so that
the stretches of a step never count an instant twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stepwell.analysis.time.lanes import FOREVER, Lane, LaneReader
from stepwell.analysis.time.numbering import number_iterations
from stepwell.analysis.time.ownership import CHUNK, previous_greater
from stepwell.analysis.time.words import (
    CODE_MASK,
    CODES,
    ITERATION,
    LIKE_ITERATION,
    NAMES,
    NOTHING,
    is_one_of,
)
from stepwell.reading.tables import ProcessTables

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Codes = NDArray[np.uint8]

_IS_AHEAD = is_one_of(frozenset((CODES["data"], CODES["transfer"])))
"""Phases that are done for the step that comes, when they are not within an iteration."""

__all__ = ["CODES", "NAMES", "Stretches", "read_stretches", "stretches_of"]


@dataclass(frozen=True)
class Stretches:
    """Those of one process, in the order in which they begin."""

    attempt: int
    rank: int
    step: Ints
    """The step that each is part of, -1 where none is known."""
    phase: Codes
    rows: Ints
    """Where each is among the spans of the thread, …"""
    starts: Ints
    """… which began then."""
    last_ns: int
    """When the last of them was over, whatever was inside of it; or began, if it has no end."""
    ns: Ints
    """Its own time."""
    is_open: Bools
    failed: Ints
    """The steps of iterations that an exception went through."""

    def start(self, which: Ints | slice) -> Ints:
        """When these began. Not kept for all of them, of which there may be millions."""
        return self.starts[self.rows[which]]


def read_stretches(tables: ProcessTables) -> Stretches | None:
    """The stretches of one process; None when it has no span."""
    lanes = LaneReader(tables).read()
    if not lanes:
        return None
    return stretches_of(tables, max(lanes, key=lambda lane: lane.rank_as_trainer))


def stretches_of(tables: ProcessTables, lane: Lane) -> Stretches:
    """The stretches of the thread that trains, open spans of which have no end yet."""
    keep, ns = _own_times(lane)
    is_open, last = _ends(lane, keep)
    about = tables.process.about
    step, of_iteration = _steps(tables, lane, keep)
    return Stretches(
        attempt=int(about["attempt"]),
        rank=int(about["rank"]),
        step=step,
        phase=lane.codes[keep] & np.uint8(CODE_MASK),
        rows=keep,
        starts=lane.starts,
        last_ns=max(last, int(lane.starts[keep[is_open]].max(initial=0))),
        ns=np.maximum(ns, 0, out=ns),
        is_open=is_open,
        failed=of_iteration,
    )


def _ends(lane: Lane, keep: Ints) -> tuple[Bools, int]:
    """Which of these have no end yet, and the latest end of the others."""
    is_open, last = np.empty(len(keep), bool), 0
    for low in range(0, len(keep), CHUNK):
        ends = lane.ends[keep[low : low + CHUNK]]
        is_open[low : low + CHUNK] = ends == FOREVER
        last = max(last, int(ends.max(where=ends != FOREVER, initial=0)))
    return is_open, last


def _own_times(lane: Lane) -> tuple[Ints, Ints]:
    """The outermost span of each phase, and its time without that of others in it.

    In pieces that stay in the processor's cache, with the spans that are open at their edges.
    """
    starts, ends, codes = lane.starts, lane.ends, lane.codes & np.uint8(CODE_MASK)
    found, times = np.empty(len(starts), np.int64), np.empty(len(starts), np.int64)
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
        # What is inside of a stretch of another phase is taken from that.
        np.add.at(taken, root[around[inner]], ns[inner])
        ns -= taken
        if begun:
            ns[:begun] = carried.ns - taken[:begun]
            kept = carried.places >= 0
            times[carried.places[kept]] = ns[:begun][kept]
        mine = np.flatnonzero(is_root[begun:])
        found[count : count + len(mine)] = mine + first
        times[count : count + len(mine)] = ns[begun:][mine]
        if after < len(starts):
            chain = _open_at(around, high, int(starts[after]))
            before, own = chain[chain < begun], chain[chain >= begun]
            places = np.where(is_root[own], np.searchsorted(mine, own - begun) + count, -1)
            places = np.concatenate([carried.places[before], places])
            carried = _Carried(rows[chain], ns[chain], places)
        count += len(mine)
    return found[:count], times[:count]


@dataclass
class _Carried:
    """Spans that were open at the edge of a piece: rows, own times so far, and where these go, or -1."""

    rows: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    ns: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    places: Ints = field(default_factory=lambda: np.empty(0, np.int64))


def _open_at(around: Ints, ends: Ints, instant: int) -> Ints:
    """The spans around an instant after all of these began, the outermost first."""
    chain, at = [], len(around) - 1
    while at >= 0:
        if ends[at] >= instant:
            chain.append(at)
        at = int(around[at])
    return np.array(chain[::-1], np.int64)


def _roots(phase: Codes, around: Ints) -> Ints:
    """The outermost span of the same phase, without one of another phase in between."""
    up = np.arange(len(phase))
    same = np.flatnonzero((around >= 0) & (phase[around] == phase))
    up[same] = around[same]
    while True:
        further: Ints = up[up[same]]
        if np.array_equal(further, up[same]):
            return up
        up[same] = further


def _steps(tables: ProcessTables, lane: Lane, keep: Ints) -> tuple[Ints, Ints]:
    """The step of each: that of its iteration, else what was told last; of data, the step to come.

    Also the steps of the iterations that an exception went through.
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
    known = following < len(begins)
    step[ahead[known]] = numbers[following[known]]
    _use_context(tables, lane, keep, step, ahead[~known])
    failed = np.isin(iterations, lane.failed) if len(lane.failed) else np.empty(0, np.int64)
    return step, of_iteration[np.flatnonzero(failed)]


def _use_context(tables: ProcessTables, lane: Lane, keep: Ints, step: Ints, rows: Ints) -> None:
    """Give these rows the step that was told last."""
    clock = (lane.starts[keep[rows]] - tables.offset).astype(np.uint64)
    step[rows] = tables.context.at(clock)[0]


def _iteration_steps(tables: ProcessTables, lane: Lane, iterations: Ints) -> Ints:
    def at(instants: Ints) -> tuple[Ints, Ints]:
        return tables.context.at((instants - tables.offset).astype(np.uint64))

    return number_iterations(lane, iterations, at)[0]


def _inside(lane: Lane, iterations: Ints, numbers: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """The step of the last iteration that began no later than each row; and which rows are not in it.

    ``numbers`` are the steps of the iterations. In pieces, as large runs would take much memory.
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
