"""Parents from times: of the spans of a thread that contain another, the innermost is its parent.

Spans that overlap and do not nest are siblings. Where one ends at the instant at which the other is, it
contains it only if the file tells so, by a level or by the order in which it has them.
"""

from __future__ import annotations

from collections import deque

from stepwell.importing.rows import CLOSED_IN_ORDER, FAILED
from stepwell.importing.sorting import Row

MAX_DEPTH = 1000
"""Deeper spans get their ancestor at this depth as their parent."""
MAX_FAILED = 2000
MAX_REMEMBERED = 1 << 16


class Nesting:
    """The spans of one lane that are open at the row that is looked at; rows come in order."""

    def __init__(self) -> None:
        self._open: list[tuple[Row, int]] = []
        self._by_key: dict[int, int] = {}
        self._failed: deque[tuple[int, int]] = deque(maxlen=MAX_FAILED)
        self.too_deep = 0

    def clear(self) -> None:
        """Begin with another lane."""
        self._open.clear()
        self._by_key.clear()
        self._failed.clear()

    def parent_of(self, row: Row) -> int | None:
        """Identity of the innermost span that contains this row."""
        open_spans = self._open
        while open_spans and not _contains(open_spans[-1][0], row):
            open_spans.pop()
        return open_spans[-1][1] if open_spans else None

    def add(self, row: Row, identity: int) -> None:
        """A span whose parent was just asked for."""
        if len(self._open) < MAX_DEPTH:
            self._open.append((row, identity))
        else:
            self.too_deep += 1
        if row.word & FAILED:
            self._failed.append((-row.minus_end, identity))
        if row.key:
            self._by_key[row.key] = identity
            if len(self._by_key) > MAX_REMEMBERED:
                del self._by_key[next(iter(self._by_key))]

    def span_of(self, event: Row) -> int | None:
        """Identity of the span of an event: the one it names, else the innermost at its time."""
        if event.word & FAILED:
            # An exception is noted right after the span that it went through first has ended.
            ended = [pair for pair in self._failed if pair[0] <= event.start]
            if ended:
                return max(ended)[1]
        if event.key:
            for row, identity in reversed(self._open):
                if row.key == event.key:
                    return identity
            if event.key in self._by_key:
                return self._by_key[event.key]
        for row, identity in reversed(self._open):
            if -row.minus_end >= event.start:
                return identity
        return None


def _contains(outer: Row, inner: Row) -> bool:
    if outer.minus_end > inner.minus_end:
        return False
    if outer.begun and outer.depth >= 0 and inner.depth >= 0:
        return outer.depth < inner.depth
    if -outer.minus_end > inner.start:
        return True
    if outer.depth >= 0 and inner.depth >= 0:
        return outer.depth < inner.depth
    if not outer.word & inner.word & CLOSED_IN_ORDER:
        return False
    return outer.start < inner.start and abs(outer.order) > abs(inner.order)
