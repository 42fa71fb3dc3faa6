"""Jobs with low goodput, and the cost of restarts."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from stepwell._core.text import duration, percent
from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.findings.machine_load import is_starved
from stepwell.analysis.timeline.phases import phase_word

LEAST_NS = 60_000_000_000
"""A shorter job is mostly start-up, which does not matter."""
LOW = 0.5
VERY_LOW = 0.25
RESTARTS = 0.05
BUSY = 0.7
COMPUTING = ("forward", "backward", "optimizer")
LOST = {
    "gap between attempts": "Find out why the previous attempt ended, and what delays the next one: the "
    "queue or the launcher.",
    "redone": "Save checkpoints more often, and find out why the previous attempt ended.",
    "restore": "Find out why the previous attempt ended, and why loading a checkpoint takes so long.",
}
"""The losses of a restart, and what to do about each of them if it is the largest."""
WORDS = {
    "redone": "repeating steps",
    "gap between attempts": "between attempts",
    "checkpoint save": "saving checkpoints",
    "restore": "loading checkpoints",
    "stall": "stalls",
    "straggler wait": "waiting for slow ranks",
    **{phase: phase_word(phase) for phase in ("data", "idle", "ending")},
}


def find_low_goodput(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for the cost of restarts and one for low goodput apart from that."""
    if facts.attempts < 2 and (facts.wall_ns < LEAST_NS or _is_busy(facts)):
        return
    job = facts.goodput
    if not job.wall_ns or not job.steps:
        return
    lost = sum(job.parts[part] for part in LOST)
    is_restarted = facts.attempts > 1 and lost >= RESTARTS * job.wall_ns
    if is_restarted:
        parts = [f"{duration(ns)} {WORDS.get(p, p)}" for p in LOST if (ns := job.parts[p])]
        if count := job.redone_steps:
            parts.insert(0, f"{count} steps were repeated" if count > 1 else "1 step was repeated")
        yield Finding(
            "restarts",
            "warning",
            f"{facts.attempts - 1} restart{'s' if facts.attempts > 2 else ''} cost "
            f"{duration(lost)} ({percent(lost / job.wall_ns)} of the wall time): "
            f"{', '.join(parts)}.",
            {"ns": lost, "redone_steps": job.redone_steps, "attempts": facts.attempts},
            advice=LOST[max(LOST, key=lambda part: job.parts[part])],
            link=facts.command("report"),
            cost_ns=lost,
        )
    # The cost of restarts is a finding of its own: this one is about the rest of the time.
    others = job.parts["productive"] / max(1, job.wall_ns - lost)
    if max(job.share, others) < LOW and job.wall_ns >= LEAST_NS:
        elsewhere = ("productive", *(LOST if is_restarted else ()))
        rest = {part: ns for part, ns in job.parts.items() if part not in elsewhere and ns}
        largest = sorted(rest, key=rest.__getitem__, reverse=True)[:3]
        if largest[0] == "idle" and all(is_starved(facts, rank) for rank in facts.statuses):
            # A process that waits for the CPU may be anywhere in its code, mostly outside any span.
            return
        named = ", ".join(f"{percent(rest[p] / job.wall_ns)} {WORDS.get(p, p)}" for p in largest)
        yield Finding(
            "low-goodput",
            "critical" if job.share < VERY_LOW else "warning",
            f"Goodput is {percent(job.share)}: of {duration(job.wall_ns)} wall time, "
            f"{duration(job.parts['productive'])} made progress. The largest losses"
            f"{' apart from restarts' if is_restarted else ''}: {named}.",
            {"share": job.share, "parts": job.parts},
            advice=f"Start with the largest: {WORDS.get(largest[0], largest[0])}.",
            link=facts.command("report"),
            cost_ns=job.wall_ns - job.parts["productive"],
        )


def _is_busy(facts: Facts) -> bool:
    """Return whether the ranks computed for so much of the time that goodput cannot be low."""
    wall = sum(part.wall_ns for part in facts.timelines)
    busy = int(facts.steps.select(pl.sum_horizontal(COMPUTING).sum()).item() or 0)
    return busy >= BUSY * wall
