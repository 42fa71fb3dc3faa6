"""Tracks: the lines on which the spans of a thread are drawn, so that each is nested in its parent only.

Viewers nest spans on one line by time alone. Spans of asyncio tasks overlap without being nested, and a
span may outlive its parent: these are drawn on lines of their own.
"""

from __future__ import annotations

FOREVER = 1 << 63


class _Line:
    """The open spans of one line as (end, id), outermost first, and the time up to which it is drawn."""

    __slots__ = ("drawn", "open")

    def __init__(self) -> None:
        self.open: list[tuple[int, int]] = []
        self.drawn = 0

    def finish(self, now: int) -> None:
        """Remove spans that have ended."""
        while self.open and self.open[-1][0] <= now:
            until, _ = self.open.pop()
            self.drawn = max(self.drawn, until)


class Tracks:
    """The lines of one thread. Spans must be placed in the order in which they began."""

    def __init__(self) -> None:
        self._lines = [_Line()]

    def place(self, id: int, parent: int | None, start: int, end: int | None) -> int:
        """Return the number of the line for a span; 0 is the thread's own.

        ``end`` is None for an open span.
        """
        until = FOREVER if end is None else end
        number = self._find(parent, start, until)
        line = self._lines[number]
        line.open.append((until, id))
        line.drawn = max(line.drawn, start)
        return number

    def close(self, number: int, id: int, end: int) -> list[int]:
        """End a span that was placed without an end, and return the ids of the spans still open in it.

        These must continue on another line: viewers cannot draw a span that outlives the one around it.
        """
        line = self._lines[number]
        at = next((i for i, (_, other) in enumerate(line.open) if other == id), None)
        if at is None:
            return []
        inside = [other for until, other in line.open[at + 1 :] if until > end]
        del line.open[at:]
        line.drawn = max(line.drawn, end)
        return inside

    def expect(self, number: int, id: int, end: int) -> None:
        """Set the end of a span that was placed without one."""
        line = self._lines[number]
        line.open = [(end if other == id else until, other) for until, other in line.open]

    def _find(self, parent: int | None, start: int, end: int) -> int:
        free = None
        for number, line in enumerate(self._lines):
            line.finish(start)
            if start < line.drawn:
                continue
            if line.open and line.open[-1][1] == parent and end <= line.open[-1][0]:
                return number
            if free is None and not line.open:
                free = number
        if free is None:
            self._lines.append(_Line())
            return len(self._lines) - 1
        return free
