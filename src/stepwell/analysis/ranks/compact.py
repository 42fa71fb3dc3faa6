"""Whole numbers in half of the memory: most times within a step are below two seconds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

LEAST = -(1 << 31) + 1
MOST = (1 << 31) - 1
ELSEWHERE = -(1 << 31)
"""Stands for a number that does not fit."""


class Compact:
    """An array of 64-bit numbers, kept with 32 bits each and those that need more beside it."""

    def __init__(self, values: Ints) -> None:
        fits = values.min(initial=0) >= LEAST and values.max(initial=0) <= MOST
        none: Ints = np.empty(0, np.int64)
        large = none if fits else np.flatnonzero((values < LEAST) | (values > MOST))
        self._small = values.astype(np.int32)
        self._at = large
        self._exact = values.ravel()[large]
        self._small.ravel()[large] = ELSEWHERE

    def __getstate__(self) -> tuple[NDArray[np.int32], Ints | None, Ints | None]:
        # As a rule all fit, and two empty arrays cost as much to send as one that is not.
        some = len(self._at) > 0
        return self._small, self._at if some else None, self._exact if some else None

    def __setstate__(self, state: tuple[NDArray[np.int32], Ints | None, Ints | None]) -> None:
        none: Ints = np.empty(0, np.int64)
        self._small, at, exact = state
        self._at, self._exact = none if at is None else at, none if exact is None else exact

    @property
    def full(self) -> Ints:
        """The numbers as they are; worked out anew each time."""
        found = self._small.astype(np.int64)
        if len(self._at):
            found.ravel()[self._at] = self._exact
        return found

    def cells(self, rows: Ints, columns: Ints) -> Ints:
        """Some rows and columns of a table."""
        found = self._small[np.ix_(rows, columns)].astype(np.int64)
        if len(self._at):
            row, column = np.nonzero(found == ELSEWHERE)
            flat = rows[row] * self._small.shape[1] + columns[column]
            found[row, column] = self._exact[np.searchsorted(self._at, flat)]
        return found
