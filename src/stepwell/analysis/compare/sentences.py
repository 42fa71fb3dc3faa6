"""A comparison in sentences: which run was better at what, since when, and what was different."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from stepwell.analysis.compare.facts import Difference, text_of
from stepwell.analysis.compare.metrics import MetricComparison
from stepwell.analysis.compare.wording import number, place, since
from stepwell.analysis.findings.learning_rate import KEYS as RATE_KEYS
from stepwell.analysis.findings.learning_rate import RATE, WRONG

MOST_NAMED = 4
MOST_JUDGED = 6
MOST_VALUES = 3
LONGEST_VALUE = 24
GIVE_CONFIG = "give one with stepwell.init(config={…})"
HELD_OUT = re.compile(r"(^|[/_.\-])(val|valid|validation|eval|test|holdout|dev)([/_.\-]|$)", re.I)


def judged_metrics(metrics: Sequence[MetricComparison]) -> list[MetricComparison]:
    """Those that tell what is better and that several runs have; what was held out first."""
    judged = [m for m in metrics if m.goal is not None and m.common_at is not None]
    judged = [m for m in judged if sum(s is not None for s in m.runs) > 1]
    return sorted(judged, key=lambda m: not HELD_OUT.search(m.name))


def better_sentences(
    labels: Sequence[str],
    metrics: Sequence[MetricComparison],
    config: Sequence[Difference],
    by: str,
) -> list[str]:
    """Which run was better at what; the first one also says what was configured differently."""
    ahead = [m for m in judged_metrics(metrics) if m.better is not None][:MOST_JUDGED]
    found = [_better(m, labels, by) for m in ahead]
    if found and ahead[0].better is not None and ahead[0].against is not None:
        found[0] += _instead(config, ahead[0].better, ahead[0].against)
    return [f"{text}." for text in found]


def metric_notes(
    labels: Sequence[str], metrics: Sequence[MetricComparison], by: str, repeated: bool
) -> list[str]:
    """What was equal, broken, or could not be compared; of repeats it is told elsewhere how far apart."""
    judged = judged_metrics(metrics)
    sentences = []
    if same := [m.name for m in judged if m.identical]:
        sentences.append(f"{named(same)}: identical at every common {_places(by)}.")
    once = [m.name for m in judged if m.common_count == 1 and _longest(m) > 1]
    if once:
        sentences.append(f"{named(once)}: only one {_places(by)} in common.")
    several = [m for m in judged if m.better is None and not m.identical and _logged(m) > 1]
    even = [m.name for m in several if m.name not in once]
    if even and not repeated:
        sentences.append(f"No lasting difference in {named(even)}.")
    sentences += _broken(labels, metrics)
    if apart := [m.name for m in metrics if m.common_at is None and _logged(m) > 1]:
        sentences.append(f"{named(apart)}: not one {_places(by)} in common.")
    if metrics and not any(sum(run is not None for run in m.runs) > 1 for m in metrics):
        sentences.append("They have no metric in common.")
    elif not judged and metrics and not apart:
        sentences.append(
            "Nothing that they have in common tells by its name whether less or more is better "
            "(loss and accuracy do)."
        )
    if not metrics:
        sentences.append("None of them logged a metric.")
    return sentences


def rate_sentences(
    labels: Sequence[str],
    metrics: Sequence[MetricComparison],
    config: Sequence[Difference],
    by: str,
) -> list[str]:
    """Learning rates that differ, where the configuration does not say so."""
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
                f"The learning rates differ: {number(rates[low])} of {labels[low]}, "
                f"{number(rates[high])} of {labels[high]} {place(by, metric.common_at)}."
            ]
    return []


def config_sentence(
    config: Sequence[Difference], unknown: Sequence[str], commands: Sequence[str]
) -> str:
    """The settings that differ, else the command lines.

    ``unknown`` are the runs that recorded no configuration, ``commands`` the command lines of all.
    """
    count = len(commands)
    if len(unknown) == count:
        return f"No configuration was recorded: {GIVE_CONFIG}."
    if unknown:
        return f"No configuration was recorded for {named(unknown)}: {GIVE_CONFIG}."
    if not config:
        if len(different := list(dict.fromkeys(commands))) == 1:
            return "Their configuration is the same."
        shown = " and ".join(f"`{command}`" for command in different[:2])
        more = f" and {len(different) - 2} more" if len(different) > 2 else ""
        return f"Their configuration is the same; their command lines differ: {shown}{more}."
    return f"Configured differently: {named([difference.key for difference in config])}."


def named(names: Sequence[str]) -> str:
    """A few names, and how many more."""
    shown = list(names[:MOST_NAMED])
    if len(names) > MOST_NAMED:
        return f"{', '.join(shown)} and {len(names) - MOST_NAMED} more"
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _better(metric: MetricComparison, labels: Sequence[str], by: str) -> str:
    assert metric.better is not None
    assert metric.against is not None
    assert metric.common_at is not None
    first, second = metric.runs[metric.better], metric.runs[metric.against]
    assert first is not None
    assert second is not None
    others = sum(run is not None for run in metric.runs) > 2
    best = ""
    if first.best is not None and number(first.best) != number(first.common):
        best = f" (its best: {number(first.best)} at step {first.best_step})"
    return (
        f"{labels[metric.better]} was {'best' if others else 'better'} at {metric.name}: "
        f"{number(first.common)} against {number(second.common)}"
        f"{f' of {labels[metric.against]}' if others else ''} "
        f"{place(by, metric.common_at)}{best}, ahead {_since(metric, by)}"
    )


def _since(metric: MetricComparison, by: str) -> str:
    about = "about " if metric.is_smoothed else ""
    if metric.since is None or metric.since == metric.first_at:
        return f"from {about}the start on"
    return f"from {about}{since(by, metric.since)} on"


def _instead(config: Sequence[Difference], ours: int, theirs: int) -> str:
    """With lr 0.1 instead of 0.02."""
    differ = [d for d in config if text_of(d.values[ours]) != text_of(d.values[theirs])]
    if not differ:
        return ""
    shown = [_value_of(d, ours, theirs) for d in differ[:MOST_VALUES]]
    more = len(differ) - len(shown)
    if more:
        return f", with {', '.join(shown)} and {more} more difference{'s' if more > 1 else ''}"
    return f", with {named(shown)}"


def _value_of(difference: Difference, ours: int, theirs: int) -> str:
    mine, other = (_short(difference.values[i]) for i in (ours, theirs))
    if max(len(mine), len(other)) > LONGEST_VALUE:
        return f"another {difference.key}"
    return f"{difference.key} {mine} instead of {other}"


def _short(value: Any) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _broken(labels: Sequence[str], metrics: Sequence[MetricComparison]) -> list[str]:
    """Runs whose numbers stopped being numbers."""
    found: dict[int, tuple[int, str]] = {}
    for metric in metrics:
        for i, run in enumerate(metric.runs):
            if run is not None and run.nonfinite_step is not None:
                earliest = found.get(i, (run.nonfinite_step, metric.name))
                found[i] = min(earliest, (run.nonfinite_step, metric.name))
    return [
        f"{labels[i]} has NaN or infinite values, first in {name} at step {step}."
        for i, (step, name) in sorted(found.items())
    ]


def _longest(metric: MetricComparison) -> int:
    return max((run.count for run in metric.runs if run is not None), default=0)


def _logged(metric: MetricComparison) -> int:
    return sum(run is not None and run.last is not None for run in metric.runs)


def _places(by: str) -> str:
    return "step" if by == "step" else f"place by {by}"
