"""A comparison in sentences: which run was better at what, and from when on."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.analysis.compare.facts import Difference
from stepwell.analysis.compare.metrics import MetricComparison

MOST_NAMED = 4
MOST_JUDGED = 6


def summarise(
    labels: Sequence[str], metrics: Sequence[MetricComparison], config: Sequence[Difference]
) -> list[str]:
    """The answer first: what was better; then what was equal, and what could not be compared."""
    judged = [m for m in metrics if m.goal is not None and m.common_step is not None]
    judged = [m for m in judged if sum(s is not None for s in m.runs) > 1]
    sentences = [_better(m, labels) for m in judged if m.better is not None][:MOST_JUDGED]
    same = [m.name for m in judged if m.identical]
    even = [m.name for m in judged if m.better is None and not m.identical]
    if same:
        sentences.append(f"{_named(same)}: identical at every common step.")
    if even:
        sentences.append(f"No lasting difference in {_named(even)}.")
    sentences += _broken(labels, metrics)
    apart = [m.name for m in metrics if m.common_step is None and _logged(m) > 1]
    if apart:
        sentences.append(f"{_named(apart)}: not one step in common.")
    if not judged and metrics and not apart:
        sentences.append(
            "Nothing that both logged tells by its name whether less or more is better "
            "(loss and accuracy do)."
        )
    if not metrics:
        sentences.append("None of them logged a metric.")
    sentences.append(_config(config))
    return sentences


def _better(metric: MetricComparison, labels: Sequence[str]) -> str:
    assert metric.better is not None
    assert metric.against is not None
    first, second = metric.runs[metric.better], metric.runs[metric.against]
    assert first is not None
    assert second is not None
    others = sum(run is not None for run in metric.runs) > 2
    since = _since(metric)
    best = ""
    if first.best is not None and f"{first.best:.4g}" != f"{first.common:.4g}":
        best = f"; its best was {first.best:.4g} at step {first.best_step}"
    return (
        f"{labels[metric.better]} was {'best' if others else 'better'} at {metric.name}: "
        f"{first.common:.4g} against {second.common:.4g}"
        f"{f' of {labels[metric.against]}' if others else ''} "
        f"at step {metric.common_step}, ahead {since}{best}."
    )


def _since(metric: MetricComparison) -> str:
    about = "about " if metric.is_smoothed else ""
    return (
        f"from {about}the start on"
        if metric.since == metric.first_step
        else f"from {about}step {metric.since} on"
    )


def _broken(labels: Sequence[str], metrics: Sequence[MetricComparison]) -> list[str]:
    """Runs whose numbers stopped being numbers."""
    found: dict[int, tuple[int, str]] = {}
    for metric in metrics:
        for number, run in enumerate(metric.runs):
            if run is not None and run.nonfinite_step is not None:
                earliest = found.get(number, (run.nonfinite_step, metric.name))
                found[number] = min(earliest, (run.nonfinite_step, metric.name))
    return [
        f"{labels[number]} has NaN or infinite values, first in {name} at step {step}."
        for number, (step, name) in sorted(found.items())
    ]


def _config(config: Sequence[Difference]) -> str:
    if not config:
        return "Their configuration is the same."
    return f"Configured differently: {_named([difference.key for difference in config])}."


def _logged(metric: MetricComparison) -> int:
    return sum(run is not None and run.last is not None for run in metric.runs)


def _named(names: Sequence[str]) -> str:
    shown = list(names[:MOST_NAMED])
    if len(names) > MOST_NAMED:
        return f"{', '.join(shown)} and {len(names) - MOST_NAMED} more"
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
