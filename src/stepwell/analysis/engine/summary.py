"""The summary of a run: the results of all tasks, combined."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import cached_property
from typing import Any

import polars as pl

from stepwell._core.system import trim_malloc
from stepwell.analysis.engine.engines import OFTEN, Engine, LocalEngine
from stepwell.analysis.engine.tasks import EMPTY, WANTED, TaskResult, make_tasks, read_task
from stepwell.analysis.ranks.grid import Grid, make_grids
from stepwell.analysis.ranks.stacks import in_order
from stepwell.analysis.throughput import Joules, Update
from stepwell.analysis.timeline.timeline import sort_timelines
from stepwell.reading import RecordedRun
from stepwell.reading.run import process_rows, process_table, without_overwritten
from stepwell.reading.tables import OPEN_SPANS


class Summary:
    """Everything that rules and the report need of a run's records.

    Attributes:
        run: the run.
        documents: the document of each process, workers included.
        timelines: the time of each rank and attempt.
        loops: training and validation loops of all ranks.
        history: the spans of each process so far, for a run that has not finished.
        stacks: the open spans of every thread of its latest attempt, now or when it died.
    """

    def __init__(
        self, run: RecordedRun, documents: list[dict[str, Any]], parts: list[TaskResult]
    ) -> None:
        self.run = run
        self.documents = documents
        self._notes = [notes for part in parts for notes in part.folders]
        self._metrics = [frame for part in parts for frame in part.metrics]
        self._open = [frame for part in parts for frame in part.open_spans if frame.height]
        self.timelines = sort_timelines(each for part in parts for each in part.timelines)
        self.loops = [loop for part in parts for loop in part.loops]
        self.history = [history for part in parts for history in part.history]
        self.stacks = in_order(stack for part in parts for stack in part.stacks)

    @cached_property
    def processes(self) -> pl.DataFrame:
        """The table of processes."""
        rows = []
        for notes in self._notes:
            documents, latest = [n.document for n in notes], [n.latest for n in notes]
            rows += process_rows(self.run.id, documents, latest)
        return process_table(rows)

    @cached_property
    def metrics(self) -> pl.DataFrame:
        """Logged values: name, rank, attempt, step, time_ns, value. The latest attempt of a step counts."""
        table = pl.concat([EMPTY, *(frame.select(WANTED) for frame in self._metrics)])
        self._metrics = []
        is_single = len({d["attempt"] for d in self.documents}) < 2
        return table if is_single else without_overwritten(table)

    @cached_property
    def open_spans(self) -> pl.DataFrame:
        """The open spans of every thread of the latest attempt, now or when it died."""
        last = max((d["attempt"] for d in self.documents if d["role"] != "worker"), default=0)
        table = pl.concat([pl.DataFrame(schema=OPEN_SPANS), *self._open])
        return table.filter(pl.col("attempt") == last)

    @property
    def joules(self) -> list[Joules]:
        """The recorded energy of each process."""
        return [note.joules for notes in self._notes for note in notes]

    @property
    def updates(self) -> list[Update | None]:
        """The latest update of the training loop of each process."""
        return [note.update for notes in self._notes for note in notes]

    @property
    def spans(self) -> tuple[int, int]:
        """Number of spans of all processes, and of main processes alone."""
        notes = [note for notes in self._notes for note in notes]
        own = sum(note.spans for note in notes if note.document["role"] != "worker")
        return sum(note.spans for note in notes), own


def summarise(run: RecordedRun, engine: Engine | None = None) -> Summary:
    """Read a run once, with this engine or in this process."""
    tasks, documents = make_tasks(run)
    results: dict[int, TaskResult] = {}
    for number, part in (engine or LocalEngine()).map(read_task, tasks):
        results[number] = part
    parts = [results.pop(number) for number in sorted(results)]
    summary = Summary(run, documents, parts)
    if sum(task.size for task in tasks) >= OFTEN:
        trim_malloc()
    return summary


LARGE = 100_000
"""Ranks times steps of grids from which on their memory is returned to the system."""
OfGrids = Callable[[Summary, list[Grid]], Any]
"""A function of a summary and the grids of all attempts."""


def summarise_with_grids(
    run: RecordedRun, functions: list[OfGrids], engine: Engine | None = None
) -> tuple[Summary, list[Future[Any]]]:
    """Read a run once and apply functions to the grids of its attempts; return their results, or exceptions.

    Grids take as much memory as all the rest. So they are made once and dropped after the last function. The
    timelines of this summary are without ``phases_by_step``.
    """
    summary = summarise(run, engine)
    results: list[Future[Any]] = [Future() for _ in functions]
    try:
        grids = make_grids(summary.timelines, consume=True)
    except Exception as error:
        for result in results:
            result.set_exception(error)
        return summary, results
    for function, result in zip(functions, results, strict=True):
        try:
            result.set_result(function(summary, grids))
        except Exception as error:
            result.set_exception(error)
    if sum(grid.begin.size for grid in grids) >= LARGE:
        del grids
        trim_malloc()
    return summary, results
