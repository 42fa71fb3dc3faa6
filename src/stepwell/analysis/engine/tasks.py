"""Tasks: the processes of one rank and attempt, and reading all that a report needs of them in one pass."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from stepwell._core import clock
from stepwell._core.errors import StepwellError
from stepwell.analysis.ranks.history import SpanHistory, read_history
from stepwell.analysis.ranks.stacks import Stack, seen_status, stacks_of
from stepwell.analysis.recording_cost import count_spans
from stepwell.analysis.throughput import (
    UPDATE_COLUMNS,
    Joules,
    Update,
    joules_of,
    latest_update,
)
from stepwell.analysis.timeline.lanes import Loop
from stepwell.analysis.timeline.timeline import (
    Threads,
    Timeline,
    group_processes,
    make_timeline,
)
from stepwell.analysis.timeline.wall import Liveness
from stepwell.journal.document import status_of
from stepwell.reading import RecordedRun
from stepwell.reading.layout import Layout
from stepwell.reading.process import process_folders, read_documents
from stepwell.reading.remote import Mirror
from stepwell.reading.run import Step, joint_status
from stepwell.reading.tables import METRICS, OPEN_SPANS, ProcessTables

WANTED = ("name", "rank", "attempt", "step", "time_ns", "value")
"""The columns of metrics that rules use."""
EMPTY = pl.DataFrame(schema={name: METRICS[name] for name in WANTED})
"""The metrics of a run without any."""


@dataclass(frozen=True)
class Task:
    """The processes of one rank and attempt.

    Attributes:
        run: the folder of the run.
        url: its address on object storage; None for a run on disk.
        folders: names of the process folders to read.
        layout: information about the rest of the run that reading these needs.
        expected: number of processes by rank and attempt.
        alive: status of each process, as seen by the creator of the task: only on the machine of a process
            can it be checked whether it runs.
        is_latest: whether it is of the latest attempt, whose open spans are read.
        is_over: whether the run has finished; if not, the span history and the stacks are read.
        size: approximate bytes in the folders.
    """

    run: Path
    url: str | None
    folders: tuple[str, ...]
    layout: Layout
    expected: dict[tuple[int, int], int]
    alive: dict[str, Liveness]
    is_latest: bool
    is_over: bool
    size: int

    def place(self, name: str) -> Path:
        """Return the path of a process folder. Downloads its files from object storage if necessary."""
        if self.url is None:
            return self.run / name
        mirror = Mirror(self.url)
        mirror.fetch(name)
        return mirror.folder / name


def make_tasks(run: RecordedRun) -> tuple[list[Task], list[dict[str, Any]]]:
    """Return the tasks of a run in the order of its folders, and the documents of its processes."""
    folders = [(folder, read_documents(folder)) for folder in process_folders(run.folder)]
    documents = [document for _, members in folders for document in members]
    layout = Layout.of(run.id, documents)
    latest = max((d["attempt"] for d in documents if d["role"] != "worker"), default=0)
    groups: dict[tuple[int, int], list[tuple[Path, list[dict[str, Any]]]]] = {}
    for folder, members in folders:
        if members:
            key = members[0]["rank"], members[0]["attempt"]
            groups.setdefault(key, []).append((folder, members))
    now = clock.wall()
    is_over = joint_status([d for d in documents if d["role"] != "worker"]) == "finished"
    tasks = []
    for group in groups.values():
        mine = [document for _, members in group for document in members]
        tasks.append(
            Task(
                run.folder,
                None if run.mirror is None else run.mirror.url,
                tuple(folder.name for folder, _ in group),
                layout.only(mine),
                dict(Counter((d["rank"], d["attempt"]) for d in mine)),
                {d["process"]: Liveness(status_of(d), now) for d in mine},
                any(d["attempt"] == latest for d in mine),
                is_over,
                sum(_size(folder) for folder, _ in group),
            )
        )
    return tasks, documents


def _size(folder: Path) -> int:
    with os.scandir(folder) as entries:
        return sum(e.stat(follow_symlinks=False).st_size for e in entries)


@dataclass
class ProcessNote:
    """Facts about one process."""

    document: dict[str, Any]
    latest: Step
    spans: int
    joules: Joules
    update: Update | None


@dataclass
class TaskResult:
    """The result of one task. Its size depends on the number of steps and metrics, not of spans."""

    folders: list[list[ProcessNote]] = field(default_factory=list)
    """Notes by process folder, the main process first."""
    timelines: list[Timeline] = field(default_factory=list)
    metrics: list[pl.DataFrame] = field(default_factory=list)
    open_spans: list[pl.DataFrame] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)
    history: list[SpanHistory] = field(default_factory=list)
    stacks: list[Stack] = field(default_factory=list)


def read_task(task: Task) -> TaskResult:
    """Read the processes of a task. Raise StepwellError if the run folder cannot be read here."""
    if task.url is None and not task.run.is_dir():
        raise StepwellError(
            f"{str(task.run)!r} does not exist on {socket.gethostname()}. Put the run where all workers "
            "can read it: on a shared file system or on object storage."
        )
    result = TaskResult()
    for main, *helpers in group_processes(_noted(task, result), task.expected):
        alive = task.alive.get(main.process.name) or Liveness.now(main.process.document)
        threads = Threads(main)
        result.loops += threads.loops.values()
        result.timelines.append(make_timeline(threads, helpers, alive))
    result.metrics = [pl.concat(result.metrics)] if result.metrics else []
    return result


def _noted(task: Task, result: TaskResult) -> Iterator[ProcessTables]:
    """Yield the processes one by one, and add everything but their spans to the result."""
    for name in task.folders:
        notes: list[ProcessNote] = []
        result.folders.append(notes)
        for tables in task.layout.read(task.place(name)):
            metrics = list(tables.metrics(set(WANTED)))
            result.metrics += [frame for frame in metrics if frame.height]
            if task.is_latest:
                opened = tables.spans(set(OPEN_SPANS), only_open=True)
                result.open_spans += [frame for frame in opened if frame.height]
            notes.append(
                ProcessNote(
                    tables.process.document,
                    tables.context.latest(),
                    count_spans(tables),
                    joules_of(tables, metrics),
                    latest_update(tables.events(set(UPDATE_COLUMNS))),
                )
            )
            if not task.is_over:
                _add_unfinished(task, result, tables)
            yield tables


def _add_unfinished(task: Task, result: TaskResult, tables: ProcessTables) -> None:
    """Add what is needed of a run that is running or did not finish."""
    result.history.append(read_history(tables))
    if task.is_latest:
        document = tables.process.document
        statuses = {name: alive.status for name, alive in task.alive.items()}
        now = max(alive.now_ns for alive in task.alive.values())
        result.stacks += stacks_of(tables, seen_status(document, statuses), now)
