"""Name filters: which spans and metrics a follower returns, by the ids of their names.

Millions of spans may be filtered out, so they are skipped in C by the lowest byte of their name id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from stepwell.journal.format import MAX_NAMES, METRIC, SPAN
from stepwell.journal.tail import Tail, parse_object

LOST = "(name was lost)"
MARK = b"\1"

SpanName = tuple[str, str]
"""(name, category)"""

AUDIENCE = "log:"
"""Prefix of the category of a metric name that is meant for some loggers: ``log:1+3``."""
MAX_AUDIENCE = 1000

MetricName = tuple[str, tuple[int, ...]]
"""(name, numbers of the loggers that it is meant for)"""


class SpanNameFilter:
    """The span names of a process that ``keep`` accepts.

    ``marks[byte]`` is 1 if an accepted name id may have this lowest byte.
    """

    def __init__(self, keep: Callable[[str], bool]) -> None:
        self._keep = keep
        self._tail = Tail()
        self._names: dict[int, SpanName | None] = {}
        self._wanted = [0] * 256
        self._unwanted = [0] * 256
        # Before names are read, any id may be accepted.
        self.marks = MARK * 256

    def read(self, paths: Iterable[Path]) -> None:
        """Read new names. Every record that was written before has its name then."""
        count = len(self._names)
        for number, entry in _new_entries(self._tail, paths):
            # The first complete line of an id counts, so that a decision never changes.
            if number not in self._names:
                self._add(number, entry)
        if len(self._names) != count:
            self.marks = bytes(map(self._mark, range(256)))

    def find(self, number: int) -> SpanName | None:
        """Return name and category of this id; None if it is filtered out."""
        if number in self._names:
            return self._names[number]
        # A full disk prevented its line, or delays it.
        return (LOST, "") if self._keep(LOST) else None

    def _add(self, number: int, entry: dict[str, Any]) -> None:
        name = entry.get("name")
        kept = entry.get("kind") == SPAN and isinstance(name, str) and self._keep(name)
        self._names[number] = (str(name), str(entry.get("category") or "")) if kept else None
        (self._wanted if kept else self._unwanted)[number & 0xFF] += 1

    def _mark(self, low: int) -> bool:
        # Zero: the name is not written yet; such rows are read again.
        return not low or bool(self._wanted[low]) or not self._unwanted[low]


def audience_of(category: str) -> tuple[int, ...]:
    """Return the numbers of the loggers in a category; empty for other categories."""
    if not category.startswith(AUDIENCE):
        return ()
    parts = category[len(AUDIENCE) :].split("+")[:MAX_AUDIENCE]
    return tuple(int(part) for part in parts if part.isdecimal() and len(part) < 10)


class MetricNameFilter:
    """The metric names of a process that are meant for one logger; None: all of them."""

    def __init__(self, number: int | None) -> None:
        self._number = number
        self._tail = Tail()
        self._names: dict[int, MetricName | None] = {}

    def read(self, paths: Iterable[Path]) -> None:
        """Read new names. Every record that was written before has its name then."""
        for number, entry in _new_entries(self._tail, paths):
            if number not in self._names:
                self._add(number, entry)

    def wants(self, number: int) -> bool | None:
        """Return whether the metric with this id passes the filter; None if its name is not written yet."""
        try:
            return self._names[number] is not None
        except KeyError:
            # A full disk prevented its line, or delays it.
            return None

    def find(self, number: int) -> MetricName:
        """Return a name that passes the filter."""
        name = self._names[number]
        assert name is not None
        return name

    def _add(self, number: int, entry: dict[str, Any]) -> None:
        name = entry.get("name")
        audience = audience_of(str(entry.get("category") or ""))
        wanted = self._number is None or self._number in audience
        is_metric = entry.get("kind") == METRIC and isinstance(name, str)
        self._names[number] = (str(name), audience) if is_metric and wanted else None


def _new_entries(tail: Tail, paths: Iterable[Path]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (id, entry) of the new valid lines of names.jsonl."""
    paths = list(paths)
    while True:
        for line in tail.read(paths):
            entry = parse_object(line) or {}
            number = entry.get("id")
            if isinstance(number, int) and 0 <= number <= MAX_NAMES:
                yield number, entry
        if not tail.more:
            return
