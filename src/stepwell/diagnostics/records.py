"""Records of ``telemetry.jsonl``: plain values, strict JSON, one write each."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stepwell.journal import careful

NONFINITE = "nonfinite"
BLOCK = 1 << 16
MAX_NAMED = 8
"""Of one list so many numbers that are not finite are named one by one."""


def scalars_in(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The tensors of one number each in a value, with where they are."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from scalars_in(item, f"{path}/{key}")
    elif _is_tensor(value) and value.ndim == 0:
        yield path, value


def with_numbers(value: Any, path: str, numbers: Mapping[str, float]) -> Any:
    """The same value with numbers and lists in the place of tensors and arrays."""
    if isinstance(value, Mapping):
        return {str(k): with_numbers(v, f"{path}/{k}", numbers) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [with_numbers(item, path, numbers) for item in value]
    if path in numbers and _is_tensor(value):
        return _whole(value, numbers[path])
    if hasattr(value, "tolist") and hasattr(value, "dtype"):
        # Tensors and arrays alike.
        return value.detach().tolist() if hasattr(value, "detach") else value.tolist()
    return value


def strict(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record that JSON has words for. What is not finite is None, and named in ``nonfinite``."""
    odd: dict[str, str] = {}
    plain = {str(name): _plain(value, str(name), odd) for name, value in record.items()}
    if odd:
        plain[NONFINITE] = odd
    return plain


def metrics_of(value: Any, prefix: str) -> Iterator[tuple[str, float]]:
    """The numbers in a field by their names, such as ``gradient_norm/overall``; lists are left out."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from metrics_of(item, f"{prefix}/{key}")
    elif isinstance(value, int | float):
        yield prefix, float(value)


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Add a line to a file. One that was not written whole, now or by a process that died, is taken away."""
    line = json.dumps(record, allow_nan=False).encode() + b"\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0), 0o666)
    try:
        end = _whole_lines(file)
        written = os.write(file, line)
        if written < len(line):
            os.ftruncate(file, end)
            raise OSError(f"only {written} of {len(line)} bytes could be written")
    finally:
        os.close(file)


def _whole_lines(file: int) -> int:
    """Where the last whole line of a file ends; what comes after it is cut off."""
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
            # All logits of a model that is broken: one word for them will do.
            kinds = dict.fromkeys(own.values())
            own = {path: next(iter(kinds)) if len(kinds) == 1 else ", ".join(sorted(kinds))}
        odd.update(own)
        return plain
    return careful.plain(value)


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "detach") and hasattr(value, "ndim")


def _whole(tensor: Any, number: float) -> float | int:
    """A number of a tensor of whole numbers is one too."""
    is_whole = not (tensor.is_floating_point() or tensor.is_complex())
    return int(number) if is_whole and math.isfinite(number) else number
