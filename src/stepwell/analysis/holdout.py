"""What a model said about its holdout at each collection: the diagnostics' own file as a table."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from stepwell.reading import RecordedRun

FILE = Path("telemetry") / "telemetry.jsonl"
MAX_FILE = 1 << 30
_COLUMNS: dict[str, Any] = {
    "attempt": pl.Int64,
    "step": pl.Int64,
    "epoch": pl.Int64,
    "example": pl.Int64,
    "label": pl.Int64,
    "prediction": pl.Int64,
    "logits": pl.List(pl.Float64),
    "margin": pl.Float64,
}
HOLDOUT = pl.Schema(_COLUMNS)


def holdout_table(run: RecordedRun) -> pl.DataFrame:
    """A row for each example at each collection, of rank 0.

    ``margin`` is the logit of the right class minus the greatest other: above zero the model is right.
    """
    rows = [row for record in read_records(run.path / FILE) for row in _rows(record)]
    return pl.DataFrame(rows, schema=HOLDOUT, orient="row", strict=False)


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a ``telemetry.jsonl``; what is no record is passed over."""
    if not path.is_file() or path.is_symlink() or path.stat().st_size > MAX_FILE:
        return
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict):
                yield record


def _rows(record: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    found = record.get("holdout_logits")
    if not isinstance(found, dict):
        return
    step = record.get("step")
    place = (
        _whole(record.get("attempt")),
        _whole(record.get("batch_idx") if step is None else step),
        _whole(record.get("epoch")),
    )
    logits, labels = _list(found.get("logits")), _list(found.get("labels"))
    predictions = _list(found.get("predictions"))
    for example, values in enumerate(logits):
        numbers = _numbers(values)
        label = _whole(labels[example]) if example < len(labels) else None
        prediction = _whole(predictions[example]) if example < len(predictions) else None
        yield (*place, example, label, prediction, numbers, margin(numbers, label))


def margin(logits: list[float] | None, label: int | None) -> float | None:
    """How far the right class is ahead; a single logit speaks for class 1 when it is above zero."""
    if not logits or label is None:
        return None
    if len(logits) == 1:
        return logits[0] if label == 1 else -logits[0] if label == 0 else None
    if not 0 <= label < len(logits):
        return None
    return logits[label] - max(value for i, value in enumerate(logits) if i != label)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and abs(value) < 1 << 62 else None


def _numbers(value: Any) -> list[float] | None:
    """A row of logits; None where one is missing or the row is not flat."""
    items = value if isinstance(value, list) else [value]
    if not all(isinstance(item, int | float) for item in items):
        return None
    numbers = [float(item) for item in items]
    return numbers if all(map(math.isfinite, numbers)) else None
