"""What rules look at: the tables of a run and what other analyses say of them, read when first needed."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import polars as pl

from stepwell.analysis.findings.curves import SYSTEM, Curves
from stepwell.analysis.time import (
    PHASES,
    Accounts,
    Burst,
    Drift,
    Outlier,
    account,
    bursts,
    drift,
    outliers,
    steps,
)
from stepwell.journal.liveness import status_of
from stepwell.reading import RecordedRun

if TYPE_CHECKING:
    from stepwell.analysis.goodput import Goodput
    from stepwell.analysis.ranks import Straggler

WARM_UP = 3
"""Steps at the beginning of an attempt that are slow as a rule."""
FEWEST = 20
"""Steps that there must be to say anything about their times."""


class Facts:
    """One run, as rules see it. Everything is read once, and only when a rule asks for it."""

    def __init__(self, run: RecordedRun) -> None:
        self.run = run
        self.curves = Curves(run)

    # Processes

    @cached_property
    def documents(self) -> list[dict[str, Any]]:
        """What is known of each main process."""
        return [d for d in self.run.documents() if d["role"] != "worker"]

    @cached_property
    def processes(self) -> pl.DataFrame:
        """The table of processes, workers included."""
        return self.run.processes().collect()

    @cached_property
    def latest(self) -> list[dict[str, Any]]:
        """Those of the latest attempt."""
        last = max((d["attempt"] for d in self.documents), default=0)
        return sorted((d for d in self.documents if d["attempt"] == last), key=lambda d: d["rank"])

    @cached_property
    def statuses(self) -> dict[int, str]:
        """How each rank of the latest attempt is: running, finished, failed or killed."""
        return {int(d["rank"]): status_of(d) for d in self.latest}

    @cached_property
    def status(self) -> str:
        """How the run is."""
        return self.run.status

    @property
    def attempts(self) -> int:
        """How many there were."""
        return len({d["attempt"] for d in self.documents})

    @property
    def ranks(self) -> int:
        """How many there are in the latest attempt."""
        return len(self.statuses)

    # Time

    @cached_property
    def accounts(self) -> Accounts:
        """The time of each rank and attempt."""
        return account(self.run)

    @cached_property
    def wall_ns(self) -> int:
        """From the start of the first process of an attempt to the end of its last, gaps left out."""
        spans: dict[int, tuple[int, int]] = {}
        for part in self.accounts.parts:
            low, high = spans.get(part.attempt, (part.start_ns, part.end_ns))
            spans[part.attempt] = min(low, part.start_ns), max(high, part.end_ns)
        return sum(high - low for low, high in spans.values())

    @cached_property
    def steps(self) -> pl.DataFrame:
        """One row for each rank, attempt and step."""
        return steps(self.accounts)

    @cached_property
    def steady(self) -> pl.DataFrame:
        """The same without the first steps of each attempt, which are slow as a rule."""
        order = pl.int_range(pl.len()).over("rank", "attempt")
        return self.steps.filter(order >= WARM_UP)

    @cached_property
    def loop_ns(self) -> dict[int, int]:
        """For how long each rank was in these steps, with all that is between them."""
        return self.spent_ns("period_ns")

    def spent_ns(self, phase: str) -> dict[int, int]:
        """For how long each rank was in a phase in these steps."""
        return dict(zip(self._spent["rank"].to_list(), self._spent[phase].to_list(), strict=True))

    @cached_property
    def _spent(self) -> pl.DataFrame:
        times = pl.col("period_ns", *PHASES).sum()
        return self.steady.group_by("rank").agg(times).sort("rank")

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
    def outside(self) -> list[str]:
        """The phases that are outside of all parts of a step that were told apart."""
        parts = ("forward", "backward", "optimizer")
        is_told = any(self.steps[phase].sum() for phase in parts)
        return ["idle", "unaccounted", *(["training"] if is_told else [])]

    @cached_property
    def bursts(self) -> list[Burst]:
        """Phases that are slow in some steps, again and again."""
        return bursts(self.steps)

    @cached_property
    def drift(self) -> Drift | None:
        """The greatest drift of the time of steps."""
        return drift(self.steps)

    @cached_property
    def outliers(self) -> list[Outlier]:
        """Single steps that took much longer than others."""
        return outliers(self.steps)

    # Ranks and attempts

    @cached_property
    def stragglers(self) -> list[Straggler]:
        """Ranks that others waited for."""
        from stepwell.analysis.ranks import stragglers

        return stragglers(self.run) if self.ranks > 1 else []

    @cached_property
    def goodput(self) -> Goodput:
        """What the wall time of the whole job went to."""
        from stepwell.analysis.goodput import goodput

        return goodput(self.run)

    # The rest

    @cached_property
    def machine(self) -> pl.DataFrame:
        """What was read of the machine: name, rank, attempt, step, time_ns, value."""
        return self.curves.everything.filter(
            pl.col("name").str.starts_with(SYSTEM) & pl.col("value").is_finite()
        ).sort("time_ns")

    @cached_property
    def open_spans(self) -> pl.DataFrame:
        """What every thread of the latest attempt is inside of, or was when it died."""
        last = max((d["attempt"] for d in self.documents), default=0)
        return self.run.open_spans().filter(pl.col("attempt") == last).collect()

    def command(self, verb: str, *more: str) -> str:
        """A command about this run, to be typed."""
        words = [f"'{word}'" if " " in word or "*" in word else word for word in more]
        return " ".join(["stepwell", verb, self.run.id, *words])
