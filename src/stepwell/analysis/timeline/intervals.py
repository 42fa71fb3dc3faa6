"""Exact interval arithmetic on arrays of whole nanoseconds, and the owner of each instant of a thread.

A set of instants is a pair of arrays, starts and ends, sorted and disjoint; the ends are exclusive. No
function here rounds or loops over single intervals.

The owner of an instant is, among the open spans, the one that began last. If spans nest, that is the
innermost. The definition also holds if they do not (tasks that take turns, a child that outlives its parent),
so these need no special case.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Set = tuple[Ints, Ints]

EMPTY: Set = (np.empty(0, np.int64), np.empty(0, np.int64))
EXACT = 1 << 53
"""Every whole number up to this one is exact as a float64."""


def union(starts: NDArray[Any], ends: NDArray[Any]) -> Set:
    """Return the instants in any of these intervals, which may overlap and come in any order."""
    starts, ends = starts.astype(np.int64), ends.astype(np.int64)
    some = ends > starts
    if not some.all():
        starts, ends = starts[some], ends[some]
    if not len(starts):
        return EMPTY
    if (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    reach = np.maximum.accumulate(ends)
    first = np.flatnonzero(np.concatenate(([True], starts[1:] > reach[:-1])))
    last = np.concatenate((first[1:] - 1, [len(starts) - 1]))
    return starts[first], reach[last]


def length(of: Set) -> int:
    """Return the total length of a set."""
    return int((of[1] - of[0]).sum())


def complement(of: Set, begin: int, end: int) -> Set:
    """Return the instants from ``begin`` to ``end`` that are not in a set."""
    starts, ends = clip(of, begin, end)
    outside = np.concatenate(([begin], ends)), np.concatenate((starts, [end]))
    some = outside[1] > outside[0]
    return outside[0][some], outside[1][some]


def clip(of: Set, begin: int, end: int) -> Set:
    """Return the instants of a set from ``begin`` to ``end``."""
    starts, ends = np.maximum(of[0], begin), np.minimum(of[1], end)
    some = ends > starts
    return starts[some], ends[some]


def intersection(first: Set, second: Set) -> Set:
    """Return the instants that are in both sets."""
    if not len(first[0]) or not len(second[0]):
        return EMPTY
    cuts = np.unique(np.concatenate((*first, *second)))
    starts, ends = cuts[:-1], cuts[1:]
    both = contains(first, starts) & contains(second, starts)
    return union(starts[both], ends[both])


def subtraction(first: Set, second: Set) -> Set:
    """Return the instants of the first set that are not in the second."""
    if not len(first[0]) or not len(second[0]):
        return first
    begin, end = int(first[0][0]), int(first[1][-1])
    return intersection(first, complement(second, begin, end))


def contains(of: Set, instants: Ints) -> NDArray[np.bool_]:
    """Return whether each of these instants is in the set."""
    at = np.searchsorted(of[0], instants, side="right") - 1
    is_inside: NDArray[np.bool_] = (at >= 0) & (instants < of[1][np.maximum(at, 0)])
    return is_inside


def split(starts: Ints, ends: Ints, points: Ints) -> tuple[NDArray[np.intp], Ints, Ints]:
    """Cut intervals at sorted points. Return the index of each piece's interval, its start and its end."""
    first = np.searchsorted(points, starts, side="right")
    count = np.maximum(np.searchsorted(points, ends, side="left") - first, 0)
    source = np.repeat(np.arange(len(starts)), count + 1)
    # Index of each piece within its interval.
    place = np.arange(len(source)) - np.repeat(np.cumsum(count + 1) - count - 1, count + 1)
    low, high = starts[source], ends[source]
    inner = place > 0
    low[inner] = points[(first[source] + place - 1)[inner]]
    inner = place < count[source]
    high[inner] = points[(first[source] + place)[inner]]
    return source, low, high


def sums(keys: NDArray[Any], amounts: Ints, size: int) -> Ints:
    """Return the exact sum of the amounts (0 or more) of each key from 0 to ``size`` - 1."""
    if float(amounts.sum(dtype=np.float64)) < EXACT / 2:
        return np.bincount(keys, amounts, size).astype(np.int64)
    low = np.bincount(keys, amounts & 0x3FFFFFF, size).astype(np.int64)
    return low + (np.bincount(keys, amounts >> 26, size).astype(np.int64) << 26)


def last_begun(begins: Ints, instants: Ints) -> NDArray[np.intp]:
    """Return for each of these instants the last of these begins that is not later; -1 without any.

    Both are sorted. Faster than ``np.searchsorted`` if there are many more instants than begins.
    """
    if not len(instants):
        return np.empty(0, np.intp)
    first, last = (np.searchsorted(begins, instants[[0, -1]], side="right") - 1).tolist()
    changes = np.searchsorted(instants, begins[first + 1 : last + 1])
    begun: NDArray[np.intp] = np.cumsum(np.bincount(changes, minlength=len(instants)))
    begun += first
    return begun[: len(instants)]


CHUNK = 1 << 16
"""Spans processed together: few enough for their columns to stay in the CPU cache, many enough for two
threads not to slow each other down."""
NO_OWNER = -1

Indices = NDArray[np.intp]


def previous_greater(ends: Ints, around: int = 0) -> Indices:
    """Return for each span, sorted by start, the last span before it that ends no earlier, or -1.

    When a span ends, that one owns the following time, until another span begins. The first ``around`` spans
    are expected to contain all others; this only makes it faster.
    """
    previous = np.arange(-1, len(ends) - 1, dtype=np.int64)
    # All spans between a span and its candidate end before the span does. So if the candidate ends too
    # early itself, the candidate's own candidate is the next one to try.
    latest = np.maximum.accumulate(ends[around:])
    previous[around + 1 :][ends[around + 1 :] > latest[:-1]] = around - 1
    rows = np.flatnonzero((previous >= 0) & (ends[previous] < ends))
    while len(rows):
        previous[rows] = farther = previous[previous[rows]]
        rows = rows[(farther >= 0) & (ends[farther] < ends[rows])]
    return previous


Pieces = tuple[Indices, Indices, Ints, Ints]
"""Of each piece of time: the latest span that began before it; its owner, or NO_OWNER; start; end."""


def split_by_owner(starts: Ints, ends: Ints, until: int) -> Iterator[tuple[int, int, list[Pieces]]]:
    """Yield the time from the first start to ``until`` in pieces, each with its owner.

    Spans are sorted by start; of two that start together the inner one comes last. Yields for each chunk of
    spans the index of the first, the index after the last, and the pieces from the start of this chunk to the
    start of the next, in several lists, each sorted by time.
    """
    open_spans: Indices = np.empty(0, np.int64)
    for first in range(0, len(starts), CHUNK):
        after = min(first + CHUNK, len(starts))
        until_next = int(starts[after]) if after < len(starts) else until
        numbers = np.concatenate((open_spans, np.arange(first, after)))
        begun = len(open_spans)
        chunk_ends = ends[numbers]
        before = previous_greater(chunk_ends, begun)
        next_start = np.append(starts[first + 1 : after], until_next)
        yield first, after, _pieces(starts, numbers, chunk_ends, before, begun, next_start)
        # Those that may still own later time.
        open_spans = numbers[open_at(before, chunk_ends, until_next + 1)]


def _pieces(
    starts: Ints, numbers: Indices, ends: Ints, before: Indices, begun: int, next_start: Ints
) -> list[Pieces]:
    """Split the time between each start and the next: first the span that began, then those around it."""
    row = numbers[begun:]
    owner = np.arange(begun, len(numbers))
    low = starts[row[0] : row[-1] + 1]
    high, limit = ends[begun:], next_start
    pieces: list[Pieces] = []
    while True:
        pieces.append(
            (row, np.where(owner < 0, NO_OWNER, numbers[owner]), low, np.minimum(high, limit))
        )
        # Without an owner, high is the limit already: those pieces last until the next start.
        left = np.flatnonzero(high < limit)
        if not len(left):
            return pieces
        row, limit, low = row[left], limit[left], high[left]
        owner = before[owner[left]]
        high = np.where(owner < 0, limit, ends[owner])


def open_at(before: Indices, ends: Ints, instant: int) -> Indices:
    """Return the spans that end at or after an instant after all starts, the outermost first.

    ``before`` is the result of ``previous_greater``.
    """
    chain = []
    at = len(before) - 1
    while at >= 0:
        if ends[at] >= instant:
            chain.append(at)
        at = int(before[at])
    return np.array(chain[::-1], np.int64)
