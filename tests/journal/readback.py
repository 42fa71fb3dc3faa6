"""Reading back what a test recorded, with parsers that take nothing but strict JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stepwell import Run, open_run


def parse_strictly(text: str | bytes) -> Any:
    """JSON as the standard defines it: no NaN, no Infinity."""

    def refuse(token: str) -> Any:
        raise AssertionError(f"{token} is not JSON: {text[:200]!r}")

    return json.loads(text, parse_constant=refuse)


def metrics_of(run: Run) -> dict[str, list[tuple[int, float]]]:
    """(step, value) of each metric by name, in the order they were written."""
    run.flush()
    points: dict[str, list[tuple[int, float]]] = {}
    for row in open_run(run.path).metrics().collect().iter_rows(named=True):
        points.setdefault(row["name"], []).append((row["step"], row["value"]))
    return points


def values_of(run: Run) -> dict[str, list[float]]:
    """Values of each metric by name."""
    return {name: [value for _, value in rows] for name, rows in metrics_of(run).items()}


def events_of(run: Run) -> list[tuple[str, dict[str, Any]]]:
    """(name, attributes) of each event."""
    rows = open_run(run.path).events().collect().iter_rows(named=True)
    return [(row["name"], parse_strictly(row["attributes"] or "{}")) for row in rows]


def spans_of(run: Run) -> list[tuple[str, dict[str, Any]]]:
    """(name, attributes) of each span."""
    rows = open_run(run.path).spans().collect().iter_rows(named=True)
    return [(row["name"], parse_strictly(row["attributes"] or "{}")) for row in rows]


def carried_by_all(run: Run, **attributes: Any) -> list[dict[str, Any]]:
    """What these attributes become on spans (entered the first time, again, and set while open),
    on an event and on an artifact.
    """
    with run.span("entered", **attributes):
        pass
    with run.span("entered", **attributes):
        pass
    with run.span("set") as span:
        span.set(**attributes)
    run.event("event", **attributes)
    run.artifact(b"content", "artifact", **attributes)
    recorded = open_run(run.path)
    texts = [
        *recorded.spans().collect()["attributes"],
        *recorded.events().collect()["attributes"],
        *recorded.artifacts().collect()["attributes"],
    ]
    assert len(texts) == 5
    return [parse_strictly(text) for text in texts]


def json_texts(folder: Path) -> list[str]:
    """Every JSON document and every JSON line of a run folder."""
    texts = [path.read_text() for path in folder.rglob("*.json")]
    for path in folder.rglob("*.jsonl"):
        texts += [line for line in path.read_text().split("\n") if line]
    return texts
