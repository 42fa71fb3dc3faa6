"""The summary of a run: what the parts say, put together."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import polars as pl

from stepwell.analysis.engine.engines import OFTEN, Engine, LocalEngine
from stepwell.analysis.engine.part import EMPTY, WANTED, Part, do
from stepwell.analysis.engine.task import make_tasks
from stepwell.analysis.goodput.evidence import Evidence, read_evidence, uncovered_by_attempt
from stepwell.analysis.memory import give_back
from stepwell.analysis.ranks.grid import make_grids
from stepwell.analysis.ranks.stacks import in_order
from stepwell.analysis.throughput import Update
from stepwell.analysis.time.account import Accounts, make_accounts
from stepwell.reading import RecordedRun
from stepwell.reading.run import process_rows, process_table, without_overwritten
from stepwell.reading.tables import OPEN_SPANS


class Summary:
    """All that rules and the report need of a run's records.

    Attributes:
        documents: what is known of each process, workers included.
        accounts: the time of each rank and attempt.
        loops: training and validation loops of all ranks.
        habits: what each process did so far, of a run that has not finished.
        stacks: what every thread of its latest attempt is inside of, or was when it died.
    """

    def __init__(
        self, run: RecordedRun, documents: list[dict[str, Any]], parts: list[Part]
    ) -> None:
        self._run = run
        self.documents = documents
        self._notes = [notes for part in parts for notes in part.folders]
        self._metrics = [frame for part in parts for frame in part.metrics]
        self._open = [frame for part in parts for frame in part.open_spans if frame.height]
        self.accounts: Accounts = make_accounts(time for part in parts for time in part.times)
        self.loops = [loop for part in parts for loop in part.loops]
        self.habits = [habits for part in parts for habits in part.habits]
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
        """The attempts as ranks by steps, and the energy used; read again if it was dropped."""
        if self._evidence is None:
            self._evidence = read_evidence(self._run)
        return self._evidence

    @property
    def evidence_size(self) -> int:
        """Ranks times steps of what is in memory of it."""
        known = self._evidence
        return 0 if known is None else sum(grid.begin.size for grid in known.grids)

    def drop_evidence(self) -> None:
        """Free its memory."""
        self._evidence = None
        give_back()

    @cached_property
    def processes(self) -> pl.DataFrame:
        """The table of processes."""
        rows = []
        for notes in self._notes:
            abouts, latest = [n.about for n in notes], [n.latest for n in notes]
            rows += process_rows(self._run.id, abouts, latest)
        return process_table(rows)

    @cached_property
    def metrics(self) -> pl.DataFrame:
        """What was logged: name, rank, attempt, step, time_ns, value; that of the latest attempt counts."""
        found = pl.concat([EMPTY, *(frame.select(WANTED) for frame in self._metrics)])
        self._metrics = []
        is_one = len({d["attempt"] for d in self.documents}) < 2
        return found if is_one else without_overwritten(found)

    @cached_property
    def open_spans(self) -> pl.DataFrame:
        """What every thread of the latest attempt is inside of, or was when it died."""
        last = max((d["attempt"] for d in self.documents if d["role"] != "worker"), default=0)
        found = pl.concat([pl.DataFrame(schema=OPEN_SPANS), *self._open])
        return found.filter(pl.col("attempt") == last)

    @property
    def updates(self) -> list[Update | None]:
        """The latest update of each process's training loop."""
        return [note.update for notes in self._notes for note in notes]

    @property
    def spans(self) -> tuple[int, int]:
        """Spans in all, and those of main processes alone."""
        notes = [note for notes in self._notes for note in notes]
        own = sum(note.spans for note in notes if note.about["role"] != "worker")
        return sum(note.spans for note in notes), own


def summarise(run: RecordedRun, engine: Engine | None = None) -> Summary:
    """Read a run once, with this engine."""
    tasks, documents = make_tasks(run)
    found: dict[int, Part] = {}
    for number, part in (engine or LocalEngine()).map(do, tasks):
        found[number] = part
    parts = [found.pop(number) for number in sorted(found)]
    summary = Summary(run, documents, parts)
    if sum(task.size for task in tasks) >= OFTEN:
        give_back()
    return summary
