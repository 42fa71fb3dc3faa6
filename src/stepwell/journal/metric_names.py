"""The names of metrics in a string table, and for which loggers each of them is."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from stepwell.journal.format import MAX_NAMES
from stepwell.journal.names import METRIC
from stepwell.journal.tail import Tail, parse_object

AUDIENCE = "log:"
"""How the category of a metric's name begins that is for certain loggers: ``log:1+3``."""
MAX_AUDIENCE = 1000

Name = tuple[str, tuple[int, ...]]
"""A name, and the numbers of the loggers that it is for."""


def audience_of(category: str) -> tuple[int, ...]:
    """The loggers that a category stands for; none for any other."""
    if not category.startswith(AUDIENCE):
        return ()
    parts = category[len(AUDIENCE) :].split("+")[:MAX_AUDIENCE]
    return tuple(int(part) for part in parts if part.isdecimal() and len(part) < 10)


class MetricNames:
    """Metric names as they come, of those for one logger; None: of all, also of those for none."""

    def __init__(self, number: int | None) -> None:
        self._number = number
        self._tail = Tail()
        self._names: dict[int, Name | None] = {}

    def read(self, paths: Iterable[Path]) -> None:
        """Take new names in. What was recorded before has its names then."""
        paths = list(paths)
        while True:
            for line in self._tail.read(paths):
                self._add(line)
            if not self._tail.more:
                break

    def wants(self, number: int) -> bool | None:
        """Whether the metric with this id is wanted; None: nobody knows yet."""
        try:
            return self._names[number] is not None
        except KeyError:
            # Its line was lost to a full disk, or is yet to come when there is space again.
            return None

    def find(self, number: int) -> Name:
        """A name that is wanted."""
        found = self._names[number]
        assert found is not None
        return found

    def _add(self, line: bytes) -> None:
        entry = parse_object(line) or {}
        number, name = entry.get("id"), entry.get("name")
        if not isinstance(number, int) or not 0 <= number <= MAX_NAMES or number in self._names:
            return
        audience = audience_of(str(entry.get("category") or ""))
        wanted = self._number is None or self._number in audience
        is_metric = entry.get("kind") == METRIC and isinstance(name, str)
        self._names[number] = (str(name), audience) if is_metric and wanted else None
