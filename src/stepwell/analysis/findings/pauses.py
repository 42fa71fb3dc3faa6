"""Time outside any span: long pauses after some steps, or most of the time of each step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from stepwell._core.text import duration, listed, percent
from stepwell.analysis.findings.bursts import find_burst, frequency, is_accidental
from stepwell.analysis.findings.data_bound import slow_epochs
from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.timeline import Burst, phase_of_span
from stepwell.analysis.timeline.phases import (
    CODE_MASK,
    NOTHING,
    OWN_NAME,
    OWN_SPAN,
    TRAINING,
    code_of,
    phase_word,
)

WARN = 0.1
CRITICAL = 0.3
LONG_NS = 10_000_000
"""Shorter pauses are not reported."""
PHASE = "other"
MOST = 0.6
"""Share of the wall time. Less may be the loss, metrics and logging of each step."""
SAMPLE = 100
"""Number of steps in the middle of a run that are read to find the place of the uncovered time."""
GPU = "system/gpu_"


def find_uncovered_time(facts: Facts) -> Iterator[Finding]:
    """Yield at most one finding for the run, about the median rank.

    Uncovered code that takes about as long in each step is part of the loop: the loss, metrics, waiting for a
    device. It has a line in the time table and is reported only if it takes most of the time. Pauses in only
    some steps are reported from a much smaller share on.
    """
    if not facts.has_parts:
        return
    share, ns, rank = facts.share(PHASE)
    if share < WARN:
        return
    rows = facts.steady.filter(rank=rank)
    burst = _pauses(facts, rows, ns)
    if burst is not None:
        yield _finding(facts, burst, burst.lost_ns / int(rows["period_ns"].sum()))
    else:
        yield from _uncovered(facts, rows)


def _pauses(facts: Facts, rows: pl.DataFrame, spent_ns: int) -> Burst | None:
    """Return the pauses of some steps if they are most of the uncovered time, else None."""
    burst = find_burst(rows, PHASE)
    if burst is None or burst.lost_ns < spent_ns / 2 or burst.slow_ns < LONG_NS:
        return None
    if is_accidental(facts, burst):
        return None
    if (epochs := slow_epochs(facts)) is not None and epochs.follow(burst.steps):
        return None
    return burst


def _uncovered(facts: Facts, rows: pl.DataFrame) -> Iterator[Finding]:
    """Yield a finding if uncovered code takes most of the time, in most steps.

    Not with a GPU: passes only start work on it, and waiting for it is often not covered. Not with stragglers
    either: ranks may wait for them outside any span.
    """
    ns = facts.table.get(PHASE, 0)
    in_most = int((rows[PHASE] >= rows["period_ns"] / 2).sum())
    if ns < MOST * facts.running_ns or in_most < rows.height / 2:
        return
    if facts.machine["name"].str.starts_with(GPU).any() or facts.stragglers:
        return
    share = facts.part_of_wall(ns)
    each, whole = (float(np.median(rows[name].to_numpy())) for name in (PHASE, "period_ns"))
    yield Finding(
        "uncovered-time",
        "warning",
        f"Code outside any span takes {percent(share)} of the wall time: {duration(each)} of each "
        f"{duration(whole)} step{_place(facts, rows)}.",
        {"phase": PHASE, "share": share, "ns": ns, "typical_ns": each, "step_ns": whole},
        advice='Put it in `with stepwell.span("…"):` to see what it is.',
        cost_ns=ns,
    )


def _place(facts: Facts, rows: pl.DataFrame) -> str:
    """Return the place of most of the uncovered time in a step as a continuation; "" if it is spread out."""
    sample = rows[max(0, (rows.height - SAMPLE) // 2) :][:SAMPLE]
    rank, attempt = sample.row(0)[:2]
    steps = sample.filter(attempt=attempt)["step"]
    spans = (
        facts.main_spans(rank)
        .filter(pl.col("step").is_between(steps.min(), steps.max()), attempt=attempt)
        .select("name", "category", "start_ns", "duration_ns")
        .sort("start_ns")
        .collect()
    )
    gaps: dict[tuple[str, str], int] = {}
    before, end = None, 0
    for name, category, start, length in spans.iter_rows():
        code = code_of(name, category)
        if not code & OWN_NAME and code & CODE_MASK in (TRAINING, NOTHING):
            continue
        phase = phase_of_span(name, category) or f"{OWN_SPAN}{name}"
        if before is not None and start > end:
            key = before, phase
            gaps[key] = gaps.get(key, 0) + start - end
        if start + length > end:
            before, end = phase, start + length
    if not gaps:
        return ""
    (before, after), longest = max(gaps.items(), key=lambda gap: gap[1])
    if longest < sum(gaps.values()) / 2:
        return ""
    if after == "data":
        return f", mostly after {_pass(before)}"
    return f", mostly between {_pass(before)} and {_pass(after)}"


def _pass(phase: str) -> str:
    return "the optimizer step" if phase == "optimizer" else phase_word(phase)


def _finding(facts: Facts, burst: Burst, share: float) -> Finding:
    return Finding(
        "pauses",
        "critical" if share >= CRITICAL else "warning",
        f"A pause of {duration(burst.slow_ns)} outside any span follows {frequency(burst, 'step')} "
        f"({listed(burst.steps)}). These pauses take {percent(facts.part_of_wall(burst.lost_ns))} of the "
        "wall time.",
        {
            "phase": PHASE,
            "share": share,
            "ns": burst.lost_ns,
            "period": burst.period,
            "slow_ns": burst.slow_ns,
        },
        burst.steps,
        advice='If this work is intended, put it in a span, such as `with stepwell.span("rollout"):`. The '
        "time table then has a line for it.",
        cost_ns=burst.lost_ns,
    )
