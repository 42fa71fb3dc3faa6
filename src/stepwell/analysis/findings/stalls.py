"""Single steps that took very long."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from stepwell.analysis.findings.data_bound import slow_epochs
from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.findings.recurring import again_ns
from stepwell.analysis.findings.wording import duration, percent, phase_word
from stepwell.analysis.time import Outlier

LEAST_SHARE = 0.02
LEAST_NS = 1_000_000_000
TIMES = 10
MOST = 3


def rule(facts: Facts) -> Iterator[Finding]:
    """One finding for each of the longest few; where a rank is to blame, it is a straggler's."""
    blamed = {step for s in facts.stragglers for step in (*s.steps, *s.waited)}
    whole = max(1, facts.running_ns)
    told: set[int] = set()
    under_way = _under_way(facts)
    epochs = slow_epochs(facts)
    # That workers start in each epoch is one finding, whatever it takes.
    epochs_begin = {("data", step) for step in epochs.steps} if epochs else set()
    epochs_begin |= {("other", step - 1) for step in epochs.steps} if epochs else set()
    # They end with the last epoch.
    epochs_begin |= {("data", int(facts.steps["step"][-1]))} if epochs else set()
    for one in [*_among_slow(facts), *facts.outliers]:
        waited = facts.waited_ns(one.rank, one.phase).get((one.attempt, one.step), 0)
        lost = one.ns - one.typical_ns - waited
        is_long = lost >= max(LEAST_NS, LEAST_SHARE * whole, TIMES * one.typical_ns)
        if (
            one.phase == "ending"
            or not is_long
            or one.step in told
            or one.step in blamed
            or (one.phase, one.step) in epochs_begin
            or (one.rank, one.attempt, one.step) in under_way
            or len(told) == MOST
        ):
            continue
        told.add(one.step)
        yield Finding(
            "stall",
            "warning",
            f"Step {one.step} took {duration(one.ns)}, others {duration(one.typical_ns)}: "
            f"{duration(one.phase_ns)} of it in {phase_word(one.phase)} "
            f"({percent(facts.part_of_wall(lost))} of the wall time).",
            {"phase": one.phase, "ns": one.ns, "typical_ns": one.typical_ns},
            (one.step,),
            (one.rank,) if facts.ranks > 1 else (),
            "Look at what else the machine did then.",
            facts.command("export", "--to", "chrome", "--steps", f"{one.step}"),
            lost,
        )


def _among_slow(facts: Facts) -> Iterator[Outlier]:
    """Steps that took very much longer than others that are slow again and again in the same phase."""
    for burst in facts.bursts:
        if again_ns(burst) == burst.lost_ns:
            continue
        rows = facts.steady.filter(pl.col("rank") == burst.rank)
        typical = int(rows["period_ns"].median())  # type: ignore[arg-type]
        for row in rows.filter(pl.col(burst.phase) > TIMES * burst.slow_ns).iter_rows(named=True):
            phase_ns = int(row[burst.phase])
            yield Outlier(
                burst.rank,
                int(row["attempt"]),
                int(row["step"]),
                int(row["period_ns"]),
                typical,
                burst.phase,
                phase_ns,
                burst.typical_ns,
            )


def _under_way(facts: Facts) -> set[tuple[int, int, int]]:
    """Rank, attempt and step of the last steps of a run that has not finished.

    What takes long there may go on: that is a hang, or nothing. Or it waited for a rank that had died.
    """
    if facts.status == "finished" or facts.steps.is_empty():
        return set()
    latest = facts.steps.filter(pl.col("attempt") == pl.col("attempt").max())
    last = latest.group_by("rank", "attempt").agg(pl.col("step").last())
    return set(last.select("rank", "attempt", "step").iter_rows())
