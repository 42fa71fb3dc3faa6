"""Ranks that the others wait for, and what they do meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.findings.wording import capital, duration, listed, percent, phase_word
from stepwell.analysis.ranks.stragglers import ALONE
from stepwell.analysis.time.words import OWN_NAME, code_of

if TYPE_CHECKING:
    from stepwell.analysis.ranks import Straggler

LEAST = 0.02
LEAST_MEANT = 0.05
"""Share of the wall time for a finding; the second for validation, which is meant to take time."""
LEAST_ONCE_NS = 1_000_000_000
"""On a busy machine a process may wait for the processor for nearly as long."""
CRITICAL = 0.2
MOST = 5
MOST_STEPS = 50
"""Steps in which the spans of a rank are looked up."""
LATE = 0.25
MORE = 1.1
"""So many times as many steps must be slow, for all of them to be named."""
GARBAGE = "garbage collection"
MEANT = {"validation": "validates", "testing": "tests", "restore": "loads checkpoints"}
UNCOVERED = ("idle", "training")
"""Code in no span that has a phase, between steps and in them."""


def rule(facts: Facts) -> Iterator[Finding]:
    """One finding for each rank and reason, the costliest first. Checkpoints have a rule of their own."""
    if not facts.wall_ns or facts.steady.height < 2 * 10:
        return
    told = 0
    for one in facts.stragglers:
        share = min(1.0, one.ns / facts.wall_ns)
        least = LEAST_MEANT if one.phase in MEANT else LEAST
        if one.phase == "checkpoint" or one.ns < least * facts.running_ns or told == MOST:
            continue
        if one.kind == "one-off" and one.ns < LEAST_ONCE_NS:
            continue
        told += 1
        yield _finding(facts, _with_all_steps(facts, one), share)


def _with_all_steps(facts: Facts, one: Straggler) -> Straggler:
    """The same with all steps in which the rank takes longer, not only those that cost the most.

    It takes longer where it is later than the other ranks, in the middle, by a good part of the usual delay.
    """
    if one.kind != "chronic" or one.phase not in ALONE:
        return one
    others = pl.col(one.phase).filter(pl.col("rank") != one.rank).median()
    mine = pl.col(one.phase).filter(pl.col("rank") == one.rank).sum()
    each = facts.steps.group_by("attempt", "step").agg(mine.alias("mine"), others.alias("others"))
    late = pl.col("mine") - pl.col("others") >= LATE * one.ns / max(1, len(one.steps))
    slow = each.filter(late)
    if slow.height <= len(one.steps) * MORE:
        return one
    typical = int(np.median(slow["others"].to_numpy()))
    steps = tuple(slow["step"].unique().sort().to_list())
    return replace(one, steps=steps, typical_ns=typical, share=slow.height / each.height)


def _finding(facts: Facts, one: Straggler, share: float) -> Finding:
    span = _own_span(facts, one) if one.phase in UNCOVERED else None
    phase = GARBAGE if span is None and _is_garbage(facts, one) else one.phase
    each = one.ns // max(1, len(one.steps))
    wait = "waits" if facts.ranks == 2 else "wait"
    others = "the other rank" if facts.ranks == 2 else "the other ranks"
    return Finding(
        "straggler",
        "critical" if share >= CRITICAL and one.kind == "chronic" else "warning",
        f"{_symptom(one, phase, span, each, _own_ns(facts, one))} {capital(others)} {wait} for it: "
        f"{percent(share)} of the wall time.",
        {
            "phase": phase,
            "span": span,
            "kind": one.kind,
            "ns": one.ns,
            "typical_ns": one.typical_ns,
            "share": share,
            "period": one.period,
            "waited_steps": list(one.waited),
        },
        one.steps,
        (one.rank,),
        _advice(one, phase, span),
        facts.command("plot", "--by-rank"),
        one.ns,
    )


def _own_ns(facts: Facts, one: Straggler) -> int | None:
    """How long the phase takes on the slow rank, in the middle of those steps; None where steps have no such
    phase.
    """
    if one.phase not in facts.steps.columns:
        return None
    mine = facts.steps.filter(pl.col("rank") == one.rank, pl.col("step").is_in(one.steps))
    median = mine[one.phase].median()
    return int(median) if isinstance(median, int | float) else None


def _symptom(one: Straggler, phase: str, span: str | None, each: int, own: int | None) -> str:
    who, long = f"Rank {one.rank}", duration(each)
    often = _often(one, "after" if phase in (*MEANT, "idle") else "in")
    if span is not None:
        return f"{who} spends {long} in the span {span!r} {often}."
    if phase in MEANT and one.typical_ns < each / 10:
        return f"{who} {MEANT[phase]} alone for {long} {often}."
    if phase in UNCOVERED:
        return f"{who} spends {long} in code that no span covers {often}."
    if phase == GARBAGE:
        return f"{who} collects garbage for {long} {often}."
    what = "in getting its data" if phase == "data" else f"in {phase_word(phase)}"
    # Others may have waited in fewer steps than it was slow in, so what they waited says less.
    slow = own if own is not None and own > one.typical_ns else one.typical_ns + each
    took = f"{duration(slow)} against {duration(one.typical_ns)}"
    return f"{who} is slower than the others {what}, {often}: {took}."


def _often(one: Straggler, at: str) -> str:
    if one.kind == "one-off":
        return f"{at} {listed(one.steps)}"
    if one.share > 0.9:
        return f"{at} nearly all steps"
    if one.period is not None:
        return f"every {one.period} steps ({at} {listed(one.steps)})"
    if one.steps[-1] - one.steps[0] < 1.2 * len(one.steps):
        return f"{at} steps {one.steps[0]} to {one.steps[-1]}"
    return f"{at} {percent(one.share)} of the steps ({listed(one.steps)})"


def _advice(one: Straggler, phase: str, span: str | None) -> str:
    rank = one.rank
    if span is not None:
        return f"Do it on a background thread, less often, or look at why it takes so long on rank {rank}."
    if phase in MEANT:
        return (
            f"Run {phase_word(phase)} on all ranks, each with its share of the data, or less often."
        )
    if phase == "data":
        return f"Look at the data of rank {rank}: its shard, its disk, the load of its host."
    if phase in UNCOVERED:
        return (
            f"Look at what rank {rank} does there that the others do not, such as logging or saving; "
            'with stepwell.span("name") around it the report names it.'
        )
    if phase == GARBAGE:
        return f"Call gc.freeze() after setting up on rank {rank}, and keep fewer Python objects."
    return f"Look at the host and device of rank {rank}: clocks, other jobs, larger batches."


def _windows(facts: Facts, one: Straggler) -> list[tuple[int, int]]:
    """When the rank did the steps in which it was slow, each until the next one began; some of many."""
    rows = facts.steps.filter(pl.col("rank") == one.rank).select("step", "start_ns", "duration_ns")
    wanted = rows["step"].is_in(list(one.steps[:MOST_STEPS])).to_numpy()
    starts = rows["start_ns"].to_numpy()
    ends = np.append(starts[1:], starts[-1:] + rows["duration_ns"].to_numpy()[-1:] + one.ns)
    return [(int(starts[at]), int(ends[at])) for at in np.flatnonzero(wanted)]


def _own_span(facts: Facts, one: Straggler) -> str | None:
    """The span without a phase in which the rank spent at least half of the time; None if there is none."""
    windows = _windows(facts, one)
    totals: dict[str, int] = {}
    columns = {"name", "category", "start_ns", "duration_ns", "thread"}
    for tables in facts.run.by_process(one.rank):
        if tables.process.about["role"] == "worker":
            continue
        for frame in tables.spans(columns):
            starts = pl.col("start_ns")
            is_there = pl.any_horizontal(
                [(starts >= low) & (starts < high) for low, high in windows]
            )
            rows = frame.filter((pl.col("thread") == "MainThread") & is_there)
            for name, category, ns in rows.select("name", "category", "duration_ns").iter_rows():
                if code_of(name, category or "") & OWN_NAME and ns:
                    totals[name] = totals.get(name, 0) + int(ns)
    name = max(totals, key=totals.__getitem__, default=None)
    if name is None or totals[name] * len(one.steps) < one.ns * len(windows) / 2:
        return None
    return name


def _is_garbage(facts: Facts, one: Straggler) -> bool:
    """Whether garbage collections account for at least half of the time."""
    rows = facts.steps.filter(pl.col(GARBAGE) > 0)
    mine = rows.filter(
        (pl.col("rank") == one.rank) & pl.col("step").is_in([*one.steps, *one.waited])
    )
    return 2 * int(mine[GARBAGE].sum()) >= one.ns
