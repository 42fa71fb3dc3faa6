"""Ranks that the others wait for, and what these ranks do during that time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepwell._core.text import duration, listed, percent
from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.ranks.stragglers import ALONE
from stepwell.analysis.timeline.intervals import Ints
from stepwell.analysis.timeline.phases import OWN_NAME, code_of, phase_word
from stepwell.analysis.timeline.step_phases import NEVER
from stepwell.analysis.timeline.tables import side_by_side

if TYPE_CHECKING:
    from stepwell.analysis.ranks import Straggler

LEAST = 0.02
LEAST_MEANT = 0.05
"""Least share of the running time; the second for validation, which is expected to take time."""
LEAST_ONCE_NS = 1_000_000_000
"""Least cost of a one-off delay. On a busy machine a process may wait nearly as long for the CPU."""
CRITICAL = 0.2
MOST = 5
MOST_STEPS = 50
"""Most steps in which the spans of a rank are read."""
LATE = 0.25
"""Share of the mean delay: a rank that is later than the others by this much is slow in a step."""
BLOCK = 1 << 14
"""Steps processed together, to bound memory."""
MORE = 1.1
"""All slow steps are reported if there are this many times as many as costly ones."""
GARBAGE = "garbage collection"
MEANT = {"validation": "validates", "testing": "tests", "restore": "loads checkpoints"}
UNCOVERED = ("idle", "training")
"""Phases of uncovered code, between steps and in them."""


def find_stragglers(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each rank and phase, the costliest first. Checkpoints have their own rule."""
    if not facts.wall_ns or facts.steady.height < 2 * 10:
        return
    costly = (straggler for straggler in facts.stragglers if _is_costly(facts, straggler))
    for straggler in islice(costly, MOST):
        share = min(1.0, straggler.ns / facts.wall_ns)
        yield _finding(facts, _with_all_steps(facts, straggler), share)


def _is_costly(facts: Facts, straggler: Straggler) -> bool:
    if straggler.kind == "one-off" and straggler.ns < LEAST_ONCE_NS:
        return False
    least = LEAST_MEANT if straggler.phase in MEANT else LEAST
    return straggler.phase != "checkpoint" and straggler.ns >= least * facts.running_ns


def _with_all_steps(facts: Facts, straggler: Straggler) -> Straggler:
    """Return the straggler with all steps in which the rank is slower, not only the costliest ones.

    It is slower if it exceeds the median of the other ranks by a good part of the mean delay.
    """
    if straggler.kind != "chronic" or straggler.phase not in ALONE:
        return straggler
    least = LATE * straggler.ns / max(1, len(straggler.steps))
    total, steps, usual = 0, [], []
    for attempt in side_by_side(facts.steps, facts.steps[straggler.phase]):
        (ns,), is_it = attempt.columns, attempt.ranks == straggler.rank
        total += len(attempt.steps)
        if is_it.any() and not is_it.all():
            others = _medians(ns[~is_it])
            is_late = ns[is_it][0] - others >= least
            steps.append(attempt.steps[is_late])
            usual.append(others[is_late])
    count = sum(map(len, steps))
    if count <= len(straggler.steps) * MORE:
        return straggler
    typical = int(np.median(np.concatenate(usual)))
    slow = tuple(np.unique(np.concatenate(steps)).tolist())
    return replace(straggler, steps=slow, typical_ns=typical, share=count / total)


def _medians(ns: Ints) -> NDArray[np.float64]:
    """Return the median of each step over the ranks that have it; a very large number if none does."""
    medians = np.empty(ns.shape[1])
    for low in range(0, ns.shape[1], BLOCK):
        block = ns[:, low : low + BLOCK]
        count = np.count_nonzero(block >= 0, axis=0)
        if (count == len(block)).all():
            medians[low : low + BLOCK] = np.median(block, axis=0)
        else:
            ordered = np.sort(np.where(block >= 0, block, NEVER), axis=0).astype(float)
            middle = np.stack((np.maximum(count - 1, 0) // 2, count // 2))
            medians[low : low + BLOCK] = np.take_along_axis(ordered, middle, axis=0).mean(axis=0)
    return medians


def _finding(facts: Facts, straggler: Straggler, share: float) -> Finding:
    span = _own_span(facts, straggler) if straggler.phase in UNCOVERED else None
    phase = GARBAGE if span is None and _is_garbage(facts, straggler) else straggler.phase
    each = straggler.ns // max(1, len(straggler.steps))
    others = "the other rank" if facts.ranks == 2 else "the other ranks"
    return Finding(
        "straggler",
        "critical" if share >= CRITICAL and straggler.kind == "chronic" else "warning",
        f"{_symptom(straggler, phase, span, each, _own_ns(facts, straggler))} Waiting for it costs {others} "
        f"{percent(share)} of the wall time.",
        {
            "phase": phase,
            "span": span,
            "kind": straggler.kind,
            "ns": straggler.ns,
            "typical_ns": straggler.typical_ns,
            "share": share,
            "period": straggler.period,
            "waited_steps": list(straggler.waited),
        },
        straggler.steps,
        (straggler.rank,),
        _advice(straggler, phase, span),
        facts.command("plot", "--by-rank"),
        straggler.ns,
    )


def _own_ns(facts: Facts, straggler: Straggler) -> int | None:
    """Return the median time of the phase on the slow rank in those steps; None if steps do not have it."""
    if straggler.phase not in facts.steps.columns:
        return None
    rows = facts.steps.filter(pl.col("step").is_in(straggler.steps), rank=straggler.rank)
    median = rows[straggler.phase].median()
    return int(median) if isinstance(median, int | float) else None


def _symptom(straggler: Straggler, phase: str, span: str | None, each: int, own: int | None) -> str:
    who, long = f"Rank {straggler.rank}", duration(each)
    often = _often(straggler, "after" if phase in (*MEANT, "idle") else "in")
    if span is not None:
        return f"{who} spends {long} in the span {span!r} {often}."
    if phase in MEANT and straggler.typical_ns < each / 10:
        return f"{who} {MEANT[phase]} alone for {long} {often}."
    if phase in UNCOVERED:
        return f"{who} spends {long} in code outside any span {often}."
    if phase == GARBAGE:
        return f"{who} spends {long} in garbage collection {often}."
    work = "getting its data" if phase == "data" else phase_word(phase)
    # The rank's own time is more precise: the others may have waited in fewer steps than it was slow in.
    slow = own if own is not None and own > straggler.typical_ns else straggler.typical_ns + each
    took = f"{duration(slow)} instead of {duration(straggler.typical_ns)}"
    return f"{who} is slower than the others {often}: {work} takes {took}."


def _often(straggler: Straggler, at: str) -> str:
    if straggler.kind == "one-off":
        return f"{at} {listed(straggler.steps)}"
    if straggler.share > 0.9:
        return f"{at} nearly all steps"
    if straggler.period is not None:
        return f"every {straggler.period} steps ({at} {listed(straggler.steps)})"
    if straggler.steps[-1] - straggler.steps[0] < 1.2 * len(straggler.steps):
        return f"{at} steps {straggler.steps[0]} to {straggler.steps[-1]}"
    return f"{at} {percent(straggler.share)} of the steps ({listed(straggler.steps)})"


def _advice(straggler: Straggler, phase: str, span: str | None) -> str:
    rank = straggler.rank
    if span is not None:
        return f"Do it in a background thread or less often, or check why it takes so long on rank {rank}."
    if phase == "restore":
        return "Load checkpoints on all ranks at the same time."
    if phase in MEANT:
        return (
            f"Run {phase_word(phase)} on all ranks, each with its share of the data, or less often."
        )
    if phase == "data":
        return f"Check the data of rank {rank}: its shard, its disk, the load of its host."
    if phase in UNCOVERED:
        return (
            f"Check what only rank {rank} does there, such as logging or saving. Put it in "
            '`with stepwell.span("name"):` to see its name here.'
        )
    if phase == GARBAGE:
        return f"Call gc.freeze() after setup on rank {rank}, and keep fewer Python objects."
    return f"Check the host and device of rank {rank}: clocks, other jobs, larger batches."


def _windows(facts: Facts, straggler: Straggler) -> list[tuple[int, int]]:
    """Return start and end of the slow steps of the rank, at most ``MOST_STEPS``; each ends with the next."""
    rows = facts.steps.filter(rank=straggler.rank)
    wanted = rows["step"].is_in(list(straggler.steps[:MOST_STEPS])).to_numpy()
    starts = rows["start_ns"].to_numpy()
    ends = np.append(starts[1:], starts[-1:] + rows["duration_ns"].to_numpy()[-1:] + straggler.ns)
    return [(int(starts[at]), int(ends[at])) for at in np.flatnonzero(wanted)]


def _own_span(facts: Facts, straggler: Straggler) -> str | None:
    """Return the user's span in which the rank spent at least half of the time; None if there is none."""
    windows = _windows(facts, straggler)
    totals: dict[str, int] = {}
    starts = pl.col("start_ns")
    spans = (
        facts.main_spans(straggler.rank)
        .filter(pl.any_horizontal([(starts >= low) & (starts < high) for low, high in windows]))
        .select("name", "category", "duration_ns")
        .collect()
    )
    for name, category, ns in spans.iter_rows():
        if code_of(name, category or "") & OWN_NAME:
            totals[name] = totals.get(name, 0) + ns
    name = max(totals, key=totals.__getitem__, default=None)
    if name is None or totals[name] * len(straggler.steps) < straggler.ns * len(windows) / 2:
        return None
    return name


def _is_garbage(facts: Facts, straggler: Straggler) -> bool:
    """Return whether garbage collection accounts for at least half of the time."""
    slow = pl.col("step").is_in([*straggler.steps, *straggler.waited])
    rows = facts.steps.filter(slow, rank=straggler.rank)
    return 2 * int(rows[GARBAGE].sum()) >= straggler.ns
