"""What rules look at: the tables of a run and what other analyses say of them, read when first needed."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepwell.analysis.engine import Engine, Summary, summarise
from stepwell.analysis.findings.curves import SYSTEM, Curves
from stepwell.analysis.time import (
    Accounts,
    Burst,
    Drift,
    Outlier,
    Patterns,
    RankTime,
    patterns,
    phase_columns,
    steps,
    time_table,
)
from stepwell.analysis.time.lanes import Loop
from stepwell.analysis.time.ledger import BETWEEN_ATTEMPTS
from stepwell.journal.liveness import status_of
from stepwell.reading import RecordedRun
from stepwell.reading.run import joint_status

if TYPE_CHECKING:
    from stepwell.analysis.goodput import Goodput
    from stepwell.analysis.ranks import Straggler, Waits

WARM_UP = 3
"""Steps at the beginning of an attempt that are slow as a rule."""
MANY = 200
LARGE = 4_000_000
"""Ranks times steps from which on memory is thought of."""
FEWEST = 20
"""Steps that there must be to say anything about their times."""


class Facts:
    """One run, as rules see it. It is read once, and when a rule first asks; by ``engine``, else here."""

    def __init__(self, run: RecordedRun, engine: Engine | None = None) -> None:
        self.run = run
        self._engine = engine
        self._waits: list[Waits] = []

    @cached_property
    def summary(self) -> Summary:
        """What was read."""
        return summarise(self.run, self._engine)

    @cached_property
    def curves(self) -> Curves:
        """What was logged."""
        return Curves(self.summary.metrics)

    # Processes

    @cached_property
    def documents(self) -> list[dict[str, Any]]:
        """What is known of each main process."""
        return [d for d in self.summary.documents if d["role"] != "worker"]

    @property
    def processes(self) -> pl.DataFrame:
        """The table of processes, workers included."""
        return self.summary.processes

    @cached_property
    def latest(self) -> list[dict[str, Any]]:
        """Those of the latest attempt."""
        last = max((d["attempt"] for d in self.documents), default=0)
        return sorted((d for d in self.documents if d["attempt"] == last), key=lambda d: d["rank"])

    @cached_property
    def statuses(self) -> dict[int, str]:
        """How each rank of the latest attempt is: running, or how it ended."""
        return {int(d["rank"]): status_of(d) for d in self.latest}

    @cached_property
    def status(self) -> str:
        """How the run is."""
        return joint_status(self.documents)

    @property
    def attempts(self) -> int:
        """How many there were."""
        return len({d["attempt"] for d in self.documents})

    @property
    def ranks(self) -> int:
        """How many there are in the latest attempt."""
        return len(self.statuses)

    # Time

    @property
    def accounts(self) -> Accounts:
        """The time of each rank and attempt."""
        return self.summary.accounts

    @cached_property
    def wall_ns(self) -> int:
        """From the start of the first process to the end of the last one, over all attempts."""
        parts = self.accounts.parts
        if not parts:
            return 0
        return max(part.end_ns for part in parts) - min(part.start_ns for part in parts)

    def now_ns(self, rank: int) -> int:
        """Until when the time of a rank is known: now, while it runs."""
        return max((part.end_ns for part in self.accounts.parts if part.rank == rank), default=0)

    @cached_property
    def running_ns(self) -> int:
        """The wall time without that between attempts: what limits of rules are shares of."""
        return self.wall_ns - self.table.get(BETWEEN_ATTEMPTS, 0)

    @cached_property
    def table(self) -> dict[str, int]:
        """Nanoseconds by line of the time table; they sum to the wall time. Of several ranks the mean."""
        return time_table(self.accounts.parts)

    def part_of_wall(self, ns: float) -> float:
        """The share of the wall time that these nanoseconds of a rank are."""
        return ns / self.wall_ns if self.wall_ns else 0.0

    @cached_property
    def steps(self) -> pl.DataFrame:
        """One row for each rank, attempt and step."""
        if self.summary.evidence_size >= LARGE:
            # They look at something else of that size, which is let go of then.
            _ = self.stragglers
        return steps(self.accounts)

    @cached_property
    def steady(self) -> pl.DataFrame:
        """The same without the first steps of each attempt, which are slow as a rule, and without the last of
        one that has not finished: its time goes on, or went on until it was killed.
        """
        parts = [part for part in self.accounts.parts if part.iterations is not None]
        if len(parts) > MANY:
            order = pl.int_range(pl.len()).over("rank", "attempt")
            return self._without_open(self.steps.filter(order >= WARM_UP), parts)
        # Of few and large ones slices, so that nothing is copied.
        kept, first, seen = [self.steps.clear()], 0, set()
        for part in parts:
            after = first + len(part.iterations or ())
            is_new = (part.rank, part.attempt) not in seen
            seen.add((part.rank, part.attempt))
            kept.append(self.steps[first + WARM_UP * is_new : after - part.ends_under_way])
            first = after
        return pl.concat(kept)

    def _without_open(self, steps: pl.DataFrame, parts: list[RankTime]) -> pl.DataFrame:
        keys = ("rank", "attempt", "step")
        under_way = [
            (part.rank, part.attempt, int(part.iterations.steps[-1]))
            for part in parts
            if part.iterations is not None and part.ends_under_way
        ]
        if not under_way:
            return steps
        schema = {key: steps.schema[key] for key in keys}
        return steps.join(pl.DataFrame(under_way, schema, orient="row"), on=keys, how="anti")

    @cached_property
    def loop_ns(self) -> dict[int, int]:
        """For how long each rank was in these steps, with all that is between them."""
        return self.spent_ns("period_ns")

    def spent_ns(self, phase: str) -> dict[int, int]:
        """For how long each rank was in a phase in these steps."""
        return self._spent[phase]

    @cached_property
    def _spent(self) -> dict[str, dict[int, int]]:
        times = pl.col("period_ns", *phase_columns(self.steady)).sum()
        table = self.steady.group_by("rank").agg(times).sort("rank")
        ranks = table["rank"].to_list()
        columns = table.drop("rank").to_dict(as_series=False)
        return {name: dict(zip(ranks, ns, strict=True)) for name, ns in columns.items()}

    def share(self, phase: str) -> tuple[int, float]:
        """Nanoseconds and share of these steps that a phase took on a rank in the middle.

        Of two in the middle the lesser one: what a single rank has is not the run's.
        """
        spent = self.spent_ns(phase)
        if self.steady.height < FEWEST or not any(self.loop_ns.values()):
            return 0, 0.0
        shares = sorted((spent[r] / whole, spent[r]) for r, whole in self.loop_ns.items() if whole)
        share, ns = shares[(len(shares) - 1) // 2]
        return ns, share

    @cached_property
    def has_parts(self) -> bool:
        """Whether anything is known of what a step consists of."""
        return any(self.steps[phase].sum() for phase in ("forward", "backward", "optimizer"))

    @cached_property
    def _patterns(self) -> Patterns:
        return patterns(self.steps)

    @property
    def bursts(self) -> list[Burst]:
        """Phases that are slow in some steps, again and again."""
        return self._patterns.bursts

    @property
    def drift(self) -> Drift | None:
        """The greatest drift of the time of steps."""
        return self._patterns.drift

    @property
    def outliers(self) -> list[Outlier]:
        """Single steps that took much longer than others."""
        return self._patterns.outliers

    # Ranks and attempts

    @cached_property
    def stragglers(self) -> list[Straggler]:
        """Ranks that others waited for."""
        from stepwell.analysis.ranks import stragglers, waits_by_step

        if self.ranks < 2:
            return []
        grids = self.summary.evidence.grids
        found = stragglers(self.run, grids)
        self._waits = [waits for grid in grids for waits in waits_by_step(grid)]
        if self.summary.evidence_size >= LARGE:
            # The two who look at it have then done so, and it takes as much memory as all the rest.
            _ = self.goodput
            self.summary.drop_evidence()
        return found

    def waited_ns(self, rank: int, phase: str) -> dict[tuple[int, int], int]:
        """How long a rank waited for others in a phase, by attempt and step."""
        _ = self.stragglers
        total: dict[tuple[int, int], int] = {}
        for waits in self._waits:
            if waits.phase == phase:
                chosen = np.flatnonzero((waits.last != rank) & (waits.ns > 0))
                for step, ns in zip(
                    waits.steps[chosen].tolist(), waits.ns[chosen].tolist(), strict=True
                ):
                    key = waits.attempt, step
                    total[key] = total.get(key, 0) + ns
        return total

    @cached_property
    def goodput(self) -> Goodput:
        """What the wall time of the whole job went to."""
        from stepwell.analysis.goodput import goodput

        return goodput(self.run, known=self.summary.evidence)

    # The rest

    def loops(self, name: str) -> list[Loop]:
        """The loops of this name in the latest attempt, earliest first."""
        last = max((d["attempt"] for d in self.documents), default=0)
        mine = [loop for loop in self.summary.loops if (loop.name, loop.attempt) == (name, last)]
        return sorted(mine, key=lambda loop: loop.start_ns)

    @cached_property
    def machine(self) -> pl.DataFrame:
        """What was read of the machine: name, rank, attempt, step, time_ns, value."""
        return self.curves.everything.filter(
            pl.col("name").str.starts_with(SYSTEM) & pl.col("value").is_finite()
        ).sort("time_ns")

    @property
    def open_spans(self) -> pl.DataFrame:
        """What every thread of the latest attempt is inside of, or was when it died."""
        return self.summary.open_spans

    def command(self, verb: str, *more: str) -> str:
        """A command about this run, to be typed."""
        words = [f"'{word}'" if " " in word or "*" in word else word for word in more]
        return " ".join(["stepwell", verb, self.run.id, *words])
