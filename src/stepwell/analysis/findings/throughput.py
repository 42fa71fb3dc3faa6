"""Steps that become slower during the run."""

from __future__ import annotations

import math
from collections.abc import Iterator

from stepwell._core.text import duration, number, percent
from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.findings.machine_load import contention
from stepwell.analysis.throughput import samples_per_step
from stepwell.analysis.timeline import Drift
from stepwell.analysis.timeline.phases import phase_word

LEAST = 1.4
CRITICAL = 2.0
EXPLAINED = 0.5
"""Share of the logarithm of the slowdown: larger batches that account for this much are the cause."""
LEAST_NS = 100_000
"""Least increase of the time of a step: a few microseconds are noise."""


def find_slowdown(facts: Facts) -> Iterator[Finding]:
    """Yield at most one finding, for the rank that slowed down most."""
    drift = facts.patterns.drift
    if drift is None or drift.ratio < LEAST or drift.to_ns - drift.from_ns < LEAST_NS:
        return
    if (batches := _batches(facts, drift)) is not None:
        yield batches
        return
    shared = _shared(facts, drift.rank)
    severity = "critical" if drift.ratio >= CRITICAL else "warning"
    yield Finding(
        "throughput-drop",
        "note" if shared else severity,
        f"Steps slow down {drift.kind}ly between steps {drift.from_step} and {drift.to_step}, from "
        f"{duration(drift.from_ns)} to {duration(drift.to_ns)} (mostly {phase_word(drift.phase)}).{shared}",
        {
            "phase": drift.phase,
            "ratio": drift.ratio,
            "from_ns": drift.from_ns,
            "to_ns": drift.to_ns,
            "kind": drift.kind,
        },
        (drift.from_step, drift.to_step),
        (drift.rank,) if facts.ranks > 1 else (),
        "Check for other processes on this machine." if shared else _advice(drift.phase),
        cost_ns=drift.lost_ns,
    )


def _batches(facts: Facts, drift: Drift) -> Finding | None:
    """Return a note if larger batches explain most of the slowdown."""
    sizes = samples_per_step(facts.run, drift.rank)
    if len(sizes) < 2 or sizes[-1] <= sizes[0]:
        return None
    if math.log(sizes[-1] / sizes[0]) < EXPLAINED * math.log(drift.ratio):
        return None
    before, after = duration(drift.from_ns / sizes[0]), duration(drift.to_ns / sizes[-1])
    return Finding(
        "larger-batches",
        "note",
        f"Steps slow down from {duration(drift.from_ns)} to {duration(drift.to_ns)} because batches grow "
        f"from {number(sizes[0])} to {number(sizes[-1])} samples ({before} per sample at the start, "
        f"{after} at the end).",
        {
            "samples": sizes[0],
            "last_samples": sizes[-1],
            "from_ns": drift.from_ns,
            "to_ns": drift.to_ns,
        },
        (drift.from_step, drift.to_step),
        (drift.rank,) if facts.ranks > 1 else (),
        link=facts.command("show"),
    )


def _shared(facts: Facts, rank: int) -> str:
    """Return a sentence if the machine was full and the run got less and less CPU time, else ""."""
    load = contention(facts, rank)
    if load is None or not load.gets_less:
        return ""
    return (
        f" The machine's CPUs were {percent(load.busy / 100)} busy, and the run used "
        f"{percent(load.own[0] / 100)} of one CPU at the start, {percent(load.own[-1] / 100)} at the end: "
        "other processes took the rest."
    )


def _advice(phase: str) -> str:
    if phase == "data":
        return "Check for a full cache, a shared disk, or workers that leak memory."
    if phase == "other":
        return (
            "Check the code outside any span for work that grows with the number of steps, such as a loop "
            "over a growing list."
        )
    return (
        "Check for longer batches, a growing graph (a loss kept with its history), a hot device, or other "
        "processes on this machine."
    )
