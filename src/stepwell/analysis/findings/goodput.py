"""Jobs of whose wall time little moved the training on; and what restarts cost."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.findings.machine_load import is_starved
from stepwell.analysis.findings.wording import duration, percent

LEAST_NS = 60_000_000_000
"""A job that is shorter is mostly start-up, and nobody minds."""
LOW = 0.5
VERY_LOW = 0.25
RESTARTS = 0.05
BUSY = 0.7
COMPUTING = ("forward", "backward", "optimizer")
LOST = ("gap between attempts", "redone", "restore")
WORDS = {
    "redone": "doing steps again",
    "gap between attempts": "between attempts",
    "checkpoint save": "saving checkpoints",
    "restore": "loading checkpoints",
    "data": "waiting for data",
    "stall": "stalls",
    "straggler wait": "waiting for slow ranks",
    "idle": "code between steps, in no span",
    "ending": "code after the last step",
}


def rule(facts: Facts) -> Iterator[Finding]:
    """Restarts, and a low goodput on the whole."""
    if facts.attempts < 2 and (facts.wall_ns < LEAST_NS or _is_busy(facts)):
        return
    found = facts.goodput
    if not found.wall_ns or not found.steps:
        return
    lost = sum(found.parts[part] for part in LOST)
    is_restarted = facts.attempts > 1 and lost >= RESTARTS * found.wall_ns
    if is_restarted:
        again = _again(found.redone_steps)
        parts = [again, *(_part(part, found.parts[part]) for part in LOST if found.parts[part])]
        yield Finding(
            "restarts",
            "warning",
            f"{facts.attempts - 1} restart{'s' if facts.attempts > 2 else ''} cost "
            f"{duration(lost)} ({percent(lost / found.wall_ns)} of the wall time): "
            f"{', '.join(filter(None, parts))}.",
            {"ns": lost, "redone_steps": found.redone_steps, "attempts": facts.attempts},
            advice="Save checkpoints more often, and find out why the attempt before ended.",
            link=facts.command("report"),
            cost_ns=lost,
        )
    # What restarts cost is a finding of its own: this one is about the rest of the time.
    others = found.parts["productive"] / max(1, found.wall_ns - lost)
    if max(found.share, others) < LOW and found.wall_ns >= LEAST_NS:
        elsewhere = ("productive", *(LOST if is_restarted else ()))
        rest = {part: ns for part, ns in found.parts.items() if part not in elsewhere and ns}
        largest = sorted(rest, key=rest.__getitem__, reverse=True)[:3]
        if largest[0] == "idle" and all(is_starved(facts, rank) for rank in facts.statuses):
            # Whatever a process is at while others have the processor: mostly that is in no span.
            return
        named = ", ".join(f"{percent(rest[p] / found.wall_ns)} {WORDS.get(p, p)}" for p in largest)
        yield Finding(
            "low-goodput",
            "critical" if found.share < VERY_LOW else "warning",
            f"Goodput is {percent(found.share)}: of {duration(found.wall_ns)} wall time, "
            f"{duration(found.parts['productive'])} made progress. The largest losses"
            f"{' apart from restarts' if is_restarted else ''}: {named}.",
            {"share": found.share, "parts": found.parts},
            advice=f"Begin with the largest: {WORDS.get(largest[0], largest[0])}.",
            link=facts.command("report"),
            cost_ns=found.wall_ns - found.parts["productive"],
        )


def _is_busy(facts: Facts) -> bool:
    """Whether the ranks computed for so much of the time that it need not be looked at closely."""
    wall = sum(part.wall_ns for part in facts.accounts.parts)
    busy = int(facts.steps.select(pl.sum_horizontal(COMPUTING).sum()).item() or 0)
    return busy >= BUSY * wall


def _again(steps: int) -> str:
    if not steps:
        return ""
    return f"{steps} steps were done again" if steps > 1 else "1 step was done again"


def _part(part: str, ns: int) -> str:
    return f"{duration(ns)} {WORDS.get(part, part)}"
