"""Timelines: for each rank and attempt, which phase and step every instant belongs to.

A timeline is read once from the spans of a process. Everything else about time is a function of it: the
ledger, the table of steps, the grid of ranks, stragglers, goodput, findings. The timelines of several ranks
are a list. Their size depends on the number of steps, not of spans, so workers can send them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from stepwell.analysis.timeline import intervals
from stepwell.analysis.timeline.background import Background, background_of
from stepwell.analysis.timeline.cells import fill, own_spans
from stepwell.analysis.timeline.intervals import Ints, Set
from stepwell.analysis.timeline.iterations import (
    Changes,
    Iterations,
    find_iterations,
    make_windows,
)
from stepwell.analysis.timeline.lanes import FOREVER, LaneReader, LaneSpans
from stepwell.analysis.timeline.phases import IS_PASS, PHASES, final_phases
from stepwell.analysis.timeline.step_phases import StepPhases, sum_up_phases
from stepwell.analysis.timeline.wall import Life, Liveness, life_of
from stepwell.reading import RecordedRun
from stepwell.reading.tables import ProcessTables

BY_EXCEPTION = ("failed", "interrupted")

NO_SPANS = LaneSpans(
    "",
    True,
    np.empty(0, np.int64),
    np.empty(0, np.int64),
    np.empty(0, np.uint8),
    np.empty((3, 0), np.int64),
)


@dataclass
class Timeline:
    """One rank in one attempt.

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
        phases_by_step: when each phase began in each step; None if no span has a phase, or if the engine has
            dropped it to save memory.
        leaves_step: whether its last step is incomplete: in progress, or ended by an exception or a kill.
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
    phases_by_step: StepPhases | None = None
    leaves_step: bool = False

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
    def last_step(self) -> int | None:
        """The last step that was begun; None without steps."""
        return None if self.iterations is None else int(self.iterations.steps[-1])

    def has_completed(self, step: int) -> bool:
        """Return whether a step was completed. Each step before the last one is."""
        if self.iterations is None or self.last_step == step:
            return self.last_step == step and not self.leaves_step
        return bool((self.iterations.steps == step).any())

    @property
    def phases(self) -> tuple[str, ...]:
        """Names of the rows of ``cells``."""
        return (*PHASES, *self.own)

    @property
    def life(self) -> Life:
        """Its first and its last sign of life."""
        return self.start_ns, self.end_ns

    @property
    def wall_ns(self) -> int:
        """Wall time: exactly the sum of ``cells``."""
        return self.end_ns - self.start_ns


Timelines: TypeAlias = RecordedRun | Sequence[Timeline]
"""A run, or its timelines if they have been read already."""


def timelines(run: Timelines, rank: int | None = None) -> Sequence[Timeline]:
    """Read the spans of a run and assign each instant of each rank to one phase.

    Pass the result to ``ledger``, ``steps`` and the other functions instead of the run to read it only once.
    """
    if not isinstance(run, RecordedRun):
        return run
    expected = Counter((d["rank"], d["attempt"]) for d in run.documents())
    groups = group_processes(run.by_process(rank), expected)
    return sort_timelines(
        make_timeline(Threads(main), helpers, Liveness.now(main.process.document))
        for main, *helpers in groups
    )


def sort_timelines(unsorted: Iterable[Timeline]) -> list[Timeline]:
    """Sort timelines by rank and attempt."""
    return sorted(unsorted, key=lambda each: (each.rank, each.attempt, each.start_ns))


IncompleteSteps: TypeAlias = dict[int, set[int]]
"""Steps that were begun but that no rank completed, by attempt."""


def incomplete_steps(parts: Sequence[Timeline]) -> IncompleteSteps:
    """Return the steps at the end of attempts that no rank completed."""
    incomplete: IncompleteSteps = defaultdict(set)
    for part in parts:
        if part.leaves_step and part.last_step is not None:
            incomplete[part.attempt].add(part.last_step)
    for part in parts:
        steps = incomplete.get(part.attempt, set())
        steps -= {step for step in steps if part.has_completed(step)}
    return {attempt: steps for attempt, steps in incomplete.items() if steps}


def group_processes(
    processes: Iterable[ProcessTables], expected: Mapping[tuple[int, int], int]
) -> Iterator[list[ProcessTables]]:
    """Yield the processes of each rank and attempt, the main process first.

    ``expected`` is the number of processes by rank and attempt: a group is yielded as soon as it is complete.
    """
    waiting: dict[tuple[int, int], list[ProcessTables]] = {}
    for tables in processes:
        document = tables.process.document
        key = document["rank"], document["attempt"]
        waiting.setdefault(key, []).append(tables)
        if len(waiting[key]) == expected.get(key):
            yield _main_first(waiting.pop(key))
    # Groups that lost or gained a process in the meantime.
    yield from map(_main_first, waiting.values())


def _main_first(group: list[ProcessTables]) -> list[ProcessTables]:
    """Sort the main process first: of several, as in imported runs, the one that started first."""
    documents = [tables.process.document for tables in group]
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
        self.left_ns = reader.left_ns
        self.main = max(self.lanes, key=lambda lane: lane.rank_as_trainer, default=NO_SPANS)
        """The training thread."""


def make_timeline(threads: Threads, helpers: Sequence[ProcessTables], alive: Liveness) -> Timeline:
    """Return the timeline of the process with these threads. Its helpers work in the background."""
    document = threads.tables.process.document
    changes = _changes(threads.tables)
    start, end = life_of(threads.tables, alive, _times(threads.lanes, changes))
    lanes = [_until(lane, end) for lane in threads.lanes]
    ours = [lane is threads.main for lane in threads.lanes]
    main = lanes[ours.index(True)] if lanes else threads.main
    iterations = find_iterations(main, changes, start, end)
    windows = make_windows(main, iterations, changes, start, end)
    own = own_spans(main, iterations, threads.tables.process.names)
    pauses = intervals.clip(_joined(threads.pauses), start, end)
    cut = windows.overlaid(own.spans, own.places).overlaid(pauses)
    others = [lane for lane in lanes if lane is not main]
    cells = fill(main, cut, final_phases(len(own.names), own.iteration), start, end)
    is_worker = document["role"] == "worker"
    phases = None if is_worker else sum_up_phases(threads.main, iterations)
    return Timeline(
        rank=document["rank"],
        attempt=document["attempt"],
        process=threads.tables.process.name,
        status=alive.status,
        start_ns=start,
        end_ns=end,
        iterations=None if iterations is None else iterations.within(windows.steps, windows.epochs),
        steps=windows.steps,
        epochs=windows.epochs,
        own=own.names,
        cells=cells,
        background=background_of(main, others, helpers, (start, end)),
        phases_by_step=phases,
        leaves_step=_leaves_step(threads, iterations, phases, alive.status, end),
    )


def _leaves_step(
    threads: Threads,
    iterations: Iterations | None,
    phases: StepPhases | None,
    status: str,
    end: int,
) -> bool:
    """Return whether the last step is incomplete."""
    if iterations is None or status == "finished":
        return False
    reaches_end = int(iterations.ends[-1]) >= end
    # A process that exits on SIGTERM leaves its iteration with an exception, and counts as killed, too.
    if not reaches_end and (status == "running" or not iterations.are_spans):
        return False
    done = None
    if phases is not None and status not in BY_EXCEPTION:
        is_open = (lane.codes[lane.ends == FOREVER] for lane in threads.lanes)
        is_in_pass = any(IS_PASS[codes].any() for codes in is_open)
        done = phases.has_done(int(iterations.steps[-1]), is_in_pass)
    if done is None:
        return (threads.left_ns or 0) >= int(iterations.starts[-1])
    return not done


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


def _times(lanes: list[LaneSpans], changes: Changes) -> Iterator[int]:
    """Yield the first and the last times of the records of a process."""
    for lane in lanes:
        yield from (int(lane.starts[0]), int(lane.starts[-1]))
        yield int(lane.ends.max(where=lane.ends < FOREVER, initial=lane.starts[-1]))
    if len(changes.times):
        yield from (int(changes.times[0]), int(changes.times[-1]))
