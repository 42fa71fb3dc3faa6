"""The time of a training thread as cells: nanoseconds by phase and step. No instant is counted twice.

Time without a phase is named after the outermost span of the user's own that is open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell.analysis.timeline.intervals import (
    Ints,
    Pieces,
    Set,
    last_begun,
    split,
    split_by_owner,
    sums,
)
from stepwell.analysis.timeline.iterations import Iterations, StepWindows
from stepwell.analysis.timeline.lanes import LaneSpans
from stepwell.analysis.timeline.phases import CODE_MASK, NOTHING, OWN, OWN_SPAN, PHASES, Bytes

MOST_NAMES = 20
"""Names that get a line of their own: those with the most time. A program may use any number of names."""


@dataclass(frozen=True)
class OwnSpans:
    """The outermost own spans of a thread.

    Attributes:
        names: names that have a line, with the prefix ``OWN_SPAN``.
        spans: the spans with one of these names, disjoint and sorted.
        places: the place of each span's name (see ``phases``).
        iteration: index of the name of the user's own span around each step.
    """

    names: tuple[str, ...]
    spans: Set
    places: Ints
    iteration: int | None


def own_spans(
    lane: LaneSpans, iterations: Iterations | None, names: Mapping[int, tuple[str, str, str]]
) -> OwnSpans:
    """Find the own spans of a lane. A span that contains a whole training iteration gets no line."""
    rows, numbers = lane.named
    starts, ends = lane.starts[rows], lane.ends[rows]
    if iterations is not None and len(iterations):
        first = np.searchsorted(iterations.starts, starts)
        last_end = np.append(iterations.ends, np.iinfo(np.int64).max)[first]
        kept = last_end > ends
        starts, ends, numbers = starts[kept], ends[kept], numbers[kept]
    # Where several are open, the one that began first counts.
    if len(starts):
        reach = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(ends)[:-1]))
        starts = np.maximum(starts, reach)
        some = ends > starts
        starts, ends, numbers = starts[some], ends[some], numbers[some]
    lines, line_of = _lines(numbers, ends - starts, names)
    around = None if lane.around_steps is None else _title(names, lane.around_steps)
    if around is not None and around not in lines:
        lines.append(around)
    iteration = None if around is None else lines.index(around)
    shown = line_of >= 0
    places = OWN + line_of[shown]
    return OwnSpans(tuple(lines), (starts[shown], ends[shown]), places, iteration)


def _lines(
    numbers: Ints, lengths: Ints, names: Mapping[int, tuple[str, str, str]]
) -> tuple[list[str], Ints]:
    """Return the names with the most time, and for each span the index of its name among them, or -1."""
    distinct, which = np.unique(numbers, return_inverse=True)
    titles = [_title(names, int(number)) for number in distinct]
    total: dict[str, int] = {}
    for title, ns in zip(titles, sums(which, lengths, len(distinct)).tolist(), strict=True):
        if title is not None:
            total[title] = total.get(title, 0) + ns
    lines = sorted(total, key=lambda title: -total[title])[:MOST_NAMES]
    at = np.array([lines.index(t) if t in lines else -1 for t in titles], np.int64)
    return lines, at[which] if len(distinct) else np.empty(0, np.int64)


def _title(names: Mapping[int, tuple[str, str, str]], number: int) -> str | None:
    """Return the name of a line; None if the name is lost or is the name of a phase."""
    name = names.get(number)
    return None if name is None or name[2] in PHASES else OWN_SPAN + name[2]


def fill(lane: LaneSpans, rows: StepWindows, final: Bytes, start: int, end: int) -> Ints:
    """Return nanoseconds by line of the ledger and column, for all of the time from ``start`` to ``end``.

    ``final`` is the table of lines by place and code that ``final_phases`` returns.
    """
    cells = np.zeros((int(final.max()) + 1, len(rows.steps)), np.int64)
    adder = _CellAdder(cells, rows, final, end)
    first = int(lane.starts[0]) if len(lane.starts) else end
    nothing = np.array([NOTHING], np.uint8)
    adder.add_cut(nothing, np.array([start]), np.array([first]))
    for low, high, lists in split_by_owner(lane.starts, lane.ends, end):
        adder.add_chunk(lane, low, high, lists)
    return cells


class _CellAdder:
    """Adds pieces of time to their cells."""

    def __init__(self, cells: Ints, rows: StepWindows, final: Bytes, end: int) -> None:
        self._cells = cells
        self._final = final.ravel()
        self._begins = rows.begins
        self._rows = rows.rows
        # Offset of each place in the flat table of phases.
        self._lines = rows.places * np.uint16(final.shape[1])
        self._beyond = np.append(rows.begins, end)

    def add_chunk(self, lane: LaneSpans, low: int, high: int, lists: list[Pieces]) -> None:
        """Add the time of the spans from ``low`` to ``high``, and of the spans around them in between."""
        at = last_begun(self._begins, lane.starts[low:high])
        rows, lines, beyond = self._rows[at], self._lines[at], self._beyond[at + 1]
        first, width = int(rows[0]), int(rows[-1] - rows[0]) + 1
        rows -= first
        keys, amounts = [], []
        for number, (row, owner, start, end) in enumerate(lists):
            if number:
                local: Any = row - low
                codes = np.where(owner < 0, np.uint8(NOTHING), lane.codes[owner] & CODE_MASK)
            else:
                # The first list has each span itself, in order: nothing to look up.
                local, codes = slice(None), lane.codes[low:high] & CODE_MASK
            reaches = end > beyond[local]
            if reaches.any():
                far = np.flatnonzero(reaches)
                self.add_cut(codes[far], start[far], end[far])
                end = np.where(reaches, start, end)
            phases = self._final.take(lines[local] + codes)
            keys.append(phases * np.intp(width) + rows[local])
            amounts.append(end - start)
        self._count(np.concatenate(keys), np.concatenate(amounts), first, width)

    def add_cut(self, codes: Bytes, starts: Ints, ends: Ints) -> None:
        """Add pieces of spans with these codes, cut at the borders of windows."""
        source, low, high = split(starts, ends, self._begins)
        at = np.searchsorted(self._begins, low, side="right") - 1
        rows = self._rows[at]
        first, width = int(rows.min()), int(rows.max() - rows.min()) + 1
        phases = self._final.take(self._lines[at] + codes[source])
        self._count(phases * np.intp(width) + rows - first, high - low, first, width)

    def _count(self, keys: NDArray[np.intp], amounts: Ints, first: int, width: int) -> None:
        added = sums(keys, amounts, len(self._cells) * width)
        added = added.reshape(len(self._cells), width)
        # Memory of rows that stay zero is never touched.
        for phase in np.flatnonzero(added.any(axis=1)).tolist():
            self._cells[phase, first : first + width] += added[phase]
