"""Spans of one thread on lines, where each is nested in its parent only."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.exporters.trace.tracks import FOREVER, Tracks

Placed = tuple[int, int | None, int, int | None]
"""id, parent, start, end"""


def lines(*spans: Placed) -> list[int]:
    tracks = Tracks()
    return [tracks.place(*span) for span in spans]


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([(1, None, 0, 9), (2, 1, 1, 5), (3, 2, 2, 3), (4, 1, 5, 9), (5, None, 9, 12)], [0] * 5),
        # Tasks: each overlaps with the one before, all of them are nested in the first span.
        ([(1, None, 0, 20), (2, 1, 1, 10), (3, 1, 2, 12), (4, 1, 3, 9)], [0, 0, 1, 2]),
        # Nested spans stay on the line of their task, and a line is used again once it is free.
        ([(1, None, 0, 9), (2, None, 1, 8), (3, 1, 2, 3), (4, 2, 2, 3)], [0, 1, 0, 1]),
        ([(1, None, 0, 9), (2, None, 1, 8), (3, None, 8, 20)], [0, 1, 1]),
        # By time it is nested in the first span, but that is not its parent.
        ([(1, None, 0, 9), (2, None, 3, 5)], [0, 1]),
        # It outlives the span that it began in.
        ([(1, None, 0, 5), (2, 1, 1, 7), (3, None, 7, 8)], [0, 1, 0]),
        # Open spans have no end.
        ([(1, None, 0, None), (2, 1, 1, None), (3, 2, 1, 2), (4, None, 5, 6)], [0, 0, 0, 1]),
        # Spans of no length: a parent, its child, and a sibling at the same instant.
        ([(1, None, 3, 3), (2, 1, 3, 3), (3, None, 3, 4)], [0, 0, 0]),
        # A child that begins as its parent ends comes behind it, not inside; not so far out, though.
        ([(1, None, 0, 3), (2, 1, 3, 4)], [0, 0]),
        ([(1, None, 0, 9), (2, 1, 0, 3), (3, 2, 3, 4)], [0, 0, 1]),
        ([(1, None, 0, None), (2, 1, 0, 1), (3, 2, 1, 1)], [0, 0, 1]),
        # A start that was set back to before what is drawn already.
        ([(1, None, 0, 9), (2, 1, 5, 6), (3, 1, 2, 4)], [0, 0, 1]),
        ([(1, None, 0, 9), (2, 1, 5, 6), (3, None, 7, 20), (4, 1, 2, 6)], [0, 0, 1, 2]),
    ],
)
def test_placing(spans: list[Placed], expected: list[int]) -> None:
    """Worked out on paper."""
    assert lines(*spans) == expected


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(-1, 12), st.booleans()),
        max_size=25,
    )
)
def test_nothing_overlaps_or_stands_in_a_stranger(
    drawn: list[tuple[int, int, int, bool]],
) -> None:
    """Of any two spans of a line one contains the other or they are apart; the innermost is the parent."""
    spans: list[Placed] = []
    for id, (start, length, above, is_open) in enumerate(sorted(drawn)):
        parent = above if 0 <= above < id else None
        spans.append((id, parent, start, None if is_open else start + length))
    placed = list(zip(spans, lines(*spans), strict=True))
    for at, ((_, parent, start, end), line) in enumerate(placed):
        until = FOREVER if end is None else end
        around = []
        for (other, _, other_start, other_end), other_line in placed[:at]:
            other_until = FOREVER if other_end is None else other_end
            if other_line != line or other_until <= start:
                continue
            assert other_start <= start
            assert until <= other_until
            around.append(other)
        if around:
            assert around[-1] == parent


def test_a_span_that_ends_before_what_is_inside_of_it() -> None:
    """It returns the spans still open, outermost first, and frees the line."""
    tracks = Tracks()
    assert [tracks.place(1, None, 0, None), tracks.place(2, 1, 1, None)] == [0, 0]
    assert [tracks.place(3, 2, 2, None), tracks.place(4, 3, 3, 4)] == [0, 0]
    assert tracks.close(0, 1, 8) == [2, 3]
    assert tracks.place(5, None, 8, 9) == 0
    assert tracks.close(0, 77, 9) == []


def test_an_end_that_is_known_ahead() -> None:
    """A span that will outlive the one around it is not drawn in it."""
    tracks = Tracks()
    tracks.place(1, None, 0, None)
    tracks.expect(0, 1, 5)
    assert tracks.place(2, 1, 1, 5) == 0
    assert tracks.place(3, 1, 5, 6) == 0
    other = Tracks()
    other.place(1, None, 0, None)
    other.expect(0, 1, 5)
    assert other.place(2, 1, 1, 6) == 1
