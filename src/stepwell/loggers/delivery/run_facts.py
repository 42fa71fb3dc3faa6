"""The configuration and the final values of a run, from run.json, as records for a backend.

They are not in the journal, since they may change until the run ends. Backends take them any number of times.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepwell.journal.document import read_json
from stepwell.journal.records import ItemRecord
from stepwell.loggers.items.making import flattened

RUN = "run.json"
NONFINITE = "nonfinite"
"""Names the numbers that JSON has no word for."""


def config_records(run_folder: Path, known: dict[str, Any], time_ns: int) -> list[ItemRecord]:
    """Return the configuration as parameters, without those that are known with the same value."""
    flat = _mapping(run_folder, "config")
    return [
        _record("param", name, value, time_ns)
        for name, value in flat.items()
        if name not in known or known[name] != value
    ]


def summary_records(run_folder: Path, time_ns: int) -> list[ItemRecord]:
    """Return the final values that were set through ``run.summary``."""
    values = _mapping(run_folder, "summary")
    return [_record("summary", name, value, time_ns) for name, value in values.items()]


def tags_of(run_folder: Path) -> list[str]:
    """Return the tags of a run."""
    tags = (read_json(run_folder / RUN) or {}).get("tags")
    return [str(tag) for tag in tags] if isinstance(tags, list) else []


def _mapping(run_folder: Path, key: str) -> dict[str, Any]:
    """Return a mapping of run.json, flat, with its numbers that are not finite."""
    found = (read_json(run_folder / RUN) or {}).get(key)
    values = dict(found) if isinstance(found, dict) else {}
    words = values.pop(NONFINITE, None)
    flat = flattened(values)
    if isinstance(words, dict):
        flat |= {name: str(word) for name, word in words.items() if flat.get(name, "") is None}
    return flat


def _record(kind: str, name: str, value: Any, time_ns: int) -> ItemRecord:
    return ItemRecord(kind, name, (), None, None, value, None, None, None, None, time_ns, "run")
