"""Writes and reads the records of ``telemetry.jsonl``: strict JSON, one object per line, one write each."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell._core import values
from stepwell._core.errors import StepwellError

if TYPE_CHECKING:
    import pandas as pd

NONFINITE = "nonfinite"
BLOCK = 1 << 16
MAX_NAMED = 8
"""The largest number of values of one list that are listed one by one in ``nonfinite``."""


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and value of each entry of a nested mapping; of another value, only itself."""
    if not isinstance(value, Mapping):
        yield path, value
        return
    for name, item in value.items():
        yield from flat(item, f"{path}/{name}" if path else str(name))


def scalars_in(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Return the scalar tensors in a nested value, with their paths."""
    return ((p, item) for p, item in flat(value, path) if _is_tensor(item) and item.ndim == 0)


def metrics_of(value: Any, prefix: str) -> Iterator[tuple[str, float]]:
    """Return the numbers in a field with their names, such as ``gradient_norm/overall``, without lists."""
    return ((p, float(item)) for p, item in flat(value, prefix) if isinstance(item, int | float))


def with_numbers(value: Any, path: str, numbers: Mapping[str, float]) -> Any:
    """Return a nested value with numbers and lists instead of tensors and arrays."""
    if isinstance(value, Mapping):
        return {str(k): with_numbers(v, f"{path}/{k}", numbers) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [with_numbers(item, path, numbers) for item in value]
    if path in numbers and _is_tensor(value):
        return _whole(value, numbers[path])
    if hasattr(value, "tolist") and hasattr(value, "dtype"):
        # Tensors and NumPy arrays.
        return value.detach().tolist() if hasattr(value, "detach") else value.tolist()
    return value


def strict(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record for JSON. Numbers that are not finite are None, and listed in ``nonfinite``."""
    odd: dict[str, str] = {}
    plain = {str(name): _plain(value, str(name), odd) for name, value in record.items()}
    if odd:
        plain[NONFINITE] = odd
    return plain


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Append a line to a file. An incomplete line, from now or from a process that died, is removed."""
    line = json.dumps(record, allow_nan=False).encode() + b"\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0), 0o666)
    try:
        end = _whole_lines(file)
        written = os.write(file, line)
        if written < len(line):
            os.ftruncate(file, end)
            raise OSError(f"only {written} of {len(line)} bytes were written")
    finally:
        os.close(file)


def _whole_lines(file: int) -> int:
    """Remove an incomplete last line. Return the position after the last complete line."""
    size = end = os.lseek(file, 0, os.SEEK_END)
    while end:
        start = max(0, end - BLOCK)
        os.lseek(file, start, os.SEEK_SET)
        at = os.read(file, end - start).rfind(b"\n")
        if at >= 0:
            end = start + at + 1
            break
        end = start
    if end < size:
        os.ftruncate(file, end)
    return end


def _plain(value: Any, path: str, odd: dict[str, str]) -> Any:
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        odd[path] = "nan" if value != value else "inf" if value > 0 else "-inf"
        return None
    if isinstance(value, int):
        return int(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{path}.{key}", odd) for key, item in value.items()}
    if isinstance(value, list | tuple):
        own: dict[str, str] = {}
        plain = [_plain(item, f"{path}.{i}", own) for i, item in enumerate(value)]
        if len(own) > MAX_NAMED:
            # For example all logits of a broken model: one entry is enough.
            kinds = dict.fromkeys(own.values())
            own = {path: next(iter(kinds)) if len(kinds) == 1 else ", ".join(sorted(kinds))}
        odd.update(own)
        return plain
    return values.plain(value)


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "detach") and hasattr(value, "ndim")


def _whole(tensor: Any, number: float) -> float | int:
    """Return the number as an int if the tensor has an integer type."""
    is_whole = not (tensor.is_floating_point() or tensor.is_complex())
    return int(number) if is_whole and math.isfinite(number) else number


NAME = "telemetry.jsonl"


def to_dataframe(path_or_run: str | os.PathLike[str] | Any) -> pd.DataFrame:
    """Return a pandas DataFrame with one row per collection, and columns such as ``gradient_norm/overall``.

    For a folder, it has the records of all ranks, with a column ``rank``. Logits, labels and predictions are
    lists.

    Args:
        path_or_run: the file, its folder, a run folder, or a run.
    """
    try:
        import pandas
    except ImportError as error:
        raise StepwellError("to_dataframe needs pandas: pip install 'stepwell[pandas]'") from error
    given = getattr(path_or_run, "path", path_or_run)
    if not isinstance(given, str | os.PathLike):
        raise StepwellError(f"path_or_run must be a path or a run, got {path_or_run!r}")
    rows = []
    for file in _files(Path(given).expanduser()):
        rank = _rank(file)
        rows += [{**dict(flat(record)), "rank": rank} for record in read_records(file)]
    return pandas.DataFrame(rows)


def read_records(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the records in a file, without a last line that is still being written."""
    with open(file, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
            except ValueError as error:
                if not line.endswith("\n"):
                    return
                raise StepwellError(f"{file}, line {number} is not valid JSON: {error}") from None
            if isinstance(record, dict):
                yield record


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    stem, dot, suffix = NAME.rpartition(".")
    for folder in (path, path / "telemetry"):
        files = sorted(folder.glob(f"{stem}*{dot}{suffix}"))
        if files:
            return files
    raise StepwellError(f"no {NAME} in {str(path)!r} or its subfolder 'telemetry'")


def _rank(file: Path) -> int:
    parts = [part for part in file.name.split(".") if part.startswith("rank-")]
    return int(parts[0].removeprefix("rank-")) if parts else 0
