"""Checkpoints that training waits for."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.findings.wording import capital, duration, listed, percent, ranks_listed
from stepwell.analysis.time.rhythm import rhythm

WARN = 0.1
WARN_SOME = 0.05
CRITICAL = 0.3
"""Shares of the running time; the second where only some ranks save and the others wait."""
LEAST_NS = 500_000_000
LONG = 5.0
"""A checkpoint that takes this many times as long as usual has stalled."""
LONG_NS = 5_000_000_000
ADVICE = "Save asynchronously or less often."


def rule(facts: Facts) -> Iterator[Finding]:
    """Saving takes a large part of the wall time, or one checkpoint took very long.

    While a rank saves, the others wait for it where they meet next. So a checkpoint costs as much as it takes
    on the rank on which it takes longest.
    """
    rows = facts.steps.filter(pl.col("checkpoint") > 0)
    if rows.is_empty():
        return
    saves = (
        rows.sort("checkpoint")
        .group_by("attempt", "step")
        .agg(pl.col("checkpoint", "rank").last())
        .sort("attempt", "step")
    )
    times, numbers = saves["checkpoint"].to_numpy(), saves["step"].to_list()
    # Ranks that do not wait for each other may save at the same time, in different steps.
    usual, ns = float(np.median(times)), min(int(times.sum()), facts.running_ns)
    share = facts.part_of_wall(ns)
    ranks = sorted(set(rows["rank"].to_list()))
    least = WARN if len(ranks) == facts.ranks else WARN_SOME
    if ns >= least * facts.running_ns and ns >= LEAST_NS and len(times) > 1:
        yield Finding(
            "checkpoint-stall",
            "critical" if ns >= CRITICAL * facts.running_ns else "warning",
            f"{_who(facts, ranks, f'for {duration(usual)} {_often(numbers)}')}: "
            f"{percent(share)} of the wall time.",
            {
                "phase": "checkpoint",
                "share": share,
                "ns": ns,
                "count": len(times),
                "usual_ns": usual,
            },
            tuple(numbers),
            tuple(ranks) if len(ranks) < facts.ranks else (),
            ADVICE,
            facts.command("show"),
            ns,
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
            {"phase": "checkpoint", "ns": longest, "usual_ns": usual},
            (numbers[place],),
            (int(saves["rank"][place]),) if facts.ranks > 1 else (),
            "The file system was slow or full then.",
            facts.command("show"),
            longest,
        )


def _who(facts: Facts, ranks: list[int], often: str) -> str:
    others = facts.ranks - len(ranks)
    if not others:
        return f"Training stands still {often} while checkpoints are saved"
    saves = "saves" if len(ranks) == 1 else "save"
    wait = "rank waits" if others == 1 else "ranks wait"
    return f"{capital(ranks_listed(ranks))} {saves} checkpoints {often} while the other {wait}"


def _often(steps: list[int]) -> str:
    regular = rhythm(np.unique(steps)) if len(set(steps)) > 2 else None
    if regular is None:
        return f"{len(steps)} times (after {listed(steps)})"
    return f"every {regular[0]} steps ({len(steps)} times)"
