"""The files of ``stepwell.diagnostics`` as tables: metrics, and the logits of holdout examples."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

from stepwell.reading import RecordedRun
from stepwell.reading.documents import clean
from stepwell.reading.process import process_folders
from stepwell.reading.remote import address_of, path_of
from stepwell.reading.run import RUN

FOLDER = "telemetry"
FILE = "telemetry.jsonl"
FILES = "telemetry*.jsonl"
"""The file of rank 0, and those of all ranks."""
MAX_FILE = 1 << 30
PREFIXES = {"learning_rates": "learning_rate", "holdout_logits": "holdout", "batch_stats": "batch"}
"""Prefix of the metrics of a field in a run, if it is not the name of the field."""
PLACES = ("batch_idx", "epoch", "timestamp", "step", "attempt", "model", "nonfinite")
"""Fields that are not metrics."""
HOLDOUT = pl.Schema(
    {
        **dict.fromkeys(("attempt", "step", "epoch", "example", "label", "prediction"), pl.Int64()),
        "logits": pl.List(pl.Float64),
        "margin": pl.Float64(),
    }
)
RECORDED = pl.Schema(
    {
        "name": pl.String,
        "rank": pl.Int32,
        "attempt": pl.Int32,
        "step": pl.Int64,
        "epoch": pl.Int64,
        "time_ns": pl.Int64,
        "value": pl.Float64,
    }
)
NONFINITE = ("nan", "inf", "-inf")


class DiagnosticsFolder(RecordedRun):
    """A folder of diagnostics outside a run, to be plotted like one. Its metrics are those of its records."""

    @property
    def name(self) -> str:
        """The name of the folder, or of its parent if the folder has the default name."""
        folder = self.folder.resolve()
        return clean(folder.parent.name if folder.name == FOLDER else folder.name)

    @property
    def files(self) -> dict[int, Path]:
        """The files by rank."""
        by_rank = {}
        for file in sorted(self.folder.glob(FILES)):
            match = re.fullmatch(r"telemetry(?:\.rank-(\d{5}))?\.jsonl", file.name)
            if match:
                by_rank[int(match.group(1) or 0)] = file
        return by_rank

    def metrics(self, overwritten: bool = False) -> pl.LazyFrame:
        """Return one row for each number in the records."""
        rows = [
            (name, rank, *place, value)
            for rank, file in self.files.items()
            for record in read_records(file)
            for place in [_place(record)]
            for name, value in _metrics(record)
        ]
        return pl.DataFrame(rows, schema=RECORDED, orient="row", strict=False).lazy()

    def ranks(self) -> list[int]:
        """Return the ranks that have a file."""
        return list(self.files)


def find_diagnostics(text: str | None) -> DiagnosticsFolder | None:
    """Return the diagnostics in this folder or file, None if it is a run folder or has none.

    The folder is the ``output_dir`` of a ``TelemetryConfig``, or the one above.
    """
    if not text or address_of(text) is not None:
        return None
    path = path_of(text)
    if path.is_file() and path.suffix == ".jsonl":
        path = path.parent
    if (path / RUN).is_file() or process_folders(path):
        return None
    for folder in (path, path / FOLDER):
        diagnostics = DiagnosticsFolder(folder)
        if diagnostics.files:
            return diagnostics
    return None


def holdout_table(run: RecordedRun) -> pl.DataFrame:
    """Return one row for each example and collection of rank 0.

    ``margin`` is the logit of the right class minus the largest other logit; positive if the model is right.
    """
    folder = run.path if isinstance(run, DiagnosticsFolder) else run.path / FOLDER
    rows = [row for record in read_records(folder / FILE) for row in _rows(record)]
    return pl.DataFrame(rows, schema=HOLDOUT, orient="row", strict=False)


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a ``telemetry.jsonl``. Other lines are skipped."""
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
    holdout = record.get("holdout_logits")
    if not isinstance(holdout, dict):
        return
    place = _place(record)[:3]
    logits, labels = _list(holdout.get("logits")), _list(holdout.get("labels"))
    predictions = _list(holdout.get("predictions"))
    for example, values in enumerate(logits):
        numbers = _numbers(values)
        label = _whole(labels[example]) if example < len(labels) else None
        prediction = _whole(predictions[example]) if example < len(predictions) else None
        yield (*place, example, label, prediction, numbers, margin(numbers, label))


def _place(record: dict[str, Any]) -> tuple[int | None, int | None, int | None, int | None]:
    """Return attempt, step, epoch and time of a record."""
    step = record.get("step")
    return (
        _whole(record.get("attempt")) or 0,
        _whole(record.get("batch_idx") if step is None else step),
        _whole(record.get("epoch")),
        _nanoseconds(record.get("timestamp")),
    )


def _nanoseconds(timestamp: Any) -> int | None:
    try:
        return int(datetime.fromisoformat(timestamp).timestamp() * 1e6) * 1000
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def _metrics(record: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a record with their metric names."""
    odd = record.get("nonfinite")
    number = _whole(record.get("model"))
    above = f"model_{number}/" if number else ""
    for field, value in record.items():
        if field not in PLACES:
            prefix = above + PREFIXES.get(field, field)
            yield from _numbers_in(value, prefix, field, odd if isinstance(odd, dict) else {})


def _numbers_in(
    value: Any, name: str, path: str, odd: dict[str, Any]
) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _numbers_in(item, f"{name}/{key}", f"{path}.{key}", odd)
    elif isinstance(value, int | float):
        yield name, float(value)
    elif value is None and odd.get(path) in NONFINITE:
        yield name, float(odd[path])


def margin(logits: list[float] | None, label: int | None) -> float | None:
    """Return the lead of the right class. A single logit means class 1 if it is positive."""
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
    """Return a row of logits; None if one is missing or the row is not flat."""
    items = value if isinstance(value, list) else [value]
    if not all(isinstance(item, int | float) for item in items):
        return None
    numbers = [float(item) for item in items]
    return numbers if all(map(math.isfinite, numbers)) else None
