"""Training that waits for its data: all the time, or for some batches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.findings.recurring import frequency, is_everywhere, is_one_time, sharpened
from stepwell.analysis.findings.wording import duration, listed, percent
from stepwell.analysis.time import Burst
from stepwell.analysis.time.patterns import EXPECTED

WARN = 0.2
CRITICAL = 0.5
IN_BURSTS = 0.5
"""Of the waiting, what bursts must explain to be what is told of it."""
EVEN = 0.8
"""The step in the middle tells how long steps wait if its share is that near to the share of all."""
ROWS = 1 << 20
WINDOW = 20
"""So many steps in a row at least are a stretch of the run …"""
STRETCH = 0.03
"""… if they waited for so much of its time."""


def rule(facts: Facts) -> Iterator[Finding]:
    """One finding for the run; a single rank that waits is a straggler and none of this."""
    ns, share = facts.share("data")
    burst = _burst(facts, ns)
    if share >= WARN / 2 and (burst is None or burst.period is None) and _is_everywhere(facts):
        # Other programs had the processor: what is usual tells.
        waits, step = _typical(facts)
        burst, usual = None, min(share, waits / step)
        ns, share = int(ns * usual / share), usual
    if share < (WARN / 2 if burst else WARN):
        yield from _for_a_while(facts)
        return
    severity = "critical" if share >= CRITICAL else "warning"
    evidence = {"phase": "data", "share": share, "ns": ns, "typical_ns": _typical(facts)[0]}
    if burst is None:
        yield Finding(
            "data-bound",
            severity,
            f"Training waits for data {percent(share)} of the time: {_each(facts, share)}.",
            evidence,
            _ends(facts),
            advice="More DataLoader workers or prefetching, cheaper transforms, data closer by.",
            link=facts.command("show"),
            cost_ns=ns,
        )
        return
    yield Finding(
        "data-bound",
        severity,
        f"Training waits for data {percent(share)} of the time, mostly for {frequency(burst, 'batch')}: "
        f"it takes {duration(burst.slow_ns)}, the others {duration(burst.typical_ns)} "
        f"({listed(burst.steps)}).",
        {**evidence, "period": burst.period, "burst_share": burst.share, "slow_ns": burst.slow_ns},
        burst.steps,
        advice=_advice(facts, burst),
        link=facts.command("show"),
        cost_ns=ns,
    )


def _for_a_while(facts: Facts) -> Iterator[Finding]:
    """Steps in a row that waited for data, in a run that does not on the whole."""
    table = _of_all_ranks(facts).sort("attempt", "step")
    if table.height < 2 * WINDOW:
        return
    data, period = table["data"].to_numpy(), table["period_ns"].to_numpy()
    waits = data > WARN * period
    near = np.convolve(waits, np.ones(WINDOW), mode="same") >= WINDOW / 2
    edges = np.flatnonzero(np.diff(np.concatenate(([0], near.astype(int), [0]))))
    usual = float(np.median(data))
    for low, high in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        at = low + np.flatnonzero(waits[low:high])
        lost = int((data[at] - usual).sum())
        if len(at) < WINDOW or lost < STRETCH * period.sum():
            continue
        first, last = int(table["step"][int(at[0])]), int(table["step"][int(at[-1])])
        slow = float(np.median(data[at]))
        yield Finding(
            "data-bound",
            "warning",
            f"From step {first} to {last} training waits for data: {duration(slow)} of the "
            f"{duration(float(np.median(period[at])))} that a step takes there; else it is "
            f"{duration(usual)}.",
            {"phase": "data", "ns": lost, "slow_ns": slow, "typical_ns": usual},
            (first, last),
            advice="Find out what the data of these steps have in common, or what else used the disk.",
            link=facts.command("show"),
            cost_ns=lost,
        )
        return


def _of_all_ranks(facts: Facts) -> pl.DataFrame:
    """Waiting and time of each step on the rank that has least: one that waits alone is a straggler."""
    keys, least = ("attempt", "step"), pl.col("data", "period_ns").min()
    # Validation and checkpoints after a step are no part of how it waits.
    whole = pl.col("period_ns") - pl.sum_horizontal(EXPECTED)
    # Some rows at a time: there may be very many.
    parts = [
        rows.select(*keys, "data", whole.alias("period_ns")).group_by(keys).agg(least)
        for rows in facts.steady.iter_slices(ROWS)
    ]
    return pl.concat(parts).group_by(keys).agg(least) if parts else facts.steady.clear()


def _burst(facts: Facts, ns: int) -> Burst | None:
    found = [b for b in facts.bursts if b.phase == "data" and b.lost_ns >= IN_BURSTS * ns]
    burst = sharpened(facts, found[0]) if found else None
    return None if burst is None or is_one_time(burst) else burst


def _advice(facts: Facts, burst: Burst) -> str:
    epochs = facts.steps.filter(pl.col("rank") == burst.rank).select("step", "epoch")
    first = epochs.drop_nulls().group_by("epoch").agg(pl.col("step").min())["step"].to_list()
    if len(first) > 2 and sum(step in first for step in burst.steps) >= 0.8 * len(burst.steps):
        return "These are the first batches of epochs: persistent_workers=True keeps the workers."
    return (
        "Prefetch further ahead, or find what is special about these batches (a slow file, a lock)."
    )


def _is_everywhere(facts: Facts) -> bool:
    return all(is_everywhere(facts, rank, ["data"]) for rank in facts.loop_ns)


def _typical(facts: Facts) -> tuple[float, float]:
    """How long the step in the middle waits for its data, and how long it takes."""
    data, period = (facts.steady[name].median() for name in ("data", "period_ns"))
    return _float(data), max(1.0, _float(period))


def _each(facts: Facts, share: float) -> str:
    """How long a step waits: the one in the middle, unless some wait long and others not at all."""
    typical, step = _typical(facts)
    if EVEN <= typical / step / share <= 1 / EVEN:
        return f"{duration(typical)} of the {duration(step)} that a step takes"
    step = _float(facts.steady["period_ns"].mean())
    return f"{duration(share * step)} of the {duration(step)} that a step takes on average"


def _float(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _ends(facts: Facts) -> tuple[int, ...]:
    numbers = facts.steady["step"]
    return (int(numbers[0]), int(numbers[-1]))
