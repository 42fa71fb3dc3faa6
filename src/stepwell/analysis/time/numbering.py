"""Which step each training iteration is, whenever in it, before or after it that was told."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from stepwell.analysis.time.intervals import Ints
from stepwell.analysis.time.lanes import FOREVER, Lane

At = Callable[[Ints], tuple[Ints, Ints]]
"""Step and epoch that had been told last at each of some instants, -1 for none."""


def number_iterations(lane: Lane, rows: NDArray[np.int64], at: At) -> tuple[Ints, Ints]:
    """Step and epoch of the iterations in these rows of a lane; -1 for those before the first step.

    Where no step was ever told they are counted from 0.
    """
    starts, ends = lane.starts[rows], lane.ends[rows]
    # The step may be set just after the beginning, and the next one just before the end.
    steps, epochs = (values.copy() for values in at(starts + (ends - starts) // 2))
    _use_told(lane, rows, steps, epochs)
    known = np.flatnonzero(steps >= 0)[:1]
    if not len(known):
        return np.arange(len(rows)), epochs
    first = int(known[0])
    if first == 1 and (after := _told_after(starts, steps, at)) is not None:
        return after
    if first:
        # Back from the first that is known.
        steps[:first] = np.maximum(steps[first] - np.arange(first, 0, -1), -1)
    return steps, epochs


def _use_told(lane: Lane, rows: NDArray[np.int64], steps: Ints, epochs: Ints) -> None:
    """Put in what iterations say of themselves."""
    at = np.searchsorted(rows, lane.told[0])
    known = rows[np.minimum(at, len(rows) - 1)] == lane.told[0]
    at, told = at[known], lane.told[:, known]
    steps[at] = told[1]
    epochs[at] = np.where(told[2] >= 0, told[2], epochs[at])


def _told_after(starts: Ints, steps: Ints, at: At) -> tuple[Ints, Ints] | None:
    """What was told after each iteration, if that is how it is done: the first is told so, and the last."""
    after, epochs = (values.copy() for values in at(np.append(starts[1:], FOREVER)))
    if after[0] != steps[1] or (after[-1] == steps[-1] and steps[1] > 0):
        return None
    if after[-1] == steps[-1]:
        # The last one is under way.
        after[-1] += 1
    return after, epochs
