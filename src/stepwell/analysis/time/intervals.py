"""Exact algebra on sets of instants, as arrays of whole nanoseconds.

A set is a pair of arrays, starts and ends, sorted and disjoint; the end is not part of it. No function here
rounds, and none loops over single intervals.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Set = tuple[Ints, Ints]

EMPTY: Set = (np.empty(0, np.int64), np.empty(0, np.int64))
EXACT = 1 << 53
"""Up to here every whole number is a float64."""


def union(starts: NDArray[Any], ends: NDArray[Any]) -> Set:
    """The instants in any of these intervals, which may overlap and come in any order."""
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
    """How long a set is in all."""
    return int((of[1] - of[0]).sum())


def complement(of: Set, begin: int, end: int) -> Set:
    """The instants from ``begin`` to ``end`` that are not in a set."""
    starts, ends = clip(of, begin, end)
    outside = np.concatenate(([begin], ends)), np.concatenate((starts, [end]))
    some = outside[1] > outside[0]
    return outside[0][some], outside[1][some]


def clip(of: Set, begin: int, end: int) -> Set:
    """The instants of a set from ``begin`` to ``end``."""
    starts, ends = np.maximum(of[0], begin), np.minimum(of[1], end)
    some = ends > starts
    return starts[some], ends[some]


def intersection(one: Set, other: Set) -> Set:
    """The instants that are in both sets."""
    if not len(one[0]) or not len(other[0]):
        return EMPTY
    cuts = np.unique(np.concatenate((*one, *other)))
    starts, ends = cuts[:-1], cuts[1:]
    both = contains(one, starts) & contains(other, starts)
    return union(starts[both], ends[both])


def subtraction(one: Set, other: Set) -> Set:
    """The instants of the first set that are not in the other."""
    if not len(one[0]) or not len(other[0]):
        return one
    begin, end = int(one[0][0]), int(one[1][-1])
    return intersection(one, complement(other, begin, end))


def contains(of: Set, instants: Ints) -> NDArray[np.bool_]:
    """Whether each of these instants is in the set."""
    at = np.searchsorted(of[0], instants, side="right") - 1
    found: NDArray[np.bool_] = (at >= 0) & (instants < of[1][np.maximum(at, 0)])
    return found


def split(starts: Ints, ends: Ints, points: Ints) -> tuple[NDArray[np.intp], Ints, Ints]:
    """Cut intervals at sorted points: which interval each piece comes from, its start and its end."""
    first = np.searchsorted(points, starts, side="right")
    count = np.maximum(np.searchsorted(points, ends, side="left") - first, 0)
    source = np.repeat(np.arange(len(starts)), count + 1)
    # Number of each piece among those of its interval.
    place = np.arange(len(source)) - np.repeat(np.cumsum(count + 1) - count - 1, count + 1)
    low, high = starts[source], ends[source]
    inner = place > 0
    low[inner] = points[(first[source] + place - 1)[inner]]
    inner = place < count[source]
    high[inner] = points[(first[source] + place)[inner]]
    return source, low, high


def sums(keys: NDArray[Any], amounts: Ints, size: int) -> Ints:
    """The sum of the amounts, none below 0, of each key from 0 to ``size`` - 1; exact."""
    if float(amounts.sum(dtype=np.float64)) < EXACT / 2:
        return np.bincount(keys, amounts, size).astype(np.int64)
    low = np.bincount(keys, amounts & 0x3FFFFFF, size).astype(np.int64)
    return low + (np.bincount(keys, amounts >> 26, size).astype(np.int64) << 26)
