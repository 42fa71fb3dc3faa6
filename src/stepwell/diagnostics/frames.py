"""The records of ``telemetry.jsonl`` as a pandas DataFrame."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.journal.errors import StepwellError

if TYPE_CHECKING:
    import pandas as pd

NAME = "telemetry.jsonl"


def to_dataframe(path_or_run: str | os.PathLike[str] | Any) -> pd.DataFrame:
    """One row for each collection; nested fields become columns such as ``gradient_norm/overall``.

    Args:
        path_or_run: the file, the folder it is in, the folder of a run, or a run.

    Records of all ranks are there when a folder is given, with a column ``rank``. Logits, labels and
    predictions stay lists.
    """
    try:
        import pandas
    except ImportError as error:
        raise StepwellError("to_dataframe needs pandas: pip install 'stepwell[pandas]'") from error
    given = getattr(path_or_run, "path", path_or_run)
    if not isinstance(given, str | os.PathLike):
        raise StepwellError(f"to_dataframe({path_or_run!r}): write a path, or a run")
    rows = []
    for file in _files(Path(given).expanduser()):
        rank = _rank(file)
        rows += [{**dict(flat(record)), "rank": rank} for record in read_records(file)]
    return pandas.DataFrame(rows)


def read_records(file: Path) -> Iterator[dict[str, Any]]:
    """The records in a file; a last line that is still being written is left out."""
    with open(file, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
            except ValueError as error:
                if not line.endswith("\n"):
                    return
                raise StepwellError(f"{file}, line {number} is no JSON: {error}") from None
            if isinstance(record, dict):
                yield record


def flat(record: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a record by the path to each."""
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{above}{name}/")
        else:
            yield f"{above}{name}", value


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    stem, dot, suffix = NAME.rpartition(".")
    for folder in (path, path / "telemetry"):
        found = sorted(folder.glob(f"{stem}*{dot}{suffix}"))
        if found:
            return found
    raise StepwellError(f"there is no {NAME} in {str(path)!r}, nor in its folder 'telemetry'")


def _rank(file: Path) -> int:
    words = [word for word in file.name.split(".") if word.startswith("rank-")]
    return int(words[0].removeprefix("rank-")) if words else 0
