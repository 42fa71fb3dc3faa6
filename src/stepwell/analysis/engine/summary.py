"""The summary of a run: the results of all tasks, combined."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import polars as pl

from stepwell.analysis.engine.engines import OFTEN, Engine, LocalEngine
from stepwell.analysis.engine.tasks import EMPTY, WANTED, TaskResult, make_tasks, read_task
from stepwell.analysis.goodput.attempts import Evidence, read_evidence, uncovered_by_attempt
from stepwell.analysis.memory import trim_malloc
from stepwell.analysis.ranks.grid import make_grids
from stepwell.analysis.ranks.stacks import in_order
from stepwell.analysis.throughput import Update
from stepwell.analysis.time.account import Accounts, make_accounts
from stepwell.reading import RecordedRun
from stepwell.reading.run import process_rows, process_table, without_overwritten
from stepwell.reading.tables import OPEN_SPANS


class Summary:
    """Everything that rules and the report need of a run's records.

    Attributes:
        documents: the document of each process, workers included.
        accounts: the time of each rank and attempt.
        loops: training and validation loops of all ranks.
        history: the spans of each process so far, for a run that has not finished.
        stacks: the open spans of every thread of its latest attempt, now or when it died.
    """

    def __init__(
        self, run: RecordedRun, documents: list[dict[str, Any]], parts: list[TaskResult]
    ) -> None:
        self._run = run
        self.documents = documents
        self._notes = [notes for part in parts for notes in part.folders]
        self._metrics = [frame for part in parts for frame in part.metrics]
        self._open = [frame for part in parts for frame in part.open_spans if frame.height]
        self.accounts: Accounts = make_accounts(time for part in parts for time in part.times)
        self.loops = [loop for part in parts for loop in part.loops]
        self.history = [history for part in parts for history in part.history]
        self.stacks = in_order(stack for part in parts for stack in part.stacks)
        joules = [note.joules for notes in self._notes for note in notes]
        rows = [row for part in parts for row in part.rows]
        for part in parts:
            part.rows = []
        self._evidence: Evidence | None = Evidence(
            make_grids(rows), joules, uncovered_by_attempt(self.accounts.parts)
        )

    @property
    def evidence(self) -> Evidence:
        """The grids of all attempts and the energy used; read again if it was dropped."""
        if self._evidence is None:
            self._evidence = read_evidence(self._run)
        return self._evidence

    @property
    def evidence_size(self) -> int:
        """Ranks times steps of the evidence in memory."""
        evidence = self._evidence
        return 0 if evidence is None else sum(grid.begin.size for grid in evidence.grids)

    def drop_evidence(self) -> None:
        """Free the memory of the evidence."""
        self._evidence = None
        trim_malloc()

    @cached_property
    def processes(self) -> pl.DataFrame:
        """The table of processes."""
        rows = []
        for notes in self._notes:
            documents, latest = [n.document for n in notes], [n.latest for n in notes]
            rows += process_rows(self._run.id, documents, latest)
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
