"""The input of rules: the tables of a run and the results of other analyses, read when first needed."""

from __future__ import annotations

import re
from collections import defaultdict
from concurrent.futures import Future
from functools import cached_property
from typing import Any

import polars as pl

from stepwell.analysis.engine import Engine, Summary, summarise_with_grids
from stepwell.analysis.findings.curves import Curves, as_number
from stepwell.analysis.goodput import Goodput, goodput
from stepwell.analysis.goodput.job import Evidence
from stepwell.analysis.ranks import Grid, Straggler, Waits, stragglers, waits_by_step
from stepwell.analysis.ranks.stacks import MAIN
from stepwell.analysis.timeline import (
    IncompleteSteps,
    Patterns,
    Timeline,
    incomplete_steps,
    patterns,
    phase_columns,
    steps,
    time_table,
    wall_ns,
)
from stepwell.analysis.timeline.lanes import Loop
from stepwell.analysis.timeline.tables import BETWEEN_ATTEMPTS, steady_steps
from stepwell.journal.document import status_of
from stepwell.reading import RecordedRun
from stepwell.reading.run import SYSTEM, joint_status
from stepwell.vocabulary import StandardTrainingJobSpanName

FEWEST = 20
"""Least number of steps to judge their times."""
TRAINING_LOOP = StandardTrainingJobSpanName.TRAINING_LOOP.value
"""The name of the spans around the training."""


class Facts:
    """One run as rules see it. Read once, on first access, by ``engine`` or else in this process."""

    def __init__(self, run: RecordedRun, engine: Engine | None = None) -> None:
        self.run = run
        self._engine = engine
        self._waited: dict[tuple[int, str], dict[tuple[int, int], int]] = {}

    @cached_property
    def _read(self) -> tuple[Summary, list[Future[Any]]]:
        return summarise_with_grids(self.run, [_compare_ranks, _goodput], self._engine)

    @property
    def summary(self) -> Summary:
        """The tables and totals from one pass over the run."""
        return self._read[0]

    @cached_property
    def curves(self) -> Curves:
        """The logged metrics."""
        return Curves(self.summary.metrics)

    # Processes

    @cached_property
    def documents(self) -> list[dict[str, Any]]:
        """The process documents of ranks, without workers."""
        return [d for d in self.summary.documents if d["role"] != "worker"]

    @cached_property
    def latest(self) -> list[dict[str, Any]]:
        """The process documents of the latest attempt, by rank."""
        last = self._last_attempt
        return sorted((d for d in self.documents if d["attempt"] == last), key=lambda d: d["rank"])

    @cached_property
    def _last_attempt(self) -> int:
        return max((d["attempt"] for d in self.documents), default=0)

    @cached_property
    def statuses(self) -> dict[int, str]:
        """The status of each rank in the latest attempt."""
        return {int(d["rank"]): status_of(d) for d in self.latest}

    @cached_property
    def status(self) -> str:
        """The status of the run."""
        return joint_status(self.documents)

    @property
    def attempts(self) -> int:
        """The number of attempts."""
        return len({d["attempt"] for d in self.documents})

    @property
    def ranks(self) -> int:
        """The number of ranks in the latest attempt."""
        return len(self.statuses)

    # Time

    @property
    def timelines(self) -> list[Timeline]:
        """The time of each rank and attempt, by phase and step."""
        return self.summary.timelines

    @cached_property
    def wall_ns(self) -> int:
        """Time from the start of the first process to the end of the last one, over all attempts."""
        return wall_ns(part.life for part in self.timelines)

    @cached_property
    def running_ns(self) -> int:
        """Wall time without the gaps between attempts. The thresholds of rules are shares of it."""
        return self.wall_ns - self.table.get(BETWEEN_ATTEMPTS, 0)

    @cached_property
    def table(self) -> dict[str, int]:
        """Nanoseconds by line of the time table, the mean over ranks. They sum to the wall time."""
        return time_table(self.timelines)

    def part_of_wall(self, ns: float) -> float:
        """Return the share of the wall time."""
        return ns / self.wall_ns if self.wall_ns else 0.0

    @cached_property
    def steps(self) -> pl.DataFrame:
        """One row for each rank, attempt and step."""
        return steps(self.timelines)

    @cached_property
    def incomplete(self) -> IncompleteSteps:
        """The steps at the end of attempts that no rank completed."""
        return incomplete_steps(self.timelines)

    @cached_property
    def steady(self) -> pl.DataFrame:
        """The steps without warm-up, and without the last step of an unfinished attempt."""
        return steady_steps(self.steps, self.timelines)

    @cached_property
    def spent(self) -> pl.DataFrame:
        """The time of each rank in the steady steps: ``period_ns`` and each phase."""
        times = pl.col("period_ns", *phase_columns(self.steady)).sum()
        return self.steady.group_by("rank").agg(times).sort("rank")

    def share(self, phase: str) -> tuple[float, int, int]:
        """Return the share and the time of a phase in the steady steps, and the rank: the median rank.

        Of an even number of ranks the lower median: a problem of a single rank is not one of the run.
        """
        spent = self.spent.select(phase, "rank", "period_ns").iter_rows()
        shares = sorted((ns / all_ns, ns, rank) for ns, rank, all_ns in spent if all_ns)
        if self.steady.height < FEWEST or not shares:
            return 0.0, 0, 0
        return shares[(len(shares) - 1) // 2]

    @cached_property
    def has_parts(self) -> bool:
        """Whether forward, backward or optimizer were recorded."""
        return any(self.steps[phase].sum() for phase in ("forward", "backward", "optimizer"))

    @cached_property
    def patterns(self) -> Patterns:
        """Bursts, the largest drift and single slow steps."""
        return patterns(self.steps)

    # Ranks and attempts

    @property
    def stragglers(self) -> list[Straggler]:
        """Ranks that the others waited for."""
        slow_ranks: list[Straggler] = self._read[1][0].result()[0]
        return slow_ranks if self.ranks > 1 else []

    def waited_ns(self, rank: int, phase: str) -> dict[tuple[int, int], int]:
        """Return how long a rank waited for others in a phase, by attempt and step."""
        if (rank, phase) not in self._waited:
            total: dict[tuple[int, int], int] = defaultdict(int)
            every: list[Waits] = self._read[1][0].result()[1]
            for waits in every:
                if waits.phase == phase:
                    chosen = (waits.last != rank) & (waits.ns > 0)
                    waited = waits.steps[chosen].tolist(), waits.ns[chosen].tolist()
                    for step, ns in zip(*waited, strict=True):
                        total[waits.attempt, step] += ns
            # Rules ask about one rank after the other.
            self._waited = {(rank, phase): total}
        return self._waited[rank, phase]

    @property
    def goodput(self) -> Goodput:
        """The wall time of the whole job by what it was spent on."""
        result: Goodput = self._read[1][1].result()
        return result

    # The rest

    def loops(self, name: str) -> list[Loop]:
        """Return the loops with this name in the latest attempt, earliest first."""
        wanted = name, self._last_attempt
        mine = [loop for loop in self.summary.loops if (loop.name, loop.attempt) == wanted]
        return sorted(mine, key=lambda loop: loop.start_ns)

    @property
    def training_loops(self) -> list[Loop]:
        """The training loops in the latest attempt, earliest first."""
        return self.loops(TRAINING_LOOP)

    @cached_property
    def machine(self) -> pl.DataFrame:
        """The finite system metrics by time: name, rank, attempt, step, time_ns, value."""
        return self.curves.everything.filter(
            pl.col("name").str.starts_with(SYSTEM) & pl.col("value").is_finite()
        ).sort("time_ns")

    def main_spans(self, rank: int) -> pl.LazyFrame:
        """Return the closed spans of the main thread of a rank, without its workers."""
        is_main = pl.col("process").is_in([d["process"] for d in self.documents])
        is_closed = pl.col("duration_ns").is_not_null()
        return self.run.table("spans", rank).filter(is_main, is_closed, thread=MAIN)

    def command(self, verb: str, *more: str) -> str:
        """Return a stepwell command for this run, quoted for a shell."""
        words = [f"'{word}'" if " " in word or "*" in word else word for word in more]
        return " ".join(["stepwell", verb, self.run.id, *words])


def _compare_ranks(summary: Summary, grids: list[Grid]) -> tuple[list[Straggler], list[Waits]]:
    slow_ranks = stragglers(summary.timelines, grids)
    return slow_ranks, [waits for grid in grids for waits in waits_by_step(grid)]


def _goodput(summary: Summary, grids: list[Grid]) -> Goodput:
    return goodput(summary.run, evidence=Evidence(summary.timelines, grids, summary.joules))


def class_count(facts: Facts) -> int | None:
    """Return the number of classes from the configuration or the class shares of batches, else None."""
    for key in ("num_classes", "n_classes", "classes", "num_labels"):
        count = as_number(facts.run.config.get(key))
        if count and count >= 2:
            return int(count)
    names = [n for n in facts.curves.names if re.fullmatch(r"batch/.*_\d+_pct", n)]
    return len(names) if len(names) >= 2 else None
