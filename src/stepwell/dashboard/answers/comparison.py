"""The comparison of several runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepwell.analysis.compare import compare
from stepwell.analysis.compare.differences import text_of
from stepwell.dashboard.answers.values import Json, number, plain
from stepwell.reading import RecordedRun


def comparison(runs: Sequence[RecordedRun]) -> Json:
    """Return the comparison of several runs, as ``stepwell compare`` prints it."""
    result = compare(runs)
    count = len(result.runs)
    phases: dict[str, list[float | None]] = {}
    for place, pace in enumerate(result.paces):
        for phase in pace.phases if pace is not None else ():
            phases.setdefault(phase.phase, [None] * count)[place] = phase.p50_ns
    return {
        "runs": [
            {
                "id": line.id,
                "label": line.label,
                "status": line.status,
                "last_step": line.last_step,
                "seconds": line.seconds,
            }
            for line in result.runs
        ],
        "summary": list(result.summary),
        "metrics": [
            {
                "name": metric.name,
                "goal": metric.goal,
                "last": [None if s is None else plain(s.last) for s in metric.runs],
                "best": [None if s is None else plain(s.best) for s in metric.runs],
                "best_step": [None if s is None else s.best_step for s in metric.runs],
                "winner": metric.better,
            }
            for metric in result.metrics
        ],
        "config": [_difference(d.key, d.values) for d in result.config],
        "code": [_difference(d.key, d.values) for d in result.code],
        "phases": [{"phase": phase, "ns": ns} for phase, ns in phases.items()],
        "axes": _axes(result),
    }


def _difference(key: str, values: Sequence[Any]) -> Json:
    texts = [None if v is None else v if isinstance(v, str) else text_of(v) for v in values]
    return {"key": key, "values": texts}


def _axes(result: Any) -> list[Json]:
    axes = [
        {"key": d.key, "values": [v if _is_scalar(v) else text_of(v) for v in d.values]}
        for d in result.config[:12]
    ]
    for metric in result.metrics:
        if metric.goal is not None and len(axes) < 20:
            best = [None if s is None or s.best is None else number(s.best) for s in metric.runs]
            if any(value is not None for value in best):
                axes.append({"key": metric.name, "values": best})
    return axes


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)
