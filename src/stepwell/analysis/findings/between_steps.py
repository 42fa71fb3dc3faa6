"""Checkpoints and validation that take much of the wall time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from stepwell._core.text import capital, duration, listed, percent, ranks_listed
from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.timeline.patterns import find_period

WARN = 0.1
WARN_SOME = 0.05
CRITICAL = 0.3
"""Shares of the running time; the second if only some ranks save while the others wait."""
LEAST_NS = 500_000_000
LONG = 5.0
"""A checkpoint that takes this many times as long as usual counts as stalled."""
LONG_NS = 5_000_000_000
SAVING = "checkpoint"
VALIDATING = "validation"
WARN_VALIDATION = 0.6
"""Share of the running time. Validation that takes as long as training is common and acceptable."""
FEWEST_VALIDATIONS = 2
"""Validating less often is only possible if there are at least this many."""


def find_checkpoint_stalls(facts: Facts) -> Iterator[Finding]:
    """Yield a finding if saving takes much of the wall time, or one checkpoint took very long.

    While a rank saves, the others wait for it in the next collective. So a checkpoint costs the time of the
    slowest rank.
    """
    saves = _longest(facts, SAVING)
    if saves.is_empty():
        return
    times, numbers = saves[SAVING].to_numpy(), saves["step"].to_list()
    # Ranks that do not wait for each other may save at the same time in different steps, so limit the sum.
    usual, ns = float(np.median(times)), min(int(times.sum()), facts.running_ns)
    share = facts.part_of_wall(ns)
    ranks = facts.steps.filter(pl.col(SAVING) > 0)["rank"].unique().sort().to_list()
    least = WARN if len(ranks) == facts.ranks else WARN_SOME
    if ns >= least * facts.running_ns and ns >= LEAST_NS and len(times) > 1:
        yield Finding(
            "checkpoint-stall",
            "critical" if ns >= CRITICAL * facts.running_ns else "warning",
            f"{_who(facts, ranks, f'for {duration(usual)} {_often(numbers)}')}. "
            f"This takes {percent(share)} of the wall time.",
            {"phase": SAVING, "share": share, "ns": ns, "count": len(times), "usual_ns": usual},
            tuple(numbers),
            tuple(ranks) if len(ranks) < facts.ranks else (),
            "Save asynchronously or less often.",
            cost_ns=ns,
        )
        return
    place = int(times.argmax())
    longest = int(times[place])
    if len(times) >= 3 and longest > max(LONG * usual, usual + LONG_NS):
        yield Finding(
            "checkpoint-stall",
            "warning",
            f"Saving the checkpoint after step {numbers[place]} took {duration(longest)}, "
            f"the others {duration(usual)}.",
            {"phase": SAVING, "ns": longest, "usual_ns": usual},
            (numbers[place],),
            (int(saves["rank"][place]),) if facts.ranks > 1 else (),
            "Check whether the file system was slow or full at that time.",
            cost_ns=longest,
        )


def _longest(facts: Facts, phase: str) -> pl.DataFrame:
    """Return the steps with this phase: its longest time, and the rank with that time."""
    rows = facts.steps.filter(pl.col(phase) > 0).sort(phase)
    longest = rows.group_by("attempt", "step").agg(pl.col(phase, "rank").last())
    return longest.sort("attempt", "step")


def _who(facts: Facts, ranks: list[int], often: str) -> str:
    others = facts.ranks - len(ranks)
    if not others:
        return f"Training stops {often} to save checkpoints"
    saves = "saves" if len(ranks) == 1 else "save"
    wait = "rank waits" if others == 1 else "ranks wait"
    return f"{capital(ranks_listed(ranks))} {saves} checkpoints {often} while the other {wait}"


def _often(steps: list[int]) -> str:
    regular = find_period(np.unique(steps))
    if regular is None:
        return f"{len(steps)} times (after {listed(steps)})"
    return f"every {regular[0]} steps ({len(steps)} times)"


def find_long_validation(facts: Facts) -> Iterator[Finding]:
    """Yield at most one finding for the run."""
    ns = facts.table.get(VALIDATING, 0)
    if not ns or ns < WARN_VALIDATION * facts.running_ns:
        return
    times = _longest(facts, VALIDATING)
    if times.height < FEWEST_VALIDATIONS:
        return
    steps, usual = times["step"].to_list(), float(np.median(times[VALIDATING].to_numpy()))
    regular = find_period(np.unique(steps))
    often = f"every {regular[0]} steps" if regular else f"after {listed(steps)}"
    count, share = times.height, facts.part_of_wall(ns)
    yield Finding(
        "validation-time",
        "warning",
        f"Validation takes {percent(share)} of the wall time: {count} times {duration(usual)}, {often}.",
        {"phase": VALIDATING, "share": share, "ns": ns, "count": count, "usual_ns": usual},
        tuple(steps),
        advice="Validate less often or on fewer samples.",
        cost_ns=ns,
    )
