"""Accounts: of each rank and attempt, how long it was in which phase in which step. Reads the spans once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell.analysis.time import intervals
from stepwell.analysis.time.background import Background, background_of
from stepwell.analysis.time.intervals import Ints, Set
from stepwell.analysis.time.lanes import FOREVER, Lane, LaneReader
from stepwell.analysis.time.own_spans import own_spans
from stepwell.analysis.time.ownership import Pieces, owned
from stepwell.analysis.time.periods import (
    Changes,
    Iterations,
    Stretches,
    find_iterations,
    stretches,
)
from stepwell.analysis.time.words import CODE_MASK, NOTHING, PHASES, Bytes, final_phases
from stepwell.journal import clock
from stepwell.journal.liveness import status_of
from stepwell.reading import RecordedRun
from stepwell.reading.tables import ProcessTables

NO_SPANS = Lane(
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
        end_ns: when it ended; now, while it runs; its last sign of life, if it was killed.
        iterations: its training iterations, None where nothing tells of any.
        steps: the step of each row of ``cells``, -1 for none; the first row is what was before the first
            step, the last one what was after the last.
        epochs: likewise the epoch.
        own: names of the user's own spans that have a row in ``cells``.
        cells: nanoseconds, a row for each phase (as in ``PHASES``) and each of ``own``, and a column for each
            row above.
        background: what other threads and workers did meanwhile.
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
        # Most phases never come up, and steps and epochs of iterations are those of the rows: neither
        # need travel.
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
        """Whether the next step would still be to come: how long its last one takes is not known then."""
        return self.status != "finished" and self.iterations is not None

    @property
    def phases(self) -> tuple[str, ...]:
        """The names of the rows of ``cells``."""
        return (*PHASES, *self.own)

    @property
    def wall_ns(self) -> int:
        """How long it lasted in all: what ``cells`` sum to, to the nanosecond."""
        return self.end_ns - self.start_ns

    @property
    def first_ns(self) -> int | None:
        """When the first iteration began."""
        return None if self.iterations is None else int(self.iterations.starts[0])

    @property
    def last_ns(self) -> int | None:
        """When the last iteration ended."""
        return None if self.iterations is None else int(self.iterations.ends[-1])


@dataclass
class Accounts:
    """The time of a run: a part for each rank and attempt."""

    parts: list[RankTime]


def account(run: RecordedRun | Accounts, rank: int | None = None) -> Accounts:
    """Read the spans of a run and give each instant of each rank to one phase.

    What this returns can be given to ``ledger``, ``steps`` and ``background`` in the place of the run, so
    that it is read once.
    """
    if isinstance(run, Accounts):
        return run
    return make_accounts(account_group(group) for group in _groups(run, rank))


def make_accounts(parts: Iterable[RankTime]) -> Accounts:
    """The accounts that consist of these parts."""
    return Accounts(sorted(parts, key=lambda part: (part.rank, part.attempt, part.start_ns)))


def _groups(run: RecordedRun, rank: int | None) -> Iterator[list[ProcessTables]]:
    """The main process of each rank and attempt, with what helped it."""
    expected = Counter((d["rank"], d["attempt"]) for d in run.documents())
    yield from group_processes(run.by_process(rank), expected)


def group_processes(
    processes: Iterable[ProcessTables], expected: Mapping[tuple[int, int], int]
) -> Iterator[list[ProcessTables]]:
    """The processes of each rank and attempt, the main one first; so many are expected of each."""
    waiting: dict[tuple[int, int], list[ProcessTables]] = {}
    for tables in processes:
        about = tables.process.about
        key = about["rank"], about["attempt"]
        waiting.setdefault(key, []).append(tables)
        if len(waiting[key]) == expected.get(key):
            yield _main_first(waiting.pop(key))
    # Processes that came or went meanwhile.
    yield from map(_main_first, waiting.values())


def _main_first(group: list[ProcessTables]) -> list[ProcessTables]:
    """Of several, as other tools leave them, the one that began first is the rank's own."""
    abouts = [tables.process.about for tables in group]
    keys = [(about["role"] == "worker", about["started"] or 0) for about in abouts]
    return [group[i] for i in sorted(range(len(group)), key=keys.__getitem__)]


class Threads:
    """What the threads of one process did, read once for all who want to know."""

    def __init__(self, tables: ProcessTables) -> None:
        reader = LaneReader(tables)
        self.tables = tables
        self.lanes = reader.read()
        self.pauses = reader.pauses
        self.loops = reader.loops
        self.main = max(self.lanes, key=lambda lane: lane.rank_as_trainer, default=NO_SPANS)
        """The thread that trains."""


def account_group(group: list[ProcessTables]) -> RankTime:
    """The time of one rank in one attempt: of its main process, which comes first, and its helpers."""
    return account_threads(Threads(group[0]), group[1:], Liveness.now(group[0].process.about))


@dataclass(frozen=True)
class Liveness:
    """How a process is, and as of when."""

    status: str
    now_ns: int

    @classmethod
    def now(cls, about: dict[str, Any]) -> Liveness:
        """How it is at this moment, as seen from here."""
        return cls(status_of(about), clock.wall())


def account_threads(threads: Threads, helpers: list[ProcessTables], alive: Liveness) -> RankTime:
    """The time of the process with these threads."""
    about = threads.tables.process.about
    changes = _changes(threads.tables)
    start, end = _wall(about, alive, threads.lanes, changes)
    lanes = [_until(lane, end) for lane in threads.lanes]
    ours = [lane is threads.main for lane in threads.lanes]
    main = lanes[ours.index(True)] if lanes else threads.main
    pauses = intervals.clip(_joined(threads.pauses), start, end)
    iterations = find_iterations(main, changes, start, end)
    rows = stretches(main, iterations, changes, start, end)
    own = own_spans(main, iterations, threads.tables.process.names)
    cut = rows.overlaid(own.spans, own.places).overlaid(pauses)
    others = [lane for lane in lanes if lane is not main]
    return RankTime(
        rank=about["rank"],
        attempt=about["attempt"],
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


def _until(lane: Lane, end: int) -> Lane:
    """The lane with no span after the end; a copy, as where an open one ends is for others to say."""
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
    about: dict[str, Any], alive: Liveness, lanes: list[Lane], changes: Changes
) -> tuple[int, int]:
    """From when to when the process recorded, as far as anything tells."""
    firsts = [int(lane.starts[0]) for lane in lanes]
    lasts = [int(lane.starts[-1]) for lane in lanes]
    lasts += [int(lane.ends.max(where=lane.ends < FOREVER, initial=0)) for lane in lanes]
    if len(changes.times):
        firsts.append(int(changes.times[0]))
        lasts.append(int(changes.times[-1]))
    now = alive.now_ns if alive.status == "running" else None
    signs = [about["started"], about["heartbeat"], now]
    known_signs = [sign for sign in signs if sign is not None]
    start = min([*known_signs[:1], *firsts], default=0)
    return start, max([start, *known_signs, *lasts])


def fill(lane: Lane, rows: Stretches, final: Bytes, start: int, end: int) -> Ints:
    """Nanoseconds by line of the ledger and row, for all of the time from ``start`` to ``end``.

    ``final`` has the line for each place and code, as ``final_phases`` gives it.
    """
    cells = np.zeros((int(final.max()) + 1, len(rows.steps)), np.int64)
    filling = _Filling(cells, rows, final, end)
    first = int(lane.starts[0]) if len(lane.starts) else end
    nothing = np.array([NOTHING], np.uint8)
    filling.add_cut(nothing, np.array([start]), np.array([first]))
    for low, high, lists in owned(lane.starts, lane.ends, end):
        filling.add_chunk(lane, low, high, lists)
    return cells


class _Filling:
    """Adds pieces of time to the cells that they belong in."""

    def __init__(self, cells: Ints, rows: Stretches, final: Bytes, end: int) -> None:
        self._cells = cells
        self._final = final.ravel()
        self._begins = rows.begins
        self._rows = rows.rows
        # Where the line of a place begins in the table of phases.
        self._lines = rows.places * np.uint16(final.shape[1])
        self._beyond = np.append(rows.begins, end)

    def add_chunk(self, lane: Lane, low: int, high: int, lists: list[Pieces]) -> None:
        """Add what the spans from ``low`` to ``high`` own, and what those around them do in between."""
        at = _stretch_of(self._begins, lane.starts[low:high])
        rows, lines, beyond = self._rows[at], self._lines[at], self._beyond[at + 1]
        first, width = int(rows[0]), int(rows[-1] - rows[0]) + 1
        rows -= first
        keys, amounts = [], []
        for number, (row, owner, start, end) in enumerate(lists):
            if number:
                local: Any = row - low
                codes = np.where(owner < 0, np.uint8(NOTHING), lane.codes[owner] & CODE_MASK)
            else:
                # Each span itself, in order: nothing to look up.
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
        """Add pieces of spans with these codes, cut where a stretch ends and another begins."""
        source, low, high = intervals.split(starts, ends, self._begins)
        at = np.searchsorted(self._begins, low, side="right") - 1
        rows = self._rows[at]
        first, width = int(rows.min()), int(rows.max() - rows.min()) + 1
        phases = self._final.take(self._lines[at] + codes[source])
        self._count(phases * np.intp(width) + rows - first, high - low, first, width)

    def _count(self, keys: NDArray[np.intp], amounts: Ints, first: int, width: int) -> None:
        found = intervals.sums(keys, amounts, len(self._cells) * width)
        found = found.reshape(len(self._cells), width)
        # Rows that nothing is added to take no memory.
        for phase in np.flatnonzero(found.any(axis=1)).tolist():
            self._cells[phase, first : first + width] += found[phase]


def _stretch_of(begins: Ints, starts: Ints) -> NDArray[np.intp]:
    """The stretch that each of these sorted instants lies in."""
    first = int(np.searchsorted(begins, starts[0], side="right")) - 1
    last = int(np.searchsorted(begins, starts[-1], side="right")) - 1
    changes = np.searchsorted(starts, begins[first + 1 : last + 1])
    return first + np.cumsum(np.bincount(changes, minlength=len(starts)))[: len(starts)]
