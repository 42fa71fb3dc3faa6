"""Values as strict JSON types."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np

Json = dict[str, Any]

EXACT = 1 << 53
"""Largest integer that JavaScript represents exactly."""
INTEGERS = "tuple[int, int]"
"""The type of a field with two times, such as the ends of a window."""
DEEPEST = 50
"""Levels of nested values that are shown. A run of a stranger may have thousands."""


def plain(value: Any, depth: int = 0) -> Any:
    """Return a value as strict JSON types. Numbers that are not finite become "nan", "inf" or "-inf".

    Recorded integers that JavaScript would round become texts. Times and other fields of results stay
    numbers: their last digits do not matter. Values nested too deeply are left out.
    """
    if depth > DEEPEST:
        return "…"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: _field(getattr(value, field.name), field, depth)
            for field in dataclasses.fields(value)
        }
    if isinstance(value, np.ndarray):
        return plain_list(value)
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, dict):
        return {
            str(key): v if type(v) is int and str(key).endswith("ns") else plain(v, depth + 1)
            for key, v in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item, depth + 1) for item in value]
    if isinstance(value, float):
        return number(value)
    if isinstance(value, int) and abs(value) > EXACT:
        return str(value)
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _field(value: Any, field: dataclasses.Field[Any], depth: int) -> Any:
    """Return a field of a result. Integers stay numbers, also in a pair such as the two ends of a window."""
    if type(value) is int:
        return value
    return list(value) if str(field.type) == INTEGERS else plain(value, depth + 1)


def number(value: float | None) -> float | str | None:
    """Return a number, or the word for one that JSON does not have."""
    return value if value is None or math.isfinite(value) else str(value)


def plain_list(values: np.ndarray[Any, Any]) -> list[Any]:
    """Return an array as a flat list; numbers that are not finite become None."""
    flat = values.ravel()
    if flat.dtype.kind != "f" or bool(np.isfinite(flat).all()):
        return list(flat.tolist())
    return [value if math.isfinite(value) else None for value in flat.tolist()]


def encode(answer: Any) -> bytes:
    """Return an answer as compact strict JSON."""
    text = json.dumps(answer, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")
