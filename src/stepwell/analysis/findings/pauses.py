"""Time in no span: long pauses after some steps, or most of the time of each step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from stepwell.analysis.findings.data_bound import slow_epochs
from stepwell.analysis.findings.facts import FEWEST, Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.findings.machine_load import is_starved
from stepwell.analysis.findings.recurring import is_everywhere, recurring
from stepwell.analysis.findings.wording import duration, listed, ordinal, percent, phase_word
from stepwell.analysis.ranks.stacks import MAIN
from stepwell.analysis.time import Burst, phase_of_span
from stepwell.analysis.time.words import CODE_MASK, NOTHING, OWN_NAME, OWN_SPAN, TRAINING, code_of

WARN = 0.1
CRITICAL = 0.3
LONG_NS = 10_000_000
"""Shorter pauses are not worth a finding."""
PHASE = "other"
MOST = 0.6
"""Of the wall time: in each step less than this may be the loss, metrics, logging."""
SAMPLE = 100
"""Steps in the middle of a run that show where in a step the uncovered time is."""
GPU = "system/gpu_"


def rule(facts: Facts) -> Iterator[Finding]:
    """At most one finding for the run, about the median rank.

    Code in no span that takes about as long in each step is part of the loop: the loss, metrics, waiting for
    a device. It has a line in the time table, and is a finding only if it takes most of the time. Pauses that
    only some steps have are one much earlier.
    """
    if facts.steady.height < FEWEST or not facts.has_parts:
        return
    spent = facts.spent_ns(PHASE)
    shares = sorted((spent[rank] / whole, rank) for rank, whole in facts.loop_ns.items() if whole)
    if not shares:
        return
    share, rank = shares[(len(shares) - 1) // 2]
    if share < WARN:
        return
    burst = _pauses(facts, rank, spent[rank])
    if burst is not None:
        yield _finding(facts, burst, burst.lost_ns / facts.loop_ns[rank])
    else:
        yield from _uncovered(facts, rank)


def _pauses(facts: Facts, rank: int, spent_ns: int) -> Burst | None:
    """The pauses of some steps, if they are most of the time in no span."""
    rows = facts.steady.filter(pl.col("rank") == rank)
    burst = recurring(rows["step"].to_numpy(), rows[PHASE].to_numpy(), PHASE, rank)
    if burst is None or burst.lost_ns < spent_ns / 2 or burst.slow_ns < LONG_NS:
        return None
    if burst.period is None and (is_starved(facts, rank) or is_everywhere(facts, rank, [PHASE])):
        return None
    if (epochs := slow_epochs(facts)) is not None and epochs.follow(burst.steps):
        return None
    return burst


def _uncovered(facts: Facts, rank: int) -> Iterator[Finding]:
    """Code that no span covers takes most of the time, in most steps.

    Not with a GPU: passes only start its work there, and what waits for it is often in no span. Not with
    stragglers either: ranks may wait for them in no span.
    """
    ns = facts.table.get(PHASE, 0)
    rows = facts.steady.filter(pl.col("rank") == rank)
    in_most = (rows[PHASE] >= rows["period_ns"] / 2).mean()
    if ns < MOST * facts.running_ns or not isinstance(in_most, float) or in_most < 0.5:
        return
    if facts.machine["name"].str.starts_with(GPU).any() or facts.stragglers:
        return
    share = facts.part_of_wall(ns)
    each, whole = (float(np.median(rows[name].to_numpy())) for name in (PHASE, "period_ns"))
    yield Finding(
        "uncovered-time",
        "warning",
        f"{percent(share)} of the wall time is in code that no span covers: {duration(each)} of each "
        f"{duration(whole)} step{_place(facts, rank)}.",
        {"phase": PHASE, "share": share, "ns": ns, "typical_ns": each, "step_ns": whole},
        advice='Put it into `with stepwell.span("…")` to see what it is.',
        link=facts.command("show"),
        cost_ns=ns,
    )


def _place(facts: Facts, rank: int) -> str:
    """Where in a step most of the uncovered time is, to follow its length; "" if it is in no one place."""
    rows = facts.steady.filter(pl.col("rank") == rank)
    sample = rows[max(0, (rows.height - SAMPLE) // 2) :][:SAMPLE]
    attempt, steps = sample["attempt"][0], sample.filter(attempt=sample["attempt"][0])["step"]
    spans = (
        facts.run.spans()
        .filter(rank=rank, attempt=attempt, thread=MAIN)
        .filter(pl.col("process").is_in([d["process"] for d in facts.documents]))
        .filter(pl.col("step").is_between(steps.min(), steps.max()))
        .filter(pl.col("duration_ns").is_not_null())
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
    often = (
        f"After every {ordinal(burst.period)} step"
        if burst.period
        else f"After 1 step in {max(2, round(1 / burst.share))}"
    )
    return Finding(
        "pauses",
        "critical" if share >= CRITICAL else "warning",
        f"{often} there is a pause of {duration(burst.slow_ns)} in no span ({listed(burst.steps)}). "
        f"These pauses take {percent(facts.part_of_wall(burst.lost_ns))} of the wall time.",
        {
            "phase": PHASE,
            "share": share,
            "ns": burst.lost_ns,
            "period": burst.period,
            "slow_ns": burst.slow_ns,
        },
        burst.steps,
        advice='If you want this work, put it into a span, with stepwell.span("rollout"): … The time table '
        "then has a line for it.",
        link=facts.command("show"),
        cost_ns=burst.lost_ns,
    )
