"""Sets of instants as arrays, compared with sets of integers; and the owner of each instant."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepwell.analysis.timeline import intervals
from stepwell.analysis.timeline.intervals import (
    CHUNK,
    Set,
    last_begun,
    previous_greater,
    split_by_owner,
)

pairs = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda p: (p[0], p[0] + p[1])),
    max_size=12,
)


def arrays(spans: list[tuple[int, int]]) -> tuple[Any, Any]:
    return (
        np.array([a for a, _ in spans], np.int64),
        np.array([b for _, b in spans], np.int64),
    )


def points(spans: list[tuple[int, int]]) -> set[int]:
    return {i for a, b in spans for i in range(a, b)}


def of(instants: Set) -> set[int]:
    """Return the instants of a set, which must be sorted, disjoint and without empty parts."""
    starts, ends = instants
    assert (ends > starts).all()
    assert (starts[1:] > ends[:-1]).all()
    return points(list(zip(starts.tolist(), ends.tolist(), strict=True)))


@given(pairs, pairs)
def test_algebra_is_that_of_sets_of_instants(first: Any, second: Any) -> None:
    """Union, intersection, subtraction, complement, clipping and length."""
    a, b = intervals.union(*arrays(first)), intervals.union(*arrays(second))
    assert of(a) == points(first)
    assert of(intervals.intersection(a, b)) == points(first) & points(second)
    assert of(intervals.subtraction(a, b)) == points(first) - points(second)
    assert of(intervals.complement(a, 5, 30)) == set(range(5, 30)) - points(first)
    assert of(intervals.clip(a, 5, 30)) == set(range(5, 30)) & points(first)
    assert intervals.length(a) == len(points(first))
    inside = intervals.contains(a, np.arange(60)) if len(a[0]) else np.zeros(60, bool)
    assert set(np.flatnonzero(inside).tolist()) == points(first)


@given(pairs, st.lists(st.integers(0, 55), max_size=10))
def test_cutting_loses_nothing(spans: Any, at: list[int]) -> None:
    """The pieces of an interval cover it, and none has a point inside."""
    starts, ends = arrays(spans)
    cuts = np.array(sorted(at), np.int64)
    source, low, high = intervals.split(starts, ends, cuts)
    for number, pair in enumerate(spans):
        own = source == number
        assert points(list(zip(low[own].tolist(), high[own].tolist(), strict=True))) == points(
            [pair]
        )
        assert (high - low)[own].sum() == pair[1] - pair[0]
    assert not [1 for a, b in zip(low, high, strict=True) for c in at if a < c < b]


def test_sums_are_exact_past_what_floats_can_tell() -> None:
    """A hundred years in nanoseconds, and one nanosecond more."""
    century = 100 * 365 * 24 * 3600 * 10**9
    result = intervals.sums(np.array([0, 1, 0, 1]), np.array([century, 7, 1, century]), 3)
    assert result.tolist() == [century + 1, century + 7, 0]


@given(st.lists(st.integers(0, 10), max_size=40), st.integers(0, 5))
def test_previous_greater_is_what_a_walk_back_finds(ends: list[int], around: int) -> None:
    """The last span before that ends no earlier, however many are assumed to contain all others."""
    expected = [
        max((j for j in range(i) if ends[j] >= ends[i]), default=-1) for i in range(len(ends))
    ]
    assert previous_greater(np.array(ends, np.int64), around).tolist() == expected


@given(pairs.filter(len), st.sampled_from([1, 2, 3, 5, CHUNK]))
def test_the_owner_is_the_latest_of_those_that_are_open(spans: Any, chunk: int) -> None:
    """However spans overlap, and wherever a chunk of them ends."""
    spans = sorted(spans, key=lambda pair: pair[0])
    until = 60
    owner_at: dict[int, int] = {}
    before, intervals.CHUNK = intervals.CHUNK, chunk
    try:
        for _, _, lists in split_by_owner(*arrays(spans), until):
            for _, owners, low, high in lists:
                for who, a, b in zip(owners.tolist(), low.tolist(), high.tolist(), strict=True):
                    for instant in range(a, b):
                        assert instant not in owner_at
                        owner_at[instant] = who
    finally:
        intervals.CHUNK = before
    for instant in range(spans[0][0], until):
        is_open = [i for i, (a, b) in enumerate(spans) if a <= instant < b]
        assert owner_at.pop(instant) == max(is_open, default=-1)
    assert not owner_at


@given(st.lists(st.integers(0, 30)), st.lists(st.integers(-5, 35)))
def test_last_begun_is_a_search(begins: list[int], instants: list[int]) -> None:
    sorted_begins, at = np.array(sorted(begins), np.int64), np.array(sorted(instants), np.int64)
    expected = np.searchsorted(sorted_begins, at, side="right") - 1
    assert last_begun(sorted_begins, at).tolist() == expected.tolist()
