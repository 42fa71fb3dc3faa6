"""The thread that trains as stretches: one phase each, with the time that is its own.

A stretch is the outermost span of a phase. What other phases take inside of it is theirs, so that
the stretches of a step never count an instant twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field

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

__all__ = ["CODES", "NAMES", "Stretches", "read_stretches", "stretches_of"]


@dataclass(frozen=True)
class Stretches:
    """Those of one process, in the order in which they begin."""

    attempt: int
    rank: int
    step: Ints
    """The step that each is part of, -1 where none is known."""
    phase: Codes
    start: Ints
    last_ns: int
    """When the last of them was over, whatever was inside of it; or began, if it has no end."""
    ns: Ints
    """Its own time."""
    is_open: Bools
    failed: Ints
    """The steps of iterations that an exception went through."""


def read_stretches(tables: ProcessTables) -> Stretches | None:
    """The stretches of one process; None when it has no span."""
    lanes = LaneReader(tables).read()
    if not lanes:
        return None
    return stretches_of(tables, max(lanes, key=lambda lane: lane.rank_as_trainer))


def stretches_of(tables: ProcessTables, lane: Lane) -> Stretches:
    """The stretches of the thread that trains, open spans of which have no end yet."""
    keep, ns = _own_times(lane)
    start, end = lane.starts[keep], lane.ends[keep]
    is_open = end == FOREVER
    last = end.max(where=~is_open, initial=0) if is_open.any() else end.max(initial=0)
    about = tables.process.about
    step, of_iteration = _steps(tables, lane, keep)
    return Stretches(
        attempt=int(about["attempt"]),
        rank=int(about["rank"]),
        step=step,
        phase=lane.codes[keep] & np.uint8(CODE_MASK),
        start=start,
        last_ns=max(int(last), int(start.max(where=is_open, initial=0))),
        ns=np.maximum(ns, 0, out=ns),
        is_open=is_open,
        failed=of_iteration,
    )


def _own_times(lane: Lane) -> tuple[Ints, Ints]:
    """The outermost span of each phase, and its time without that of others in it.

    In pieces that stay in the processor's cache, with the spans that are open at their edges.
    """
    starts, ends, codes = lane.starts, lane.ends, lane.codes & np.uint8(CODE_MASK)
    found: list[Ints] = [np.empty(0, np.int64)]
    times: list[Ints] = [np.empty(0, np.int64)]
    carried = _Carried()
    for first in range(0, len(starts), CHUNK):
        after = min(first + CHUNK, len(starts))
        rows = np.concatenate([carried.rows, np.arange(first, after)])
        begun = len(carried.rows)
        high, phase = ends[rows], codes[rows]
        around = previous_greater(high)
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
            for place, row in enumerate(carried.kept):
                if row is not None:
                    times[row[0]][row[1]] = ns[place]
        mine = np.flatnonzero(is_root[begun:])
        found.append(mine + first)
        times.append(ns[begun:][mine])
        if after < len(starts):
            chain = _open_at(around, high, int(starts[after]))
            kept = np.searchsorted(mine, chain - begun)
            carried = _Carried(
                rows[chain],
                ns[chain],
                [
                    carried.kept[at]
                    if at < begun
                    else ((len(times) - 1, int(place)) if is_root[at] else None)
                    for at, place in zip(chain.tolist(), kept.tolist(), strict=True)
                ],
            )
    return np.concatenate(found), np.concatenate(times)


@dataclass
class _Carried:
    """Spans that were open at the edge of a piece: rows, own times so far, and where these are kept."""

    rows: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    ns: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    kept: list[tuple[int, int] | None] = field(default_factory=list)


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
    inside = _innermost(lane, iterations, keep)
    step = of_iteration[inside] if len(iterations) else np.empty(len(keep), np.int64)
    outside = np.flatnonzero(inside < 0)
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
    clock = (lane.starts[iterations] - tables.offset).astype(np.uint64)
    step = tables.context.at(clock)[0].copy()
    told, numbers = lane.told[0], lane.told[1]
    if len(told):
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
    edges = np.concatenate([[0], np.searchsorted(rows, iterations), [len(rows)]])
    lengths = np.diff(edges)
    place = np.repeat(np.arange(-1, len(iterations)), lengths)
    ends = np.repeat(np.concatenate([[0], lane.ends[iterations]]), lengths)
    place[lane.starts[rows] >= ends] = -1
    return place
