"""Slow steps: repeatedly, once (a stall), at the start, or more and more during the run."""

from __future__ import annotations

import math
from collections.abc import Iterator

import polars as pl

from stepwell._core.text import capital, duration, listed, number, percent
from stepwell.analysis.findings.bursts import (
    frequency,
    is_accidental,
    is_single_episode,
    recurring_cost_ns,
    without_waits,
)
from stepwell.analysis.findings.data_bound import slow_epochs
from stepwell.analysis.findings.facts import FEWEST, Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.findings.machine_load import contention
from stepwell.analysis.throughput import samples_per_step
from stepwell.analysis.timeline import Burst, Drift, Outlier, phase_columns
from stepwell.analysis.timeline.phases import phase_word
from stepwell.analysis.timeline.tables import WARM_UP

ELSEWHERE = ("data", "garbage collection")
"""Phases whose bursts other rules report. So is ``other``, if the phases of steps were recorded."""
NOW_AND_THEN = ("optimizer", "communication", "transfer")
"""Phases that not all steps have with gradient accumulation, which is intended."""
LEAST = 0.05
CRITICAL = 0.3
"""Shares of the running time and the wall time for a warning and a critical finding."""
STALL_LEAST_SHARE = 0.02
STALL_LEAST_NS = 1_000_000_000
STALL_TIMES = 10
MOST_STALLS = 3
FIRST_TIMES = 10.0
FIRST_LEAST_NS = 2_000_000_000
FIRST_LEAST_SHARE = 0.05
DRIFT_LEAST = 1.4
DRIFT_CRITICAL = 2.0
EXPLAINED = 0.5
"""Share of the logarithm of the slowdown: larger batches that account for this much are the cause."""
DRIFT_LEAST_NS = 100_000
"""Least increase of the time of a step: a few microseconds are noise."""
DRIFT_ADVICE = {
    "data": "Check for a full cache, a shared disk, or workers that leak memory.",
    "other": "Check the code outside any span for work that grows with the number of steps, such as a loop "
    "over a growing list.",
}
DRIFT_ADVICE_ELSE = (
    "Check for longer batches, a growing graph (a loss kept with its history), a hot device, or other "
    "processes on this machine."
)


def find_recurring_slow_steps(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each phase that is repeatedly slow, on the rank where it costs most."""
    reported: set[str] = set()
    blamed = _blamed(facts)
    least = LEAST * max(1, facts.running_ns)
    elsewhere = {*ELSEWHERE, "other"} if facts.has_parts else set(ELSEWHERE)
    for raw in facts.patterns.bursts:
        if raw.phase in elsewhere | reported or recurring_cost_ns(raw) < least:
            continue
        burst = without_waits(facts, raw)
        if burst is None or (cost := recurring_cost_ns(burst)) < least:
            continue
        if burst.phase in NOW_AND_THEN and burst.typical_ns == 0:
            continue
        if sum(step in blamed for step in burst.steps) > len(burst.steps) / 2:
            continue
        if is_accidental(facts, burst) or is_single_episode(burst):
            continue
        reported.add(burst.phase)
        yield _slow_steps(facts, burst, cost, facts.part_of_wall(cost))


def _blamed(facts: Facts) -> set[int]:
    """Return the steps in which ranks wait for a straggler, which is reported already."""
    return {step for s in facts.stragglers for step in (*s.steps, *s.waited)}


def _slow_steps(facts: Facts, burst: Burst, cost: int, share: float) -> Finding:
    rows = facts.steady.filter(rank=burst.rank)
    is_slow = rows["step"].is_in(burst.steps)
    parts = rows.filter(is_slow)["period_ns"], rows.filter(~is_slow)["period_ns"]
    slow, typical = (int(part.median() or 0) for part in parts)  # type: ignore[arg-type]
    return Finding(
        "slow-steps",
        "warning" if share < CRITICAL else "critical",
        f"{capital(frequency(burst, 'step'))} takes {duration(slow)}, the others {duration(typical)} "
        f"({listed(burst.steps)}): {phase_word(burst.phase)} takes {duration(burst.slow_ns)} there "
        f"instead of {duration(burst.typical_ns)}. This costs {percent(share)} of the wall time.",
        {
            "phase": burst.phase,
            "period": burst.period,
            "share": burst.share,
            "slow_ns": slow,
            "typical_ns": typical,
            "phase_slow_ns": burst.slow_ns,
            "phase_typical_ns": burst.typical_ns,
            "lost_ns": cost,
        },
        burst.steps,
        (burst.rank,) if facts.ranks > 1 else (),
        "Check what runs only in these steps: logging, a metric, a copy, a longer batch.",
        facts.command("export", "--to", "chrome", "--steps", f"{burst.first}"),
        cost,
    )


def find_stalls(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each of the few longest. A stall of one rank is reported as a straggler."""
    blamed, reported, under_way = _blamed(facts), set[int](), _under_way(facts)
    least = max(STALL_LEAST_NS, STALL_LEAST_SHARE * facts.running_ns)
    epochs_begin: set[tuple[str, int]] = set()
    if (epochs := slow_epochs(facts)) is not None:
        # The rule for waiting for data reports workers that start in each epoch.
        epochs_begin |= {("data", step) for step in epochs.steps}
        epochs_begin |= {("other", step - 1) for step in epochs.steps}
        # After the last epoch the workers end.
        epochs_begin.add(("data", int(facts.steps["step"][-1])))
    for outlier in [*_among_slow(facts), *facts.patterns.outliers]:
        place = outlier.attempt, outlier.step
        lost = outlier.ns - outlier.typical_ns
        least_lost = max(least, STALL_TIMES * outlier.typical_ns)
        if (
            outlier.phase == "ending"
            or lost < least_lost
            or outlier.step in reported
            or outlier.step in blamed
            or (outlier.phase, outlier.step) in epochs_begin
            or (outlier.rank, *place) in under_way
            or len(reported) == MOST_STALLS
        ):
            continue
        lost -= facts.waited_ns(outlier.rank, outlier.phase).get(place, 0)
        if lost < least_lost:
            continue
        reported.add(outlier.step)
        yield Finding(
            "stall",
            "warning",
            f"Step {outlier.step} took {duration(outlier.ns)}, others take {duration(outlier.typical_ns)}: "
            f"{phase_word(outlier.phase)} took {duration(outlier.phase_ns)}. "
            f"This cost {percent(facts.part_of_wall(lost))} of the wall time.",
            {"phase": outlier.phase, "ns": outlier.ns, "typical_ns": outlier.typical_ns},
            (outlier.step,),
            (outlier.rank,) if facts.ranks > 1 else (),
            "Check what else the machine did at that time.",
            facts.command("export", "--to", "chrome", "--steps", f"{outlier.step}"),
            lost,
        )


def _among_slow(facts: Facts) -> Iterator[Outlier]:
    """Yield steps that took much longer than others that are repeatedly slow in the same phase."""
    for burst in facts.patterns.bursts:
        if recurring_cost_ns(burst) == burst.lost_ns:
            continue
        rows = facts.steady.filter(rank=burst.rank)
        typical = int(rows["period_ns"].median())  # type: ignore[arg-type]
        slowest = rows.filter(pl.col(burst.phase) > STALL_TIMES * burst.slow_ns)
        columns = slowest.select("attempt", "step", "period_ns", burst.phase)
        for attempt, step, ns, phase_ns in columns.iter_rows():
            usual = burst.typical_ns
            yield Outlier(burst.rank, attempt, step, ns, typical, burst.phase, phase_ns, usual)


def _under_way(facts: Facts) -> set[tuple[int, int, int]]:
    """Return rank, attempt and step of the last step of each rank, if the run has not finished.

    A long last step may still run, and may be a hang or nothing. Or it waited for a rank that had died.
    """
    if facts.status == "finished" or facts.steps.is_empty():
        return set()
    latest = facts.steps.filter(pl.col("attempt") == pl.col("attempt").max())
    last = latest.group_by("rank", "attempt").agg(pl.col("step").last())
    return set(last.select("rank", "attempt", "step").iter_rows())


def find_slow_first_steps(facts: Facts) -> Iterator[Finding]:
    """Yield at most one finding, for the rank with the slowest first steps."""
    if facts.steady.height < FEWEST:
        return
    order = pl.int_range(pl.len()).over("rank", "attempt")
    first = facts.steps.filter(order < WARM_UP).sort("period_ns").row(-1, named=True)
    rank, names = first["rank"], phase_columns(facts.steps)
    typical = facts.steady.filter(rank=rank).median().row(0, named=True)
    lost = int(first["period_ns"] - typical["period_ns"])
    least = max(FIRST_LEAST_NS, FIRST_LEAST_SHARE * facts.running_ns)
    if lost < least or first["period_ns"] < FIRST_TIMES * typical["period_ns"]:
        return
    phase = max(names, key=lambda name: first[name] - typical[name])
    if phase in ("validation", "checkpoint"):
        # After a step, validation and checkpoints do not make the step itself slow.
        return
    if phase == "data" and slow_epochs(facts) is not None:
        # All epochs start like that, which the rule for waiting for data reports.
        return
    yield Finding(
        "slow-first-steps",
        "note",
        f"Step {first['step']} took {duration(first['period_ns'])} (mostly {phase_word(phase)}), later steps "
        f"take {duration(typical['period_ns'])}. This cost {percent(facts.part_of_wall(lost))} of the wall "
        "time.",
        {"phase": phase, "ns": first["period_ns"], "typical_ns": typical["period_ns"]},
        (first["step"],),
        (rank,) if facts.ranks > 1 else (),
        "Compilation, filling caches and starting workers take time at first. A compilation cache or fewer "
        "different shapes help."
        if phase != "data"
        else "DataLoader workers start and fill their queues. Use fewer workers or a lighter dataset object.",
        cost_ns=lost,
    )


def find_slowdown(facts: Facts) -> Iterator[Finding]:
    """Yield at most one finding, for the rank that slowed down most."""
    drift = facts.patterns.drift
    if drift is None or drift.ratio < DRIFT_LEAST or drift.to_ns - drift.from_ns < DRIFT_LEAST_NS:
        return
    if (batches := _larger_batches(facts, drift)) is not None:
        yield batches
        return
    shared = _shared_machine(facts, drift.rank)
    severity = "critical" if drift.ratio >= DRIFT_CRITICAL else "warning"
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
        "Check for other processes on this machine."
        if shared
        else DRIFT_ADVICE.get(drift.phase, DRIFT_ADVICE_ELSE),
        cost_ns=drift.lost_ns,
    )


def _larger_batches(facts: Facts, drift: Drift) -> Finding | None:
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


def _shared_machine(facts: Facts, rank: int) -> str:
    """Return a sentence if the machine was full and the run got less and less CPU time, else ""."""
    load = contention(facts, rank)
    if load is None or not load.gets_less:
        return ""
    return (
        f" The machine's CPUs were {percent(load.busy / 100)} busy, and the run used "
        f"{percent(load.own[0] / 100)} of one CPU at the start, {percent(load.own[-1] / 100)} at the end: "
        "other processes took the rest."
    )
