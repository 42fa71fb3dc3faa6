"""Accounts: for each rank and attempt, the time in each phase of each step. Reads the spans once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell._core import clock
from stepwell.analysis.time import intervals
from stepwell.analysis.time.background import Background, background_of
from stepwell.analysis.time.intervals import Ints, Pieces, Set, split_by_owner
from stepwell.analysis.time.iterations import (
    Changes,
    Iterations,
    StepWindows,
    find_iterations,
    make_windows,
)
from stepwell.analysis.time.lanes import FOREVER, LaneReader, LaneSpans
from stepwell.analysis.time.own_spans import own_spans
from stepwell.analysis.time.phases import CODE_MASK, NOTHING, PHASES, Bytes, final_phases
from stepwell.journal.document import status_of
from stepwell.reading import RecordedRun
from stepwell.reading.tables import ProcessTables

NO_SPANS = LaneSpans(
    "",
    True,
    np.empty(0, np.int64),
    np.empty(0, np.int64),
    np.empty(0, np.uint8),
    np.empty((3, 0), np.int64),
)


@dataclass
class RankTime:
    """The time of one rank in one attempt.

    Attributes:
        start_ns: when the process began to record.
        end_ns: when it ended; now, if it is running; its last sign of life, if it was killed.
        iterations: its training iterations; None if none were recorded.
        steps: the step of each column of ``cells``, -1 for none. The first column is the time before the
            first step, the last column the time after the last step.
        epochs: the epoch of each column, -1 for none.
        own: names of the user's own spans that have a row in ``cells``.
        cells: nanoseconds. One row for each phase (in the order of ``PHASES``), then one for each of ``own``;
            one column for each entry of ``steps``.
        background: work of other threads and of worker processes in the meantime.
    """

    rank: int
    attempt: int
    process: str
    status: str
    start_ns: int
    end_ns: int
    iterations: Iterations | None
    steps: Ints
    epochs: Ints
    own: tuple[str, ...]
    cells: Ints
    background: list[Background] = field(default_factory=list)

    def __getstate__(self) -> dict[str, Any]:
        # Most phases are never used, and the iterations share their steps and epochs with the columns:
        # neither needs to be sent.
        used = np.flatnonzero(self.cells.any(axis=1)).tolist()
        cells = self.cells.shape, used, self.cells[used]
        bare = None if self.iterations is None else self.iterations.without_steps()
        return {**self.__dict__, "cells": cells, "iterations": bare}

    def __setstate__(self, state: dict[str, Any]) -> None:
        shape, used, cells = state["cells"]
        self.__dict__.update(state, cells=np.zeros(shape, np.int64))
        self.cells[used] = cells
        if self.iterations is not None:
            self.iterations = self.iterations.within(self.steps, self.epochs)

    @property
    def ends_under_way(self) -> bool:
        """Whether training had not finished at the end: how long its last step takes is not known then."""
        return self.status != "finished" and self.iterations is not None

    @property
    def phases(self) -> tuple[str, ...]:
        """Names of the rows of ``cells``."""
        return (*PHASES, *self.own)

    @property
    def wall_ns(self) -> int:
        """Wall time: exactly the sum of ``cells``."""
        return self.end_ns - self.start_ns

    @property
    def first_ns(self) -> int | None:
        """Start of the first iteration."""
        return None if self.iterations is None else int(self.iterations.starts[0])

    @property
    def last_ns(self) -> int | None:
        """End of the last iteration."""
        return None if self.iterations is None else int(self.iterations.ends[-1])


@dataclass
class Accounts:
    """The time of a run: one part for each rank and attempt."""

    parts: list[RankTime]


def account(run: RecordedRun | Accounts, rank: int | None = None) -> Accounts:
    """Read the spans of a run and assign each instant of each rank to one phase.

    Pass the result to ``ledger``, ``steps`` and ``background`` instead of the run to read it only once.
    """
    if isinstance(run, Accounts):
        return run
    return make_accounts(account_group(group) for group in _groups(run, rank))


def make_accounts(parts: Iterable[RankTime]) -> Accounts:
    """Return accounts of these parts, sorted by rank and attempt."""
    return Accounts(sorted(parts, key=lambda part: (part.rank, part.attempt, part.start_ns)))


def _groups(run: RecordedRun, rank: int | None) -> Iterator[list[ProcessTables]]:
    expected = Counter((d["rank"], d["attempt"]) for d in run.documents())
    yield from group_processes(run.by_process(rank), expected)


def group_processes(
    processes: Iterable[ProcessTables], expected: Mapping[tuple[int, int], int]
) -> Iterator[list[ProcessTables]]:
    """Yield the processes of each rank and attempt, the main process first.

    ``expected`` is the number of processes by rank and attempt: a group is yielded as soon as it is complete.
    """
    waiting: dict[tuple[int, int], list[ProcessTables]] = {}
    for tables in processes:
        document = tables.process.about
        key = document["rank"], document["attempt"]
        waiting.setdefault(key, []).append(tables)
        if len(waiting[key]) == expected.get(key):
            yield _main_first(waiting.pop(key))
    # Groups that lost or gained a process in the meantime.
    yield from map(_main_first, waiting.values())


def _main_first(group: list[ProcessTables]) -> list[ProcessTables]:
    """Sort the main process first: of several, as in imported runs, the one that started first."""
    documents = [tables.process.about for tables in group]
    keys = [(document["role"] == "worker", document["started"] or 0) for document in documents]
    return [group[i] for i in sorted(range(len(group)), key=keys.__getitem__)]


class Threads:
    """The spans of the threads of one process, read once."""

    def __init__(self, tables: ProcessTables) -> None:
        reader = LaneReader(tables)
        self.tables = tables
        self.lanes = reader.read()
        self.pauses = reader.pauses
        self.loops = reader.loops
        self.main = max(self.lanes, key=lambda lane: lane.rank_as_trainer, default=NO_SPANS)
        """The training thread."""


def account_group(group: list[ProcessTables]) -> RankTime:
    """Return the time of one rank in one attempt, from its main process (the first) and its helpers."""
    return account_threads(Threads(group[0]), group[1:], Liveness.now(group[0].process.about))


@dataclass(frozen=True)
class Liveness:
    """The status of a process at a given time."""

    status: str
    now_ns: int

    @classmethod
    def now(cls, document: dict[str, Any]) -> Liveness:
        """Return the current status, as seen from this machine."""
        return cls(status_of(document), clock.wall())


def account_threads(threads: Threads, helpers: list[ProcessTables], alive: Liveness) -> RankTime:
    """Return the time of the process with these threads."""
    document = threads.tables.process.about
    changes = _changes(threads.tables)
    start, end = _wall(document, alive, threads.lanes, changes)
    lanes = [_until(lane, end) for lane in threads.lanes]
    ours = [lane is threads.main for lane in threads.lanes]
    main = lanes[ours.index(True)] if lanes else threads.main
    pauses = intervals.clip(_joined(threads.pauses), start, end)
    iterations = find_iterations(main, changes, start, end)
    rows = make_windows(main, iterations, changes, start, end)
    own = own_spans(main, iterations, threads.tables.process.names)
    cut = rows.overlaid(own.spans, own.places).overlaid(pauses)
    others = [lane for lane in lanes if lane is not main]
    return RankTime(
        rank=document["rank"],
        attempt=document["attempt"],
        process=threads.tables.process.name,
        status=alive.status,
        start_ns=start,
        end_ns=end,
        iterations=None if iterations is None else iterations.within(rows.steps, rows.epochs),
        steps=rows.steps,
        epochs=rows.epochs,
        own=own.names,
        cells=fill(main, cut, final_phases(len(own.names), own.iteration), start, end),
        background=background_of(main, others, helpers, (start, end)),
    )


def _until(lane: LaneSpans, end: int) -> LaneSpans:
    """Cut spans off at the end of the wall time. Copies: other readers need to know which spans are open."""
    if not len(lane.ends) or int(lane.ends.max()) <= end:
        return lane
    return replace(lane, ends=np.minimum(lane.ends, end))


def _joined(pauses: list[tuple[Ints, Ints]]) -> Set:
    if not pauses:
        return intervals.EMPTY
    starts, ends = zip(*pauses, strict=True)
    return intervals.union(np.concatenate(starts), np.concatenate(ends))


def _changes(tables: ProcessTables) -> Changes:
    times, steps, epochs = tables.context.changes()
    return Changes(times + tables.offset, steps, epochs)


def _wall(
    document: dict[str, Any], alive: Liveness, lanes: list[LaneSpans], changes: Changes
) -> tuple[int, int]:
    """Return the first and the last sign of life of a process."""
    firsts = [int(lane.starts[0]) for lane in lanes]
    lasts = [int(lane.starts[-1]) for lane in lanes]
    lasts += [int(lane.ends.max(where=lane.ends < FOREVER, initial=0)) for lane in lanes]
    if len(changes.times):
        firsts.append(int(changes.times[0]))
        lasts.append(int(changes.times[-1]))
    now = alive.now_ns if alive.status == "running" else None
    signs = [document["started"], document["heartbeat"], now]
    times = [sign for sign in signs if sign is not None]
    start = min([*times[:1], *firsts], default=0)
    return start, max([start, *times, *lasts])


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
        at = _window_of(self._begins, lane.starts[low:high])
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
        source, low, high = intervals.split(starts, ends, self._begins)
        at = np.searchsorted(self._begins, low, side="right") - 1
        rows = self._rows[at]
        first, width = int(rows.min()), int(rows.max() - rows.min()) + 1
        phases = self._final.take(self._lines[at] + codes[source])
        self._count(phases * np.intp(width) + rows - first, high - low, first, width)

    def _count(self, keys: NDArray[np.intp], amounts: Ints, first: int, width: int) -> None:
        added = intervals.sums(keys, amounts, len(self._cells) * width)
        added = added.reshape(len(self._cells), width)
        # Memory of rows that stay zero is never touched.
        for phase in np.flatnonzero(added.any(axis=1)).tolist():
            self._cells[phase, first : first + width] += added[phase]


def _window_of(begins: Ints, starts: Ints) -> NDArray[np.intp]:
    """Return the window that each of these sorted instants lies in."""
    first = int(np.searchsorted(begins, starts[0], side="right")) - 1
    last = int(np.searchsorted(begins, starts[-1], side="right")) - 1
    changes = np.searchsorted(starts, begins[first + 1 : last + 1])
    return first + np.cumsum(np.bincount(changes, minlength=len(starts)))[: len(starts)]
