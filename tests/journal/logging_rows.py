"""Writing what loggers write, row by row and line by line, and reading it with a follower."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stepwell._core import clock
from stepwell.follower.log import LogFollower
from stepwell.journal.format import METRIC, PROCESS, STEP_BIAS
from stepwell.journal.metrics import write_row
from stepwell.journal.names import names
from stepwell.journal.state import current_journal, current_lane


def log_for(audience: str, name: str, value: float, step: int) -> None:
    """A metric for these loggers, such as ``1+3``."""
    lane = current_lane()
    assert lane is not None
    word = names.intern(METRIC, name, f"log:{audience}")
    write_row(lane, clock.now(), value, step + STEP_BIAS, word, lane.number)


def write_line(kind: str, name: str, **attributes: Any) -> None:
    """A line of events.jsonl."""
    journal = current_journal()
    assert journal is not None
    journal.write_event(kind, name, attributes)


def folder_of(run: Path) -> Path:
    """The folder of the one process of a run."""
    (folder,) = (path.parent for path in run.glob(f"*/{PROCESS}"))
    return folder


def through_json(cursor: dict[str, Any]) -> dict[str, Any]:
    """What a cursor is after it was kept in a file."""
    copy: dict[str, Any] = json.loads(json.dumps(cursor, allow_nan=False))
    return copy


def all_of(follower: LogFollower) -> list[Any]:
    """Poll until there are no more records, and return all of them."""
    collected: list[Any] = []
    while records := follower.poll():
        assert len(records) <= follower.limit
        collected += records
    return collected
