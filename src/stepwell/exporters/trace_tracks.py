"""Tracks: where spans of one thread are drawn so that each stands inside of its parent and nothing else.

Viewers nest what is drawn on one line by time alone. Spans of asyncio tasks overlap without being inside
of each other, and a span may outlive the one it began in: these get a line of their own.
"""

from __future__ import annotations

FOREVER = 1 << 63


class _Line:
    """What is open on one line, outermost first, and how far it is drawn."""

    __slots__ = ("drawn", "open")

    def __init__(self) -> None:
        self.open: list[tuple[int, int]] = []
        self.drawn = 0

    def finish(self, now: int, parent: int | None) -> None:
        """Take away what has ended; a parent that ends at this instant may still have a child in it."""
        while self.open:
            until, id = self.open[-1]
            if until > now or (until == now and id == parent):
                return
            self.drawn = max(self.drawn, until)
            self.open.pop()


class Tracks:
    """The lines of one thread. Spans are placed in the order in which they began."""

    def __init__(self) -> None:
        self._lines = [_Line()]

    def place(self, id: int, parent: int | None, start: int, end: int | None) -> int:
        """The number of the line to draw a span on, 0 being the thread's own; None for no end yet."""
        until = FOREVER if end is None else end
        number = self._find(parent, start, until)
        line = self._lines[number]
        line.open.append((until, id))
        line.drawn = max(line.drawn, start)
        return number

    def close(self, number: int, id: int, end: int) -> list[int]:
        """End a span that was placed without an end; returns what is open inside of it.

        These have to go on elsewhere: nothing can be drawn as lasting longer than what it is in.
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
        """Note when a span that was placed without an end is going to end."""
        line = self._lines[number]
        line.open = [(end if other == id else until, other) for until, other in line.open]

    def _find(self, parent: int | None, start: int, end: int) -> int:
        free = None
        for number, line in enumerate(self._lines):
            line.finish(start, parent)
            if start < line.drawn:
                continue
            if line.open and line.open[-1][1] == parent and end <= line.open[-1][0]:
                return number
            if free is None and all(until <= start for until, _ in line.open):
                free = number
        if free is None:
            self._lines.append(_Line())
            return len(self._lines) - 1
        self._lines[free].finish(start, None)
        return free
