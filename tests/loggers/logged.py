"""Logged records, read from a run folder as a backend reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stepwell import Run
from stepwell.follower.log import LogFollower
from stepwell.follower.records import ItemRecord, MetricRecord
from stepwell.loggers import Logger
from stepwell.telemetry.artifacts import artifact_path


def process_folder(run: Run) -> Path:
    """The folder of this process in the run."""
    (found,) = [path.parent for path in run.path.glob("rank-*/process.json")]
    return found


def records(run: Run, number: int | None = None) -> list[Any]:
    """All logged records, or those for the logger with this number."""
    follower = LogFollower(process_folder(run), number)
    found: list[Any] = []
    while batch := follower.poll():
        found += batch
    return [record for record in found if record.type in ("metric", "item")]


def metrics(run: Run, number: int | None = None) -> list[MetricRecord]:
    return [
        record
        for record in records(run, number)
        if isinstance(record, MetricRecord) and not record.name.startswith("system/")
    ]


def items(run: Run, kind: str | None = None) -> list[ItemRecord]:
    found = [record for record in records(run) if isinstance(record, ItemRecord)]
    return [record for record in found if kind in (None, record.kind)]


def content(run: Run, item: ItemRecord) -> bytes:
    assert item.content is not None
    return artifact_path(run.path, item.content).read_bytes()


def logger_lines(run: Run) -> list[dict[str, Any]]:
    """Records about loggers in the journal: their starts and ends."""
    lines = (process_folder(run) / "events.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["kind"] == "logger"]


class Own(Logger):
    """A logger without a backend."""

    to = "own"


class Another(Logger):
    """One of another kind."""

    to = "another"
