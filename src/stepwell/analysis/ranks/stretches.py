"""The thread that trains as stretches: one phase each, with the time that is its own.

A stretch is the outermost span of a phase. What other phases take inside of it is theirs, so that
the stretches of a step never count an instant twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepwell.analysis.time.lanes import FOREVER, Lane, LaneReader
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

__all__ = ["CODES", "NAMES", "Stretches", "read_stretches"]


@dataclass(frozen=True)
class Stretches:
    """Those of one process, in the order in which they begin."""

    attempt: int
    rank: int
    step: Ints
    """The step that each is part of, -1 where none is known."""
    phase: Ints
    start: Ints
    end: Ints
    """When it was over, whatever was inside of it; its start for one that has no end."""
    ns: Ints
    """Its own time."""
    is_open: Bools


def read_stretches(tables: ProcessTables) -> Stretches | None:
    """The stretches of one process; None when it has no span."""
    lanes = LaneReader(tables).read()
    if not lanes:
        return None
    lane = max(lanes, key=lambda each: each.rank_as_trainer)
    phase: Codes = lane.codes & np.uint8(CODE_MASK)
    is_open = lane.ends == FOREVER
    duration = np.where(is_open, 0, lane.ends - lane.starts)
    around = _around(lane)
    root = _roots(phase, around)
    is_root = (root == np.arange(len(root))) & (phase < NOTHING)
    ns = duration.copy()
    inner = np.flatnonzero(is_root & (around >= 0))
    # What is inside of a stretch of another phase is taken from that.
    np.subtract.at(ns, root[around[inner]], duration[inner])
    keep = np.flatnonzero(is_root)
    step = _steps(tables, lane, keep)
    about = tables.process.about
    return Stretches(
        attempt=int(about["attempt"]),
        rank=int(about["rank"]),
        step=step,
        phase=phase[keep].astype(np.int64),
        start=lane.starts[keep],
        end=(lane.starts + duration)[keep],
        ns=np.maximum(ns[keep], 0),
        is_open=is_open[keep],
    )


def _around(lane: Lane) -> Ints:
    """The span that each is in, -1 for none. In pieces that stay in the processor's cache."""
    starts, ends = lane.starts, lane.ends
    found = np.empty(len(starts), np.int64)
    carried: Ints = np.empty(0, np.int64)
    for first in range(0, len(starts), CHUNK):
        after = min(first + CHUNK, len(starts))
        rows = np.concatenate([carried, np.arange(first, after)])
        before = previous_greater(ends[rows])
        mine = before[len(carried) :]
        found[first:after] = np.where(mine >= 0, rows[mine], -1)
        if after < len(starts):
            chain, at = [], len(rows) - 1
            while at >= 0:
                if ends[rows[at]] >= starts[after]:
                    chain.append(int(rows[at]))
                at = int(before[at])
            carried = np.array(chain[::-1], np.int64)
    return found


def _roots(phase: Codes, around: Ints) -> Ints:
    """The outermost span of the same phase, without one of another phase in between."""
    up = np.arange(len(phase))
    same = (around >= 0) & (phase[around] == phase)
    up[same] = around[same]
    while True:
        further: Ints = up[up]
        if np.array_equal(further, up):
            return up
        up = further


def _steps(tables: ProcessTables, lane: Lane, keep: Ints) -> Ints:
    """The step of each: that of its iteration, else what was told last; of data, the step to come."""
    flags = lane.codes & ITERATION
    if not flags.any():
        flags = lane.codes & LIKE_ITERATION
    iterations = np.flatnonzero(flags)
    of_iteration = _iteration_steps(tables, lane, iterations)
    inside = _innermost(lane, iterations, keep)
    step = np.empty(len(keep), np.int64)
    within = inside >= 0
    step[within] = of_iteration[inside[within]]
    clock = (lane.starts[keep[~within]] - tables.offset).astype(np.uint64)
    step[~within] = tables.context.at(clock)[0]
    phase = lane.codes[keep] & CODE_MASK
    ahead = np.flatnonzero(_IS_AHEAD[phase] & ~within)
    if len(iterations):
        begins, numbers = lane.starts[iterations], of_iteration
    else:
        others = ~_IS_AHEAD[phase]
        begins, numbers = lane.starts[keep][others], step[others]
    following = np.searchsorted(begins, lane.starts[keep][ahead])
    known = following < len(begins)
    step[ahead[known]] = numbers[following[known]]
    return step


def _iteration_steps(tables: ProcessTables, lane: Lane, iterations: Ints) -> Ints:
    clock = (lane.starts[iterations] - tables.offset).astype(np.uint64)
    step = tables.context.at(clock)[0].copy()
    told, numbers = lane.told[0], lane.told[1]
    mine = np.isin(told, iterations) & (numbers >= 0)
    step[np.searchsorted(iterations, told[mine])] = numbers[mine]
    # The first one may be told only within its iteration.
    known = np.flatnonzero(step >= 0)[:1]
    if len(known):
        first = int(known[0])
        step[:first] = np.maximum(step[first] - np.arange(first, 0, -1), -1)
    return step


def _innermost(lane: Lane, iterations: Ints, rows: Ints) -> Ints:
    """The last iteration that began no later than each row, if that is in it; else -1."""
    place = np.searchsorted(iterations, rows, side="right") - 1
    found = np.where(place >= 0, place, 0)
    if not len(iterations):
        return np.full(len(rows), -1, np.int64)
    is_in = (place >= 0) & (lane.starts[rows] < lane.ends[iterations[found]])
    return np.where(is_in, place, -1)
