"""Training that waits for data: in all steps, for some batches, for a while, or when each epoch starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from stepwell._core.text import duration, listed, percent
from stepwell.analysis.findings.bursts import (
    affects_all_phases,
    frequency,
    is_single_episode,
    refined,
)
from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.timeline import Burst
from stepwell.analysis.timeline.intervals import Ints
from stepwell.analysis.timeline.patterns import EXPECTED
from stepwell.analysis.timeline.step_phases import NEVER
from stepwell.analysis.timeline.tables import side_by_side

WARN = 0.2
CRITICAL = 0.5
IN_BURSTS = 0.5
"""Share of the waiting that a burst must explain to be reported."""
EVEN = 0.8
"""The median step is reported if its share of waiting is this close to the share in all steps."""
WINDOW = 20
"""Least number of waiting steps in a part of the run …"""
STRETCH = 0.03
"""… and their least share of its time."""
FEWEST_EPOCHS = 3
MOST_EPOCHS = 0.8
"""Least share of epochs that start with a slow batch."""
TIMES = 5.0
LEAST_START_NS = 20_000_000
"""A first batch is slow if it takes this many times as long as others, and this much longer."""


@dataclass(frozen=True)
class SlowEpochs:
    """Epochs that start with a slow batch, usually because DataLoader workers start."""

    steps: tuple[int, ...]
    """The first steps of these epochs."""
    slow_ns: float
    typical_ns: float
    lost_ns: int
    """Waiting for first batches beyond the typical wait, including the first epoch."""

    def follow(self, steps: Sequence[int]) -> bool:
        """Return whether slow epochs follow most of these steps."""
        last = {step - 1 for step in self.steps}
        return sum(step in last for step in steps) > len(steps) / 2


def slow_epochs(facts: Facts) -> SlowEpochs | None:
    """Return the epochs that start with a slow batch; None if most do not, or there are fewer than 3."""
    is_first = pl.col("rank") == pl.col("rank").min()
    table = facts.steps.filter(is_first).select("attempt", "epoch", "step", "data")
    first = table.drop_nulls("epoch").group_by("attempt", "epoch").agg(pl.all().first())
    later = first.filter(pl.col("epoch") > pl.col("epoch").min()).sort("step")
    rest = table.join(first, on=("attempt", "step"), how="anti")["data"]
    if later.height < FEWEST_EPOCHS - 1 or rest.len() < WINDOW:
        return None
    typical, slow = float(rest.median()), float(later["data"].median())  # type: ignore[arg-type]
    is_slow = later["data"] > max(TIMES * typical, typical + LEAST_START_NS)
    if is_slow.sum() < MOST_EPOCHS * later.height:
        return None
    lost = int((first["data"] - int(typical)).clip(0).sum())
    return SlowEpochs(tuple(later["step"].to_list()), slow, typical, lost)


def find_waiting_for_data(facts: Facts) -> Iterator[Finding]:
    """Yield at most one finding for the run. A single rank that waits is reported as a straggler."""
    share, ns, _ = facts.share("data")
    epochs = slow_epochs(facts)
    if epochs is not None and epochs.lost_ns >= max(WARN / 2 * facts.running_ns, ns / 2):
        yield _at_epochs(facts, epochs)
        return
    burst = _burst(facts, ns)
    if (
        share >= WARN / 2
        and (burst is None or burst.period is None)
        and all(affects_all_phases(facts, rank, ["data"]) for rank in facts.spent["rank"])
    ):
        # Other programs used the CPU: judge by the median step.
        typical, step = _typical(facts)
        burst, usual = None, min(share, typical / step)
        ns, share = int(ns * usual / share), usual
    if share < (WARN / 2 if burst else WARN):
        yield from _for_a_while(facts)
        return
    evidence = {"phase": "data", "share": share, "ns": ns, "typical_ns": _typical(facts)[0]}
    if burst is None:
        numbers = facts.steady["step"]
        steps: tuple[int, ...] = numbers[0], numbers[-1]
        which = f" ({_each(facts, share)})"
        advice = "Try more DataLoader workers, prefetching, cheaper transforms or faster storage."
    else:
        evidence |= {"period": burst.period, "burst_share": burst.share, "slow_ns": burst.slow_ns}
        steps = burst.steps
        slow, typical_batch = duration(burst.slow_ns), duration(burst.typical_ns)
        which = f", mostly for {frequency(burst, 'batch')}: it takes {slow}, the others {typical_batch} "
        which += f"({listed(steps)})"
        advice = (
            "Prefetch more batches, or find out why these batches are slow (a slow file, a lock)."
        )
    all_ns = facts.table["data"]
    yield Finding(
        "data-bound",
        "critical" if share >= CRITICAL else "warning",
        f"Waiting for data takes {percent(facts.part_of_wall(all_ns))} of the wall time{which}.",
        evidence,
        steps,
        advice=advice,
        cost_ns=ns,
    )


def _at_epochs(facts: Facts, epochs: SlowEpochs) -> Finding:
    share = facts.part_of_wall(epochs.lost_ns)
    return Finding(
        "data-bound",
        "critical" if share >= CRITICAL else "warning",
        f"The first batch of each epoch takes {duration(epochs.slow_ns)}, other batches "
        f"{duration(epochs.typical_ns)} ({listed(epochs.steps)}). Waiting for first batches takes "
        f"{percent(share)} of the wall time.",
        {
            "phase": "data",
            "share": share,
            "ns": epochs.lost_ns,
            "slow_ns": epochs.slow_ns,
            "typical_ns": epochs.typical_ns,
        },
        epochs.steps,
        advice="If the DataLoader has workers, keep them between epochs with persistent_workers=True. "
        "Otherwise check what the dataset or sampler does when an epoch starts.",
        cost_ns=epochs.lost_ns,
    )


def _for_a_while(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for a part of the run that waits for data, if the run as a whole does not."""
    steps, data, period = _of_all_ranks(facts)
    if len(steps) < 2 * WINDOW:
        return
    waits = data > WARN * period
    near = np.convolve(waits, np.ones(WINDOW), mode="same") >= WINDOW / 2
    edges = np.flatnonzero(np.diff(np.concatenate(([0], near.astype(int), [0]))))
    usual = float(np.median(data))
    for low, high in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        at = low + np.flatnonzero(waits[low:high])
        lost = int((data[at] - usual).sum())
        if len(at) < WINDOW or lost < STRETCH * period.sum():
            continue
        first, last = int(steps[at[0]]), int(steps[at[-1]])
        slow = float(np.median(data[at]))
        yield Finding(
            "data-bound",
            "warning",
            f"Training waits for data from step {first} to {last}: {duration(slow)} of each "
            f"{duration(float(np.median(period[at])))} step, instead of {duration(usual)} in other steps.",
            {"phase": "data", "ns": lost, "slow_ns": slow, "typical_ns": usual},
            (first, last),
            advice="Find out what the data of these steps have in common, or what else used the disk.",
            cost_ns=lost,
        )
        return


def _of_all_ranks(facts: Facts) -> tuple[Ints, Ints, Ints]:
    """Return the steps, and waiting and total time of each on the rank with the least: a single one is a
    straggler.
    """
    # Without validation and checkpoints after a step.
    whole = facts.steady.select(pl.col("period_ns") - pl.sum_horizontal(EXPECTED)).to_series()
    parts = [np.empty((3, 0), np.int64)]
    for attempt in side_by_side(facts.steady, facts.steady["data"], whole):
        least = [ns.min(axis=0, where=ns >= 0, initial=NEVER) for ns in attempt.columns]
        parts.append(np.stack((attempt.steps, *least)))
    steps, data, period = np.concatenate(parts, axis=1)
    return steps, data, period


def _burst(facts: Facts, ns: int) -> Burst | None:
    bursts = [b for b in facts.patterns.bursts if b.phase == "data" and b.lost_ns >= IN_BURSTS * ns]
    burst = refined(facts, bursts[0]) if bursts else None
    return None if burst is None or is_single_episode(burst) else burst


def _typical(facts: Facts) -> tuple[float, float]:
    """Return the median waiting time and the median duration of steps."""
    data, period = (facts.steady[name].median() for name in ("data", "period_ns"))
    return float(data or 0), max(1.0, float(period or 0))  # type: ignore[arg-type]


def _each(facts: Facts, share: float) -> str:
    """Return how long a step waits: the median, or the mean if some wait long and others not at all."""
    typical, step = _typical(facts)
    if EVEN <= typical / step / share <= 1 / EVEN:
        return f"{duration(typical)} of each {duration(step)} step"
    step = float(facts.steady["period_ns"].mean())  # type: ignore[arg-type]
    return f"on average {duration(share * step)} of each {duration(step)} step"
