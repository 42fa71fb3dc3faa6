"""Whether things come at a regular distance from each other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LIKELY = 5
"""So many of the most common distances are tried."""
FEWEST = 3
FEWEST_OF_MORE = 5
"""Of few that come as they like, some are in line by chance."""
IN_TIME = 0.7
"""Of the things, those that must come in time: others come in between by accident …"""
THERE = 0.8
"""… and of the places at which one is due, those that must have one."""

Places = NDArray[np.int64] | NDArray[np.intp]


def rhythm(at: Places) -> tuple[int, NDArray[np.bool_]] | None:
    """The distance at which these ascending places follow each other, and which of them do; else None."""
    distances, counts = np.unique(np.diff(at), return_counts=True)
    likely = distances[np.argsort(-counts, kind="stable")[:LIKELY]]
    found = [
        (period, in_time)
        for period in likely.tolist()
        if (in_time := _comb(at, period)) is not None
    ]
    return max(found, key=lambda one: int(one[1].sum()), default=None)


def _comb(at: Places, period: int) -> NDArray[np.bool_] | None:
    """Which of the places come every so many; None if they are too few, or too many are left out."""
    if period < 2:
        return None
    shifts, counts = np.unique(at % period, return_counts=True)
    in_time: NDArray[np.bool_] = at % period == shifts[counts.argmax()]
    due = int(at[-1] - at[0]) // period + 1
    hits = int(in_time.sum())
    fewest = FEWEST if hits == len(at) else FEWEST_OF_MORE
    is_regular = hits >= max(fewest, IN_TIME * len(at)) and hits >= THERE * due
    return in_time if is_regular else None
