"""Batches in which classes are out of balance, or that were not shuffled."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from stepwell.analysis.findings.curves import Curve
from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.findings.wording import percent
from stepwell.vocabulary import StandardTrainingJobSpanName

FEWEST = 8
LOOP = StandardTrainingJobSpanName.TRAINING_LOOP.value
SHARE = re.compile(r"(?:.*/)?batch/(.+)_(\d+)_pct")
IMBALANCE = 4.0
"""The largest class has so many times the share of the smallest."""
SPREAD = 4.0
"""Shares vary so many times as much from batch to batch as in batches that are drawn at random."""


def rule(facts: Facts) -> Iterator[Finding]:
    """At most one finding of each kind."""
    names = [name for name in facts.curves.names if SHARE.fullmatch(name)]
    curves = {name: facts.curves.curve(name) for name in names}
    curves = {name: curve for name, curve in curves.items() if len(curve) >= FEWEST}
    if len(curves) < 2:
        return
    means = {name: float(curve.values.mean()) / 100 for name, curve in curves.items()}
    size = _size(facts)
    yield from _unshuffled(facts, means, size)
    yield from _imbalanced(facts, means, size, _distinct(facts, curves))


def _size(facts: Facts) -> float:
    names = [name for name in facts.curves.names if name.endswith("batch/batch_size")]
    known = facts.curves.curve(names[0]) if names else None
    return float(np.median(known.values)) if known is not None and len(known) else 0.0


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
        f"Batches are not shuffled: the share of class {_class(name)} swings between {percent(low)} "
        f"and {percent(high)} ({percent(means[name])} on average), "
        f"{np.sqrt(ratios[name]):.1f} times as far as by chance.",
        {"metric": name, "mean": means[name], "variance_ratio": ratios[name], "batch_size": size},
        (int(curve.steps[0]), int(curve.steps[-1])),
        advice="shuffle=True, or set_epoch() of a distributed sampler; look at how the files are ordered.",
        link=facts.command("plot", "batch/*_pct"),
    )


def _distinct(facts: Facts, curves: dict[str, Curve]) -> int:
    """Return how many different batches were looked at: all, unless the same few come again and again.

    Every Nth batch of an epoch is the same batch in each epoch if the loader does not shuffle.
    """
    longest = max(curves.values(), key=len)
    count = len(longest)
    if any(loop.attributes.get("shuffle") is True for loop in facts.loops(LOOP)):
        return count
    rows = np.zeros((count, len(curves)))
    for column, curve in enumerate(curves.values()):
        # A class has a curve from the first batch on that it is in.
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
    curve = facts.curves.curve(largest)
    # Few examples are out of balance by chance.
    seen = max(size, 1.0) * distinct
    error = np.sqrt(max(means[smallest], 1 / seen) / seen)
    if means[largest] < IMBALANCE * (means[smallest] + 2 * error):
        return
    if distinct < FEWEST:
        yield _repeated(facts, means, largest, smallest, distinct)
        return
    yield Finding(
        "imbalanced-batches",
        "warning",
        f"Classes are out of balance in the batches: {percent(means[largest])} are class "
        f"{_class(largest)}, {percent(means[smallest])} class {_class(smallest)}.",
        {"metric": largest, "shares": {_class(name): share for name, share in means.items()}},
        (int(curve.steps[0]), int(curve.steps[-1])),
        advice="A weighted sampler or a weighted loss; judge by balanced accuracy.",
        link=facts.command("plot", "batch/*_pct"),
    )


def _repeated(
    facts: Facts, means: dict[str, float], largest: str, smallest: str, distinct: int
) -> Finding:
    curve = facts.curves.curve(largest)
    which = "the same batch" if distinct == 1 else f"the same {distinct} batches, in turn"
    return Finding(
        "repeated-batches",
        "note",
        f"The balance of classes is not known: the {len(curve):,} batches that were looked at have the "
        f"labels of {which} ({percent(means[largest])} class {_class(largest)}, "
        f"{percent(means[smallest])} class {_class(smallest)}). If the loader does not shuffle, they "
        "are the same ones of every epoch, and the others may differ.",
        {"metric": largest, "batches": distinct},
        (int(curve.steps[0]), int(curve.steps[-1])),
        advice="shuffle=True; or look at more batches of an epoch, with a smaller collect_every_n.",
        link=facts.command("plot", "batch/*_pct"),
    )


def _class(name: str) -> str:
    match = SHARE.fullmatch(name)
    return match.group(2) if match else name
