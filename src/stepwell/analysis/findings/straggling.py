"""Ranks that the others wait for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.findings.wording import duration, listed, percent, phase_word

if TYPE_CHECKING:
    from stepwell.analysis.ranks import Straggler

CHRONIC = 0.02
CRITICAL = 0.2
ONCE = 0.02
"""Of the time, for one to be told of."""
MOST = 5


def rule(facts: Facts) -> Iterator[Finding]:
    """One finding for each rank and phase, the costliest first."""
    whole = max(facts.loop_ns.values(), default=0)
    if not whole or facts.steady.height < 2 * 10:
        return
    told = 0
    for one in facts.stragglers:
        share = one.ns / whole
        if share < (CHRONIC if one.kind == "chronic" else ONCE) or told == MOST:
            continue
        told += 1
        yield _chronic(facts, one, share) if one.kind == "chronic" else _once(facts, one, share)


def _chronic(facts: Facts, one: Straggler, share: float) -> Finding:
    slow = one.typical_ns + one.ns // max(1, len(one.steps))
    often = "in nearly all steps" if one.share > 0.9 else f"in {percent(one.share)} of the steps"
    if one.share <= 0.9 and one.steps[-1] - one.steps[0] < 1.2 * len(one.steps):
        often = f"from step {one.steps[0]} to {one.steps[-1]}"
    return Finding(
        "straggler",
        "critical" if share >= CRITICAL else "warning",
        f"Rank {one.rank} is slower than the others in {_phase(one)}, {often}: "
        f"{duration(slow)} against {duration(one.typical_ns)}. The others wait for it, "
        f"which costs {percent(share)} of the time.",
        _evidence(one, share),
        one.steps,
        (one.rank,),
        _advice(one),
        facts.command("plot", "--by-rank"),
        one.ns,
    )


def _once(facts: Facts, one: Straggler, share: float) -> Finding:
    return Finding(
        "straggler",
        "warning",
        f"Rank {one.rank} held the others up at {listed(one.steps)}: "
        f"{phase_word(one.phase)} took {duration(one.ns)} longer there than on the others "
        f"({percent(share)} of the time).",
        _evidence(one, share),
        one.steps,
        (one.rank,),
        _advice(one),
        facts.command("plot", "--by-rank"),
        one.ns,
    )


def _phase(one: Straggler) -> str:
    return "getting its data" if one.phase == "data" else phase_word(one.phase)


def _evidence(one: Straggler, share: float) -> dict[str, object]:
    return {
        "phase": one.phase,
        "kind": one.kind,
        "ns": one.ns,
        "typical_ns": one.typical_ns,
        "share": share,
    }


def _advice(one: Straggler) -> str:
    if one.phase == "data":
        return f"Look at the data of rank {one.rank}: its shard, its disk, the load of its host."
    if one.phase == "idle":
        return f"Look at what rank {one.rank} does between steps: logging, saving, evaluating."
    return f"Look at the host and device of rank {one.rank}: clocks, other jobs, longer sequences."
