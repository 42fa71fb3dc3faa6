"""Sentences about what is between variants and how fast runs were."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.analysis.compare.metrics import MetricComparison
from stepwell.analysis.compare.pace import Pace, PaceComparison
from stepwell.analysis.compare.sentences import MOST_JUDGED, judged_metrics
from stepwell.analysis.compare.significance import SIGNIFICANT, mean, welch
from stepwell.analysis.compare.variants import Spread, Variant, VariantComparison
from stepwell.analysis.compare.wording import chance, count, number, place
from stepwell.analysis.findings.wording import duration, percent, phase_word

TOLD = 0.15
"""Of the difference in the time of a step: phases that have less of it are not named."""
GOODPUT = 0.05
"""Less than this in goodput is no difference."""
FASTER = 1.1
"""Nor are less than so many times as many samples a second."""
ONE_EACH = "One run of each: whether that is more than chance cannot be said; repeat them with other seeds."


def variant_sentences(
    variants: Sequence[Variant],
    found: Sequence[VariantComparison],
    metrics: Sequence[MetricComparison],
    by: str,
    is_given: bool = True,
) -> list[str]:
    """Which variant was better, and whether that is more than noise.

    ``is_given`` says whether the runs have a configuration that their author gave.
    """
    by_name = {item.metric: item for item in found}
    told = []
    for metric in judged_metrics(metrics)[:MOST_JUDGED]:
        item = by_name.get(metric.name)
        if item is None or metric.common_at is None or metric.identical:
            continue
        where = place(by, metric.common_at)
        if len(variants) == 1:
            return [_alike(item, where, is_given)]
        if item.best is None:
            continue
        told.append(_apart(item, variants, where))
    return told


def _alike(item: VariantComparison, where: str, is_given: bool) -> str:
    spread = item.variants[0]
    what = "Repeats of one configuration" if is_given else "No recorded setting differs"
    return (
        f"{what}: {item.metric} is {_spread(spread)} {where}, "
        f"from {number(spread.low)} to {number(spread.high)}."
    )


def _apart(item: VariantComparison, variants: Sequence[Variant], where: str) -> str:
    assert item.best is not None
    assert item.against is not None
    best, against = item.variants[item.best], item.variants[item.against]
    values = f"{_spread(best)} against {_spread(against)} of {variants[item.against].label} {where}"
    name, p = variants[item.best].label, item.p[item.against]
    if p is None:
        return f"{name} had the better {item.metric}: {values}; {_unknown(best, against)}."
    if item.is_more_than_noise:
        return f"{name} was better at {item.metric}: {values}, more than noise ({chance(p)})."
    return (
        f"{name} had the better {item.metric}: {values}, but that is no more than noise "
        f"({chance(p)})."
    )


def _spread(spread: Spread) -> str:
    if spread.deviation is None:
        return f"{number(spread.mean)} (1 run)"
    return f"{number(spread.mean)} ± {spread.deviation:.2g} ({spread.count} runs)"


def _unknown(best: Spread, against: Spread) -> str:
    if min(best.count, against.count) < 2:
        return "with a single run nothing can be said about noise"
    return "their repeats are identical, so nothing can be said about noise (the same seed?)"


def pace_sentences(
    names: dict[tuple[int, ...], str],
    paces: Sequence[Pace | None],
    found: PaceComparison | None,
) -> list[str]:
    """Which was faster, and which phase makes the difference; goodput and throughput.

    ``names`` are the groups of runs that are compared, and what they are called.
    """
    sentences = []
    if found is not None:
        many = len(names) > 2
        against = f" of {names[found.fast]}" if many else ""
        sentences.append(
            f"{names[found.slow]} is {'slowest' if many else 'slower'}: a step takes "
            f"{duration(found.slow_ns)} against {duration(found.fast_ns)}{against} "
            f"({found.ratio:.2f} times as long){_causes(found)}."
        )
    rates = [None if pace is None else pace.samples_per_second for pace in paces]
    shares = [None if pace is None else pace.goodput for pace in paces]
    if apart := _extremes(names, rates):
        (most, high), (least, low) = apart
        if low < high / FASTER:
            text = f"{count(high)} samples/s of {most}, {count(low)} of {least}"
            sentences.append(f"Throughput: {text}.")
    if apart := _extremes(names, shares):
        (most, high), (least, low) = apart
        if high - low >= GOODPUT:
            sentences.append(f"Goodput: {percent(high)} of {most}, {percent(low)} of {least}.")
    return sentences


def _extremes(
    names: dict[tuple[int, ...], str], values: Sequence[float | None]
) -> tuple[tuple[str, float], tuple[str, float]] | None:
    """The groups with the most and the least; None where not all are known, or it may be noise."""
    groups = {
        group: [v for i in group if (v := values[i]) is not None] for group in names if values
    }
    if len(groups) < 2 or not all(groups.values()):
        return None
    most = max(groups, key=lambda group: mean(groups[group]))
    least = min(groups, key=lambda group: mean(groups[group]))
    test = welch(groups[most], groups[least])
    if test is not None and test.p >= SIGNIFICANT:
        return None
    return (names[most], mean(groups[most])), (names[least], mean(groups[least]))


def _causes(found: PaceComparison) -> str:
    told = [cause for cause in found.causes if abs(cause.share) >= TOLD][:3]
    if not told:
        return ""
    if len(told) == 1 or told[0].share >= 1 - TOLD:
        first = told[0]
        if first.share > 1:
            return f"; {phase_word(first.phase)} takes {duration(first.ns)} more"
        return (
            f"; {phase_word(first.phase)} is {duration(first.ns)} of the {duration(found.more_ns)}"
        )
    parts = [f"{phase_word(c.phase)} {'+' if c.ns > 0 else '−'}{duration(abs(c.ns))}" for c in told]
    return f"; of the {duration(found.more_ns)}: {', '.join(parts)}"
