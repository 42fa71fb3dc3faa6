"""Training that waits for its data: all the time, or for some batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
FEWEST_EPOCHS = 3
MOST_EPOCHS = 0.8
"""Of the epochs, those that must begin with a slow batch."""
TIMES = 5.0
LEAST_START_NS = 20_000_000
"""A first batch is slow if it takes this many times as long as others, and is this much slower."""


@dataclass(frozen=True)
class SlowEpochs:
    """Epochs whose first batch is waited for much longer than others: their workers start then."""

    steps: tuple[int, ...]
    """The first steps of these epochs."""
    slow_ns: float
    typical_ns: float
    lost_ns: int
    """What the first batches took beyond the typical wait, that of the first epoch included."""

    def follow(self, steps: Sequence[int]) -> bool:
        """Whether most of these steps are the last ones of epochs."""
        last = {step - 1 for step in self.steps}
        return sum(step in last for step in steps) > len(steps) / 2


def slow_epochs(facts: Facts) -> SlowEpochs | None:
    """Whether most epochs begin with a batch that takes long; None if not, or after fewer than 3 epochs."""
    is_first = pl.col("rank") == pl.col("rank").min()
    table = facts.steps.filter(is_first).select("attempt", "epoch", "step", "data")
    first = table.drop_nulls("epoch").group_by("attempt", "epoch").agg(pl.all().first())
    later = first.filter(pl.col("epoch") > pl.col("epoch").min()).sort("step")
    rest = table.join(first, on=("attempt", "step"), how="anti")["data"]
    if later.height < FEWEST_EPOCHS - 1 or rest.len() < WINDOW:
        return None
    typical, slow = _float(rest.median()), _float(later["data"].median())
    is_slow = later["data"] > max(TIMES * typical, typical + LEAST_START_NS)
    if is_slow.sum() < MOST_EPOCHS * later.height:
        return None
    lost = int((first["data"] - int(typical)).clip(0).sum())
    return SlowEpochs(tuple(later["step"].to_list()), slow, typical, lost)


def rule(facts: Facts) -> Iterator[Finding]:
    """One finding for the run; a single rank that waits is a straggler and none of this."""
    ns, share = facts.share("data")
    epochs = slow_epochs(facts)
    if epochs is not None and epochs.lost_ns >= max(WARN / 2 * facts.running_ns, ns / 2):
        yield _at_epochs(facts, epochs)
        return
    burst = _burst(facts, ns)
    if share >= WARN / 2 and (burst is None or burst.period is None) and _is_everywhere(facts):
        # Other programs had the processor: what is usual tells.
        typical, step = _typical(facts)
        burst, usual = None, min(share, typical / step)
        ns, share = int(ns * usual / share), usual
    if share < (WARN / 2 if burst else WARN):
        yield from _for_a_while(facts)
        return
    severity = "critical" if share >= CRITICAL else "warning"
    evidence = {"phase": "data", "share": share, "ns": ns, "typical_ns": _typical(facts)[0]}
    waits = f"Waiting for data takes {percent(facts.part_of_wall(facts.table['data']))} of the wall time"
    if burst is None:
        yield Finding(
            "data-bound",
            severity,
            f"{waits}: {_each(facts, share)}.",
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
        f"{waits}, mostly for {frequency(burst, 'batch')}: "
        f"it takes {duration(burst.slow_ns)}, the others {duration(burst.typical_ns)} "
        f"({listed(burst.steps)}).",
        {**evidence, "period": burst.period, "burst_share": burst.share, "slow_ns": burst.slow_ns},
        burst.steps,
        advice="Prefetch further ahead, or find what is special about these batches (a slow file, a "
        "lock).",
        link=facts.command("show"),
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
        advice="If the DataLoader has workers, they start anew in each epoch: persistent_workers=True keeps "
        "them. Else look at what the dataset or sampler does when an epoch starts.",
        link=facts.command("show"),
        cost_ns=epochs.lost_ns,
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
