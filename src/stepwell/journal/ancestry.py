"""Who is inside of whom, over segments and over spans that are not given out."""

from __future__ import annotations

from stepwell.journal.format import (
    LINK_NAME,
    NAME_SHIFT,
    SLOT_BITS,
    SLOT_MASK,
    SPAN_SLOTS,
    span_id,
)
from stepwell.journal.kept_names import KeptNames
from stepwell.journal.segment_files import SegmentFiles
from stepwell.journal.segment_rows import LiveRows, Row

MAX_REMEMBERED = 1 << 16
MAX_JUMPS = 200
"""How many segments are gone through for one ancestor; a stranger's may lead on and on."""


class Ancestry:
    """Finds the ancestors of spans. ``live`` are rows that are at hand, by their segment."""

    def __init__(self, files: SegmentFiles, names: KeptNames) -> None:
        self.live: dict[int, LiveRows] = {}
        self._files = files
        self._names = names
        self._known: dict[int, int | None] = {}

    def nearest(self, seq: int, slot: int) -> int | None:
        """Identity of the span in this slot if it is kept, else of the nearest one above it."""
        passed = []
        found = None
        jumps = 0
        while jumps < MAX_JUMPS:
            place = span_id(seq, slot)
            if place in self._known:
                found = self._known[place]
                break
            passed.append(place)
            row = self.row(seq, slot)
            if row is None:
                break
            _, start, meta = row
            above = meta & SLOT_MASK
            if _name(meta) == LINK_NAME and start:
                # It stands for a span elsewhere.
                jumps += 1
                seq, slot = (start - 1) >> SLOT_BITS, (start - 1) % SPAN_SLOTS
            elif start and _name(meta) and self._names.find(_name(meta)) is not None:
                found = self.identity(seq, slot)
                break
            elif 0 < above < slot:
                slot = above
            else:
                break
        self._remember(passed, found)
        return found

    def _remember(self, places: list[int], found: int | None) -> None:
        if len(self._known) > MAX_REMEMBERED:
            for place in list(self._known)[: MAX_REMEMBERED // 2]:
                del self._known[place]
        for place in places:
            self._known[place] = found

    def identity(self, seq: int, slot: int) -> int:
        """Which span it is: one that went on here stands behind a link to where it began."""
        row = self.row(seq, slot - 1) if slot > 1 else None
        if row is not None and row[1]:
            meta = row[2]
            if _name(meta) == LINK_NAME and meta & SLOT_MASK == slot:
                return row[1] - 1
        return span_id(seq, slot)

    def row(self, seq: int, slot: int) -> Row | None:
        """One row, wherever it is; None when it cannot be found."""
        rows = self.live.get(seq)
        row = None if rows is None else rows.row(slot)
        return self._files.row(seq, slot) if row is None else row


def _name(meta: int) -> int:
    return meta >> NAME_SHIFT & LINK_NAME
