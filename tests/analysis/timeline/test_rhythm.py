"""Regular intervals, and how they differ from irregular ones."""

from __future__ import annotations

import numpy as np
import pytest

from stepwell.analysis.timeline.patterns import find_period


def regular(*at: int) -> tuple[int, list[int]] | None:
    """The distance, and the places that keep to it."""
    places = np.array(at)
    found = find_period(places)
    return None if found is None else (found[0], places[found[1]].tolist())


def test_all_in_time() -> None:
    """Wherever the first one is."""
    assert regular(4, 14, 24, 34) == (10, [4, 14, 24, 34])
    assert regular(7, 27, 47) == (20, [7, 27, 47])


def test_some_in_between() -> None:
    """They are left out, and the distances that they make do not mislead."""
    assert regular(4, 14, 16, 18, 24, 34, 44, 53, 54, 64) == (10, [4, 14, 24, 34, 44, 54, 64])


def test_one_is_missing() -> None:
    """It was not slow enough, say."""
    assert regular(3, 8, 13, 23, 28) == (5, [3, 8, 13, 23, 28])


@pytest.mark.parametrize(
    "at", [(1, 2, 3, 4), (3, 11, 40, 77), (10, 20, 30, 77), (5, 9), (0, 3, 5, 6, 20, 23, 41, 60)]
)
def test_no_rhythm(at: tuple[int, ...]) -> None:
    """In a row, by chance, at first only, or too few."""
    assert regular(*at) is None
