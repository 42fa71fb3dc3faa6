"""Doing a task: everything that a report needs of some processes, in one pass over their records."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from stepwell.analysis.engine.task import Task
from stepwell.analysis.goodput.rates import Joules, joules_of
from stepwell.analysis.ranks.grid import GridRow, make_row
from stepwell.analysis.ranks.habits import Habits, habits_of
from stepwell.analysis.ranks.stacks import Stack, seen_status, stacks_of
from stepwell.analysis.ranks.stretches import read_stretches, stretches_of
from stepwell.analysis.recording_cost import count_spans
from stepwell.analysis.throughput import UPDATE_COLUMNS, Update, latest_update
from stepwell.analysis.time.account import (
    Liveness,
    RankTime,
    Threads,
    account_threads,
    group_processes,
)
from stepwell.analysis.time.lanes import Loop
from stepwell.journal.errors import StepwellError
from stepwell.reading.run import Step
from stepwell.reading.tables import METRICS, OPEN_SPANS, ProcessTables

WANTED = ("name", "rank", "attempt", "step", "time_ns", "value")
"""The columns of metrics that rules look at."""
LARGE = 1_000_000
"""Spans from which on a second thread is worth its while."""


@dataclass
class ProcessNote:
    """What is to be known of one process."""

    about: dict[str, Any]
    latest: Step
    spans: int
    joules: Joules
    update: Update | None


@dataclass
class Part:
    """What one task found. Its size goes with the steps and with what was logged, not with the spans."""

    folders: list[list[ProcessNote]] = field(default_factory=list)
    """By folder, the main process first."""
    times: list[RankTime] = field(default_factory=list)
    rows: list[GridRow] = field(default_factory=list)
    metrics: list[pl.DataFrame] = field(default_factory=list)
    open_spans: list[pl.DataFrame] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)
    habits: list[Habits] = field(default_factory=list)
    stacks: list[Stack] = field(default_factory=list)


def do(task: Task) -> Part:
    """Read the processes of a task."""
    if task.url is None and not task.run.is_dir():
        raise StepwellError(
            f"{str(task.run)!r} is not to be seen from {socket.gethostname()}: put the run where all "
            "workers can read it, on a shared file system or on object storage"
        )
    part = Part()
    for group in group_processes(_noted(task, part), task.expected):
        main = group[0]
        alive = task.alive.get(main.process.name) or Liveness.now(main.process.about)
        _add_times(part, group, alive)
    part.metrics = [pl.concat(part.metrics)] if part.metrics else []
    return part


def _noted(task: Task, part: Part) -> Iterator[ProcessTables]:
    """The processes one by one, with all but their spans noted."""
    for name in task.folders:
        notes: list[ProcessNote] = []
        part.folders.append(notes)
        for tables in task.layout.read(task.place(name)):
            metrics = list(tables.metrics(set(WANTED)))
            part.metrics += [frame for frame in metrics if frame.height]
            if task.is_latest:
                opened = tables.spans(set(OPEN_SPANS), only_open=True)
                part.open_spans += [frame for frame in opened if frame.height]
            notes.append(
                ProcessNote(
                    tables.process.about,
                    tables.context.latest(),
                    count_spans(tables),
                    joules_of(tables, metrics),
                    latest_update(tables.events(set(UPDATE_COLUMNS))),
                )
            )
            if not task.is_over:
                _add_unfinished(task, part, tables)
            yield tables


def _add_unfinished(task: Task, part: Part, tables: ProcessTables) -> None:
    """What is asked of a run that goes on, or did not come to its end."""
    part.habits.append(habits_of(tables))
    if task.is_latest:
        about = tables.process.about
        statuses = {name: alive.status for name, alive in task.alive.items()}
        now = max(alive.now_ns for alive in task.alive.values())
        part.stacks += stacks_of(tables, seen_status(about, statuses), now)


def _add_times(part: Part, group: list[ProcessTables], alive: Liveness) -> None:
    threads, helpers = Threads(group[0]), group[1:]
    is_worker = group[0].process.about["role"] == "worker"
    part.loops += threads.loops.values()
    with ThreadPoolExecutor(1) as other:
        # Both take about as long, and neither needs the other.
        is_large = len(threads.main.starts) >= LARGE
        pending = other.submit(_row, threads) if is_large and not is_worker else None
        part.times.append(account_threads(threads, helpers, alive))
        rows = [] if is_worker else [pending.result() if pending else _row(threads)]
    for helper in helpers:
        if helper.process.about["role"] != "worker":
            found = read_stretches(helper)
            rows.append(None if found is None else make_row(found))
    part.rows += [row for row in rows if row is not None]


def _row(threads: Threads) -> GridRow | None:
    if not threads.lanes:
        return None
    return make_row(stretches_of(threads.tables, threads.main))


EMPTY = pl.DataFrame(schema={name: METRICS[name] for name in WANTED})
"""The metrics of a run that logged none."""
