"""The position of each span of an attempt in its segments: the same for all ranks, so it is computed once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepwell.analysis.simulate.plan import RunPlan
from stepwell.analysis.simulate.schedule import Attempt, saved_before, setup
from stepwell.journal.format import (
    CARRIED,
    COLUMN_BYTES,
    LINK_WORD,
    METRIC,
    NAME_SHIFT,
    SPAN,
    SPAN_SLOTS,
    span_id,
)
from stepwell.journal.names import NameTable

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

STEP: tuple[tuple[str, str, int], ...] = (
    ("training_single_iteration", "", -1),
    ("data_loading", "", 0),
    ("zero_grad", "", 0),
    ("model_forward", "", 0),
    ("model_backward", "", 0),
    ("all_reduce", "comm", 4),
    ("optimizer_update", "", 0),
)
"""The spans of a step: name, category, and index of the parent; the parent of the first is the loop."""
PAUSE = ("checkpoint_save_sync", "validation_loop")
HOOK = ("gradient hooks", "")
"""The span of a collective that is not recorded as such."""
LOSS = "train/loss"


class Names:
    """The names in use and their numbers."""

    def __init__(self) -> None:
        self._table = NameTable()

    def span(self, name: str, category: str = "") -> int:
        """Return the number of a span's name."""
        return self._table.intern(SPAN, name, category)

    def metric(self, name: str) -> int:
        """Return the number of a metric's name."""
        return self._table.intern(METRIC, name)

    def lines(self) -> bytes:
        """Return the content of the file of names."""
        return self._table.lines()


@dataclass(frozen=True)
class SpanLayout:
    """The spans of the main thread of one attempt, one row each, sorted by start."""

    names: Ints
    parents: Ints
    """Row of the parent, -1 for none."""
    loop: int
    """Row of the training loop; row 0 is the application."""
    steps: Ints
    """Row of the iteration span of each step."""
    pauses: Ints
    """Rows of the checkpoints: before some steps, and at the end."""
    cuts: Ints
    """Rows at which a segment may begin, because only the application and the loop are open."""

    def segments(self) -> Iterator[SegmentLayout]:
        """Yield the segments that contain the rows."""
        first, seq = 0, 0
        earlier: dict[int, int] = {}
        while first < len(self.names):
            carried = sorted(earlier)
            room = SPAN_SLOTS - 1 - 2 * len(carried)
            end = len(self.names)
            if end - first > room:
                end = int(self.cuts[np.searchsorted(self.cuts, first + room, side="right") - 1])
            yield SegmentLayout(self, seq, first, end, dict(earlier))
            for row in (0, self.loop):
                if first <= row < end:
                    earlier[row] = span_id(seq, 1 + 2 * len(carried) + row - first)
            first, seq = end, seq + 1


@dataclass(frozen=True)
class SegmentLayout:
    """Some of the rows, as one segment. ``earlier`` has the rows and ids of spans that continue here."""

    layout: SpanLayout
    seq: int
    first: int
    end: int
    earlier: dict[int, int]

    @property
    def is_last(self) -> bool:
        """Whether it is the last segment."""
        return self.end == len(self.layout.names)

    @property
    def base(self) -> int:
        """The slot of its first row, after two slots for each span that continues here."""
        return 1 + 2 * len(self.earlier)

    def metas(self) -> Words:
        """Return the column of metas."""
        layout, slots = self.layout, {}
        column = np.zeros(SPAN_SLOTS, np.uint64)
        for i, row in enumerate(sorted(self.earlier)):
            slots[row] = 2 + 2 * i
            column[1 + 2 * i] = LINK_WORD | slots[row]
            above = slots.get(int(layout.parents[row]), 0)
            column[slots[row]] = int(layout.names[row]) << NAME_SHIFT | above
        parents = layout.parents[self.first : self.end]
        above_slots = np.where(parents >= self.first, parents - self.first + self.base, 0)
        for row, slot in slots.items():
            above_slots[parents == row] = slot
        names = layout.names[self.first : self.end] << NAME_SHIFT
        column[self.base : self.base + len(parents)] = (names | above_slots).astype(np.uint64)
        return column

    def body(self, metas: bytes, starts: Ints, ends: Ints) -> bytes:
        """Return the columns of one rank, each as long as in a live segment."""
        start, end = np.zeros(SPAN_SLOTS, np.uint64), np.zeros(SPAN_SLOTS, np.uint64)
        for i, (row, identity) in enumerate(sorted(self.earlier.items())):
            start[1 + 2 * i] = identity + 1
            start[2 + 2 * i] = starts[row]
            end[2 + 2 * i] = ends[row] if self.is_last else CARRIED
        place = slice(self.base, self.base + self.end - self.first)
        start[place] = starts[self.first : self.end]
        end[place] = ends[self.first : self.end]
        if not self.is_last:
            for row in (0, self.layout.loop):
                if self.first <= row < self.end:
                    end[self.base + row - self.first] = CARRIED
        body = metas + start.tobytes() + end.tobytes()
        assert len(body) == 3 * COLUMN_BYTES
        return body


def lay_out(plan: RunPlan, attempt: Attempt, names: Names) -> SpanLayout:
    """Return the rows of an attempt."""
    head = ["application", *(name for name, _ in setup(plan, attempt.number)), "training_loop"]
    loop = len(head) - 1
    pause = PAUSE if plan.pace.validation else PAUSE[:1]
    saved = saved_before(plan, attempt.steps.start, attempt.begun)
    at_end = attempt.dies is None and attempt.steps.stop % plan.checkpoint_every == 0
    sizes = len(STEP) + saved * len(pause)
    begins = loop + 1 + np.concatenate([[0], np.cumsum(sizes)])
    steps = begins[:-1] + saved * len(pause)
    pauses = begins[:-1][saved]
    if at_end:
        pauses = np.append(pauses, begins[-1])
    count = int(begins[-1]) + at_end * len(pause)
    name, parent = np.zeros(count, np.int64), np.full(count, loop, np.int64)
    name[: loop + 1] = [names.span(text) for text in head]
    parent[: loop + 1] = [-1, *[0] * loop]
    for i, (text, category, above) in enumerate(STEP):
        if category and not plan.collectives:
            text, category = HOOK
        name[steps + i] = names.span(text, category)
        if above >= 0:
            parent[steps + i] = steps + above
    for i, text in enumerate(pause):
        name[pauses + i] = names.span(text)
    return SpanLayout(name, parent, loop, steps, pauses, begins)
