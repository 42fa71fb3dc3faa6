"""Steps that take longer and longer."""

from __future__ import annotations

import math
from collections.abc import Iterator

from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.findings.machine_load import contention
from stepwell.analysis.findings.wording import duration, number, phase_word
from stepwell.analysis.throughput import samples_per_step
from stepwell.analysis.time import Drift

LEAST = 1.4
CRITICAL = 2.0
EXPLAINED = 0.5
"""Of the logarithm of the ratio: larger batches that account for this much are the reason."""
LEAST_NS = 100_000
"""Of a step: a few microseconds more are the machine's."""


def rule(facts: Facts) -> Iterator[Finding]:
    """At most one finding: of the rank that slowed down most."""
    drift = facts.drift
    if drift is None or drift.ratio < LEAST or drift.to_ns - drift.from_ns < LEAST_NS:
        return
    where = (
        f"suddenly between step {drift.from_step} and {drift.to_step}"
        if drift.kind == "sudden"
        else f"gradually from step {drift.from_step} to {drift.to_step}"
    )
    batches = _batches(facts, drift)
    if batches is not None:
        yield batches
        return
    shared = _shared(facts, drift.rank)
    severity = "critical" if drift.ratio >= CRITICAL else "warning"
    yield Finding(
        "throughput-drop",
        "note" if shared else severity,
        f"Steps slow down {where}: {duration(drift.from_ns)} at the start, {duration(drift.to_ns)} "
        f"at the end, mostly in {phase_word(drift.phase)}.{shared}",
        {
            "phase": drift.phase,
            "ratio": drift.ratio,
            "from_ns": drift.from_ns,
            "to_ns": drift.to_ns,
            "kind": drift.kind,
        },
        (drift.from_step, drift.to_step),
        (drift.rank,) if facts.ranks > 1 else (),
        "Look for other processes on this machine." if shared else _advice(drift.phase),
        facts.command("show"),
        drift.lost_ns,
    )


def _batches(facts: Facts, drift: Drift) -> Finding | None:
    """A note where batches that grow explain most of the time that steps take longer."""
    sizes = samples_per_step(facts.run, drift.rank)
    if len(sizes) < 2 or sizes[-1] <= sizes[0]:
        return None
    growth = sizes[-1] / sizes[0]
    if math.log(growth) < EXPLAINED * math.log(drift.ratio):
        return None
    each = [
        duration(ns / size) for ns, size in ((drift.from_ns, sizes[0]), (drift.to_ns, sizes[-1]))
    ]
    return Finding(
        "larger-batches",
        "note",
        f"Steps take longer because batches grew from {number(sizes[0])} to {number(sizes[-1])} samples: "
        f"{duration(drift.from_ns)} at the start, {duration(drift.to_ns)} at the end "
        f"({each[0]} a sample, then {each[1]}).",
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
    """A sentence for a machine that was full while the run got less and less of it, else ""."""
    found = contention(facts, rank)
    if found is None or not found.gets_less:
        return ""
    return (
        f" The machine's processors were {found.busy:.0f}% busy, and the run used {found.own[0]:.0f}% of "
        f"one at the start, {found.own[-1]:.0f}% at the end: other processes took the rest."
    )


def _advice(phase: str) -> str:
    if phase == "data":
        return "A cache that is full, a disk that is shared, or workers that leak memory."
    if phase == "other":
        return (
            "Code in no span grows with the number of steps, such as a loop over a list that grows."
        )
    return (
        "Look for longer batches, a graph that grows (loss kept with its history), a hot device, "
        "or other processes on this machine."
    )
