"""Which spans a follower gives out, told from the name ids in their words.

Millions of spans may not be wanted: they are passed over without a look at each. One byte of each word,
the lowest of its name id, is enough to see that in C.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from stepwell.journal.format import MAX_NAMES
from stepwell.journal.names import SPAN
from stepwell.journal.tail import Tail, parse_object

LOST = "(name was lost)"
MARK = b"\1"

Name = tuple[str, str]
"""(name, category)"""


class KeptNames:
    """The string table of a process as it grows. ``marks`` tells low bytes of ids to look at."""

    def __init__(self, keep: Callable[[str], bool]) -> None:
        self._keep = keep
        self._tail = Tail()
        self._names: dict[int, Name | None] = {}
        self._wanted = [0] * 256
        self._unwanted = [0] * 256
        # Until more is known, any byte may be of a name that is wanted.
        self.marks = MARK * 256

    def read(self, paths: Iterable[Path]) -> None:
        """Take new names in. What was recorded before has its names then."""
        paths = list(paths)
        count = len(self._names)
        while True:
            for line in self._tail.read(paths):
                self._add(line)
            if not self._tail.more:
                break
        if len(self._names) != count:
            self.marks = bytes(map(self._mark, range(256)))

    def find(self, number: int) -> Name | None:
        """Name and category of this id if it is kept."""
        if number in self._names:
            return self._names[number]
        # Its line was lost to a full disk, or is yet to come when there is space again.
        return (LOST, "") if self._keep(LOST) else None

    def _add(self, line: bytes) -> None:
        entry = parse_object(line) or {}
        number, name = entry.get("id"), entry.get("name")
        # The first complete line of an id counts: what was decided once stays.
        if not isinstance(number, int) or not 0 <= number <= MAX_NAMES or number in self._names:
            return
        kept = entry.get("kind") == SPAN and isinstance(name, str) and self._keep(name)
        self._names[number] = (str(name), str(entry.get("category") or "")) if kept else None
        (self._wanted if kept else self._unwanted)[number & 0xFF] += 1

    def _mark(self, low: int) -> bool:
        # Zero: not written yet, to be looked at again.
        return not low or bool(self._wanted[low]) or not self._unwanted[low]
