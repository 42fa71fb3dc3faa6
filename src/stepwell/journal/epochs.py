"""Which epoch it was at a time, as the context rows tell."""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import Any

from stepwell.journal.format import EPOCH_MASK

KEPT = 64
"""Rows come almost in the order of their times: what was before that many changes is not asked for."""


class Epochs:
    """The latest changes of the epoch."""

    def __init__(self, known: Any = ()) -> None:
        self._changes: list[tuple[int, int]] = [
            (int(time), int(word)) for time, word in known or ()
        ]

    def to_json(self) -> list[list[int]]:
        """The changes as plain values."""
        return [list(change) for change in self._changes]

    def add(self, time: int, context_word: int) -> None:
        """From this time on the context is this."""
        word = context_word & EPOCH_MASK
        at = bisect_right(self._changes, (time, EPOCH_MASK))
        if (self._changes[at - 1][1] if at else 0) == word:
            return
        insort(self._changes, (time, word))
        del self._changes[:-KEPT]

    def at(self, time: int) -> int | None:
        """The epoch at a time; None where none was set."""
        found = bisect_right(self._changes, (time, EPOCH_MASK))
        word = self._changes[found - 1][1] if found else 0
        return word - 1 if word else None
