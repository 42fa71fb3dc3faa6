"""A comparison in sentences: which run or variant is better, from where on, and what differs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import fmean

from stepwell._core.text import capital, duration, named, number, percent, rate
from stepwell.analysis.compare.differences import Difference, shown, text_of
from stepwell.analysis.compare.metrics import MetricComparison
from stepwell.analysis.compare.pace import Pace, PaceComparison
from stepwell.analysis.compare.variants import (
    SIGNIFICANT,
    Spread,
    Variant,
    VariantComparison,
    welch,
)
from stepwell.analysis.findings.learning_rate import KEYS as RATE_KEYS
from stepwell.analysis.findings.learning_rate import RATE, WRONG
from stepwell.analysis.timeline.phases import phase_word
from stepwell.vocabulary import HELD_OUT

MOST_JUDGED = 6
MOST_VALUES = 3
LONGEST_VALUE = 24
GIVE_CONFIG = "give one with stepwell.init(config={…})"
NAMED_SHARE = 0.15
"""Share of the difference in step time: phases with less are not named."""
GOODPUT = 0.05
"""Least difference in goodput that is reported."""
FASTER = 1.1
"""Least ratio of samples per second that is reported."""
ONE_EACH = "There is one run of each, so this may be chance. Repeat them with other seeds."


def judged_metrics(metrics: Sequence[MetricComparison]) -> list[MetricComparison]:
    """Return the metrics with a known goal that several runs have; validation metrics first."""
    judged = [m for m in metrics if m.goal is not None and m.common_at is not None]
    judged = [m for m in judged if sum(s is not None for s in m.runs) > 1]
    return sorted(judged, key=lambda m: not HELD_OUT.search(m.name))


def better_sentences(
    labels: Sequence[str],
    metrics: Sequence[MetricComparison],
    config: Sequence[Difference],
    by: str,
) -> list[str]:
    """Return which run is better at which metric; the first sentence also names the different settings."""
    ahead = [m for m in judged_metrics(metrics) if m.better is not None][:MOST_JUDGED]
    return [_better(m, labels, by, config if m is ahead[0] else ()) for m in ahead]


def metric_notes(
    labels: Sequence[str], metrics: Sequence[MetricComparison], by: str, repeated: bool
) -> list[str]:
    """Return sentences about metrics that are equal, not finite, or could not be compared.

    With repeats, ``variant_sentences`` reports the metrics without a lasting difference.
    """
    judged = judged_metrics(metrics)
    sentences = []
    if same := [m.name for m in judged if m.identical]:
        sentences.append(f"{named(same)}: identical at every common {_position(by)}.")
    once = [m.name for m in judged if m.common_count == 1 and _longest(m) > 1]
    if once:
        sentences.append(f"{named(once)}: only one {_position(by)} in common.")
    several = [m for m in judged if m.better is None and not m.identical and _logged(m) > 1]
    even = [m.name for m in several if m.name not in once]
    if even and not repeated:
        sentences.append(f"No lasting difference in {named(even)}.")
    sentences += _broken(labels, metrics)
    if apart := [m.name for m in metrics if m.common_at is None and _logged(m) > 1]:
        sentences.append(f"{named(apart)}: no {_position(by)} in common.")
    if metrics and not any(sum(run is not None for run in m.runs) > 1 for m in metrics):
        sentences.append("The runs have no metric in common.")
    elif not judged and metrics and not apart:
        sentences.append(
            "No common metric has a name that shows whether lower or higher is better, as loss and "
            "accuracy do."
        )
    if not metrics:
        sentences.append("None of the runs logged a metric.")
    return sentences


def rate_sentences(
    labels: Sequence[str],
    metrics: Sequence[MetricComparison],
    config: Sequence[Difference],
    by: str,
) -> list[str]:
    """Return a sentence if learning rates differ and the configuration does not show it."""
    if any(d.key.rpartition(".")[2] in RATE_KEYS for d in config):
        return []
    for metric in metrics:
        if metric.common_at is None or not re.search(RATE, metric.name, re.IGNORECASE):
            continue
        rates = {i: s.common for i, s in enumerate(metric.runs) if s and s.common is not None}
        if len(rates) < 2:
            continue
        low, high = (choose(rates, key=rates.__getitem__) for choose in (min, max))
        if rates[high] > (1 + WRONG) * rates[low]:
            return [
                f"The learning rates differ {place(by, metric.common_at)}: {labels[low]} "
                f"{_value(rates[low])}, {labels[high]} {_value(rates[high])}."
            ]
    return []


def config_sentence(
    config: Sequence[Difference], unknown: Sequence[str], commands: Sequence[str]
) -> str:
    """Return which settings differ, or else which command lines.

    ``unknown`` are the runs without a configuration, ``commands`` the command lines of all runs.
    """
    count = len(commands)
    if len(unknown) == count:
        return f"No configuration was recorded: {GIVE_CONFIG}."
    if unknown:
        return f"No configuration was recorded for {named(unknown)}: {GIVE_CONFIG}."
    if not config:
        if len(different := list(dict.fromkeys(commands))) == 1:
            return "The configuration is the same."
        first = " and ".join(f"`{command}`" for command in different[:2])
        more = f" and {len(different) - 2} more" if len(different) > 2 else ""
        return f"The configuration is the same, but the command lines differ: {first}{more}."
    return f"Different settings: {named([difference.key for difference in config])}."


def _better(
    metric: MetricComparison, labels: Sequence[str], by: str, config: Sequence[Difference]
) -> str:
    assert metric.better is not None
    assert metric.against is not None
    assert metric.common_at is not None
    first, second = metric.runs[metric.better], metric.runs[metric.against]
    assert first is not None
    assert second is not None
    others = sum(run is not None for run in metric.runs) > 2
    best = ""
    if first.best is not None and _value(first.best) != _value(first.common):
        best = f" (its best: {_value(first.best)} at step {first.best_step})"
    return (
        f"{labels[metric.better]} is {'best' if others else 'better'} at {metric.name}: "
        f"{_value(first.common)} against {_value(second.common)}"
        f"{f' of {labels[metric.against]}' if others else ''} "
        f"{place(by, metric.common_at)}{best}, ahead {_since(metric, by)}"
        f"{_instead(config, metric.better, metric.against)}."
    )


def _since(metric: MetricComparison, by: str) -> str:
    roughly = "about " if metric.is_smoothed else ""
    if metric.since is None or metric.since == metric.first_at:
        return f"from {roughly}the start"
    start = f"step {metric.since:.0f}" if by == "step" else amount(by, metric.since)
    return f"from {roughly}{start} on"


def _instead(config: Sequence[Difference], ours: int, theirs: int) -> str:
    """Return ``, with lr 0.1 instead of 0.02``, or "" if no setting differs."""
    differ = [d for d in config if text_of(d.values[ours]) != text_of(d.values[theirs])]
    if not differ:
        return ""
    settings = [_setting(d, ours, theirs) for d in differ[:MOST_VALUES]]
    more = len(differ) - len(settings)
    if more:
        return f", with {', '.join(settings)} and {more} more difference{'s' if more > 1 else ''}"
    return f", with {named(settings)}"


def _setting(difference: Difference, ours: int, theirs: int) -> str:
    values = (difference.values[i] for i in (ours, theirs))
    mine, other = ("none" if value is None else shown(value) for value in values)
    if max(len(mine), len(other)) > LONGEST_VALUE:
        return f"a different {difference.key}"
    return f"{difference.key} {mine} instead of {other}"


def _broken(labels: Sequence[str], metrics: Sequence[MetricComparison]) -> list[str]:
    """Return a sentence for each run with NaN or infinite values."""
    sentences = []
    for i, label in enumerate(labels):
        runs = [(metric.runs[i], metric.name) for metric in metrics]
        odd = [(r.nonfinite_step, name) for r, name in runs if r and r.nonfinite_step is not None]
        if odd:
            step, name = min(odd)
            sentences.append(f"{label} has NaN or infinite values, first in {name} at step {step}.")
    return sentences


def _longest(metric: MetricComparison) -> int:
    return max((run.count for run in metric.runs if run is not None), default=0)


def _logged(metric: MetricComparison) -> int:
    return sum(run is not None and run.last is not None for run in metric.runs)


def _position(by: str) -> str:
    return "step" if by == "step" else f"position by {by}"


def _value(value: float | None) -> str:
    """Return a value of a metric with four digits: three may hide the difference between two runs."""
    return "no value" if value is None else f"{value:.4g}"


def place(by: str, at: float) -> str:
    """Return a position on the axis: ``at step 39`` or ``after 1.2 M tokens``."""
    return f"at step {at:.0f}" if by == "step" else f"after {amount(by, at)}"


def amount(by: str, at: float) -> str:
    """Return a number of samples or tokens, or a duration."""
    return duration(at * 1e9) if by == "time" else f"{count(at)} {by}"


def count(value: float) -> str:
    """Return a number of things: 512, 84.2 k, 1.2 M."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if value >= size:
            return f"{value / (1e3 if unit == 'k' else size):.4g} {unit}"
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def chance(p: float) -> str:
    """Return a p-value with two digits."""
    return "p < 0.0001" if p < 1e-4 else f"p = {p:.2g}"


def variant_sentences(
    variants: Sequence[Variant],
    comparisons: Sequence[VariantComparison],
    metrics: Sequence[MetricComparison],
    by: str,
    is_given: bool = True,
) -> list[str]:
    """Return which variant is better, and whether that is more than noise.

    ``is_given`` is whether the user gave the runs a configuration.
    """
    by_name = {item.metric: item for item in comparisons}
    sentences = []
    for metric in judged_metrics(metrics)[:MOST_JUDGED]:
        item = by_name.get(metric.name)
        if item is None or metric.common_at is None or metric.identical:
            continue
        where = place(by, metric.common_at)
        if len(variants) == 1:
            return [_alike(item, where, is_given)]
        if item.best is None:
            continue
        sentences.append(_variants_apart(item, variants, where))
    return sentences


def _alike(item: VariantComparison, where: str, is_given: bool) -> str:
    spread = item.variants[0]
    what = "Repeats of one configuration" if is_given else "No recorded setting differs"
    return (
        f"{what}: {item.metric} is {_spread(spread)} {where}, "
        f"from {_value(spread.low)} to {_value(spread.high)}."
    )


def _variants_apart(item: VariantComparison, variants: Sequence[Variant], where: str) -> str:
    assert item.best is not None
    assert item.against is not None
    best, against = item.variants[item.best], item.variants[item.against]
    values = f"{_spread(best)} against {_spread(against)} of {variants[item.against].label} {where}"
    name, p = variants[item.best].label, item.p[item.against]
    if p is None:
        return f"{name} is better at {item.metric}: {values}, but {_noise_unknown(best, against)}."
    if item.is_more_than_noise:
        return f"{name} is better at {item.metric}: {values}, more than noise ({chance(p)})."
    return f"{name} is better at {item.metric}: {values}, but this is within noise ({chance(p)})."


def _spread(spread: Spread) -> str:
    if spread.deviation is None:
        return f"{_value(spread.mean)} (1 run)"
    return f"{_value(spread.mean)} ± {spread.deviation:.2g} ({spread.count} runs)"


def _noise_unknown(best: Spread, against: Spread) -> str:
    if min(best.count, against.count) < 2:
        return "the noise of a single run is unknown"
    return "the noise is unknown, because the repeats are identical (the same seed?)"


def pace_sentences(
    names: dict[tuple[int, ...], str],
    paces: Sequence[Pace | None],
    pace: PaceComparison | None,
) -> list[str]:
    """Return which group is faster, which phases make the difference, throughput and goodput.

    ``names`` are the names of the compared groups of runs.
    """
    sentences = []
    if pace is not None:
        many = len(names) > 2
        against = f" of {names[pace.fast]}" if many else ""
        sentences.append(
            f"{names[pace.slow]} is {'slowest' if many else 'slower'}: a step takes "
            f"{duration(pace.slow_ns)} against {duration(pace.fast_ns)}{against} "
            f"({number(pace.ratio)} times as long).{_causes(pace)}"
        )
    rates = [None if each is None else each.samples_per_second for each in paces]
    shares = [None if each is None else each.goodput for each in paces]
    if apart := _extremes(names, rates):
        (most, high), (least, low) = apart
        if low < high / FASTER:
            text = f"{most} {rate(high)} samples/s, {least} {rate(low)} samples/s"
            sentences.append(f"Throughput: {text}.")
    if apart := _extremes(names, shares):
        (most, high), (least, low) = apart
        if high - low >= GOODPUT:
            sentences.append(f"Goodput: {most} {percent(high)}, {least} {percent(low)}.")
    return sentences


def _extremes(
    names: dict[tuple[int, ...], str], values: Sequence[float | None]
) -> tuple[tuple[str, float], tuple[str, float]] | None:
    """Return the groups with the highest and the lowest mean; None if any is unknown, or it may be noise."""
    groups = {
        group: [v for i in group if (v := values[i]) is not None] for group in names if values
    }
    if len(groups) < 2 or not all(groups.values()):
        return None
    means = {group: fmean(values) for group, values in groups.items()}
    most, least = max(means, key=means.__getitem__), min(means, key=means.__getitem__)
    p = welch(groups[most], groups[least])
    if p is not None and p >= SIGNIFICANT:
        return None
    return (names[most], means[most]), (names[least], means[least])


def _causes(pace: PaceComparison) -> str:
    """Return a sentence with the phases that make the difference, or "" if none stands out."""
    causes = [cause for cause in pace.causes if abs(cause.share) >= NAMED_SHARE][:3]
    if not causes:
        return ""
    first = causes[0]
    if len(causes) == 1 or first.share >= 1 - NAMED_SHARE:
        phase = capital(phase_word(first.phase))
        if first.share > 1:
            return f" {phase} takes {duration(first.ns)} more."
        return f" {phase} accounts for {duration(first.ns)} of the {duration(pace.more_ns)}."
    parts = [
        f"{phase_word(c.phase)} {'+' if c.ns > 0 else '−'}{duration(abs(c.ns))}" for c in causes
    ]
    return f" The difference of {duration(pace.more_ns)}: {', '.join(parts)}."
