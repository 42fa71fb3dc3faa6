"""Batches with imbalanced classes, or without shuffling."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from stepwell._core.text import number, percent
from stepwell.analysis.findings.curves import MetricCurve
from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding

FEWEST = 8
SHARE = re.compile(r"(?:.*/)?batch/(.+)_(\d+)_pct")
IMBALANCE = 4.0
"""Ratio of the largest to the smallest class."""
SPREAD = 4.0
"""Variance of the class shares between batches, relative to batches that are drawn at random."""


def find_batch_problems(facts: Facts) -> Iterator[Finding]:
    """Yield at most one finding of each kind."""
    shares = (facts.curves.curve(name) for name in facts.curves.names if SHARE.fullmatch(name))
    curves = {curve.name: curve for curve in shares if len(curve) >= FEWEST}
    if len(curves) < 2:
        return
    means = {name: float(curve.values.mean()) / 100 for name, curve in curves.items()}
    size = _size(facts)
    yield from _unshuffled(facts, means, size)
    yield from _imbalanced(facts, means, size, _distinct(facts, curves))


def _size(facts: Facts) -> float:
    names = (name for name in facts.curves.names if name.endswith("batch/batch_size"))
    sizes = facts.curves.curve(name) if (name := next(names, None)) else ()
    return float(np.median(sizes.values)) if sizes else 0.0


def _unshuffled(facts: Facts, means: dict[str, float], size: float) -> Iterator[Finding]:
    if size < 2:
        return
    ratios = {}
    for name, mean in means.items():
        by_chance = mean * (1 - mean) / size
        values = facts.curves.curve(name).values / 100
        if by_chance > 0:
            ratios[name] = float(values.var()) / by_chance
    if not ratios:
        return
    name = max(ratios, key=ratios.__getitem__)
    if ratios[name] < SPREAD:
        return
    curve = facts.curves.curve(name)
    low, high = np.quantile(curve.values / 100, [0.1, 0.9])
    yield Finding(
        "unshuffled-batches",
        "warning",
        f"Batches are not shuffled: the share of class {_class(name)} varies between {percent(low)} "
        f"and {percent(high)} ({percent(means[name])} on average), "
        f"{number(float(np.sqrt(ratios[name])))} times as much as by chance.",
        {"metric": name, "mean": means[name], "variance_ratio": ratios[name], "batch_size": size},
        curve.span,
        advice="Use shuffle=True, or call set_epoch() of the distributed sampler, and check the order of the "
        "files.",
        link=facts.command("plot", "batch/*_pct"),
    )


def _distinct(facts: Facts, curves: dict[str, MetricCurve]) -> int:
    """Return the number of different sampled batches: fewer than all if the same ones repeat.

    If the loader does not shuffle, every Nth batch of an epoch is the same batch in each epoch.
    """
    longest = max(curves.values(), key=len)
    count = len(longest)
    if any(loop.attributes.get("shuffle") is True for loop in facts.training_loops):
        return count
    rows = np.zeros((count, len(curves)))
    for column, curve in enumerate(curves.values()):
        # The curve of a class starts with the first batch that contains it.
        rows[np.isin(longest.steps, curve.steps), column] = curve.values
    for period in 1 + np.flatnonzero((rows[1 : count // 2 + 1] == rows[0]).all(axis=1)):
        if np.array_equal(rows[period:], rows[:-period]):
            return int(period)
    return count


def _imbalanced(
    facts: Facts, means: dict[str, float], size: float, distinct: int
) -> Iterator[Finding]:
    largest = max(means, key=means.__getitem__)
    smallest = min(means, key=means.__getitem__)
    steps = facts.curves.curve(largest).span
    # A few examples may be imbalanced by chance.
    seen = max(size, 1.0) * distinct
    error = np.sqrt(max(means[smallest], 1 / seen) / seen)
    if means[largest] < IMBALANCE * (means[smallest] + 2 * error):
        return
    if distinct < FEWEST:
        count = len(facts.curves.curve(largest))
        which = "the same batch" if distinct == 1 else f"the same {distinct} batches, in turn"
        yield Finding(
            "repeated-batches",
            "note",
            f"The balance of classes is unknown: the {count:,} sampled batches have the labels of {which} "
            f"({percent(means[largest])} class {_class(largest)}, {percent(means[smallest])} class "
            f"{_class(smallest)}). If the loader does not shuffle, they are the same batches of every "
            "epoch, and the others may differ.",
            {"metric": largest, "batches": distinct},
            steps,
            advice="Use shuffle=True, or sample more batches of an epoch with a smaller collect_every_n.",
            link=facts.command("plot", "batch/*_pct"),
        )
        return
    yield Finding(
        "imbalanced-batches",
        "warning",
        f"Classes are imbalanced: {percent(means[largest])} of the samples in batches are class "
        f"{_class(largest)}, {percent(means[smallest])} are class {_class(smallest)}.",
        {"metric": largest, "shares": {_class(name): share for name, share in means.items()}},
        steps,
        advice="Use a weighted sampler or a weighted loss, and judge by balanced accuracy.",
        link=facts.command("plot", "batch/*_pct"),
    )


def _class(name: str) -> str:
    return name.removesuffix("_pct").rpartition("_")[2]
