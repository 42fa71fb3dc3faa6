"""The careful way to JSON: values are looked at one by one, and cut down to a bounded size."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import enum
import json
import math
import os
from collections.abc import Mapping
from typing import Any

from stepwell.journal.values import MAX_TEXT, cut, encode_quickly, on_host

MAX_ITEMS = 1000
MAX_DEPTH = 12
MAX_VALUES = 20_000
"""Values kept of one attribute set: a cycle that branches would not end by its depth alone."""
MAX_BYTES = 1 << 16
"""A longer encoded attribute set is cut down further."""
SECOND_TEXT = 256


def encode_carefully(attributes: Mapping[str, Any]) -> bytes:
    """As ``encode``, for values that need looking at one by one."""
    data = _dump(attributes, MAX_TEXT)
    if len(data) > MAX_BYTES:
        data = _dump(attributes, SECOND_TEXT)
    if len(data) > MAX_BYTES:
        note = f"<attributes: {len(attributes)} of {len(data)} bytes, cut>"
        data = json.dumps({"cut": note}).encode()
    return data


def merge(old: bytes, attributes: Mapping[str, Any]) -> bytes:
    """An encoded attribute set with these added."""
    before, added = json.loads(old), plain_mapping(attributes)
    flags = {k: v for k, v in _flags(before).items() if k.partition(".")[0] not in added}
    flags.update(_flags(added))
    if flags:
        added["nonfinite"] = flags
    data = json.dumps({**before, **added}, separators=(",", ":")).encode()
    return data if len(data) <= MAX_BYTES else encode_carefully({**before, **added})


def _flags(plain: dict[str, Any]) -> dict[str, str]:
    """Take out what says which numbers were not finite."""
    found = plain.get("nonfinite")
    return plain.pop("nonfinite") if isinstance(found, dict) else {}


def _dump(attributes: Mapping[str, Any], max_text: int) -> bytes:
    plain = plain_mapping(attributes, max_text)
    return json.dumps(plain, allow_nan=False, separators=(",", ":")).encode()


def plain_mapping(attributes: Mapping[Any, Any], max_text: int = MAX_TEXT) -> dict[str, Any]:
    """The same out of what JSON has alone. Non-finite numbers are None and named in ``nonfinite``."""
    plainer = _Plainer(max_text)
    try:
        plain = plainer.mapping(attributes, "", 0)
    except Exception as error:  # a hostile __getitem__, a mapping that changes while it is read
        plain = {"cut": f"<attributes: unreadable, {type(error).__name__}>"}
    if plainer.nonfinite:
        key = "nonfinite" if "nonfinite" not in plain else "nonfinite_"
        plain[key] = plainer.nonfinite
    return plain


def plain(value: Any) -> Any:
    """The same value out of dicts, lists, strings, numbers, booleans and None alone."""
    return _Plainer(MAX_TEXT).value(value, "", 0)


class _Plainer:
    """One walk through a value; remembers where the numbers were that JSON has no word for."""

    def __init__(self, max_text: int) -> None:
        self.max_text = max_text
        self.left = MAX_VALUES
        self.nonfinite: dict[str, str] = {}

    def value(self, value: Any, path: str, depth: int) -> Any:
        if value is None or value is True or value is False:
            return value
        kind = type(value)
        if kind is str:
            return cut(value, self.max_text)
        if kind is int:
            return self._integer(value)
        if kind is float:
            return self._float(value, path)
        if depth >= MAX_DEPTH:
            return f"<{kind.__name__}: nested too deeply>"
        if self.left <= 0:
            return f"<{kind.__name__}: cut>"
        try:
            return self._other(value, path, depth)
        except Exception as error:
            return f"<{kind.__name__}: unreadable, {type(error).__name__}>"

    def mapping(self, value: Mapping[Any, Any], path: str, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, item in value.items():
            if len(result) >= MAX_ITEMS:
                result["cut"] = f"<{len(value)} items>"
                break
            self.left -= 1
            name = cut(key if isinstance(key, str) else str(plain(key)), SECOND_TEXT)
            result[name] = self.value(item, f"{path}.{name}" if path else name, depth + 1)
        return result

    def _integer(self, value: int) -> Any:
        # Python itself refuses to print integers of thousands of digits.
        return value if value.bit_length() < 10_000 else f"<int: {value.bit_length()} bits>"

    def _float(self, value: float, path: str) -> float | None:
        if math.isfinite(value):
            return value
        self.nonfinite[path] = "nan" if value != value else "inf" if value > 0 else "-inf"
        return None

    def _other(self, value: Any, path: str, depth: int) -> Any:
        if isinstance(value, enum.Enum):
            return self.value(value.value, path, depth + 1)
        if isinstance(value, bool | int):
            return self._integer(int(value))
        if isinstance(value, float):
            return self._float(float(value), path)
        if isinstance(value, str):
            return cut(str(value), self.max_text)
        if isinstance(value, os.PathLike):
            return cut(os.fsdecode(value), self.max_text)
        if isinstance(value, bytes | bytearray):
            return cut(base64.b64encode(value).decode(), self.max_text)
        if isinstance(value, datetime.date | datetime.time | datetime.timedelta):
            return json.loads(encode_quickly()(value))
        if isinstance(value, Mapping):
            return self.mapping(value, path, depth)
        if isinstance(value, list | tuple | set | frozenset):
            return self._items(list(value), path, depth)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
            return self.mapping(fields, path, depth)
        if hasattr(value, "shape") and hasattr(value, "dtype"):
            return self._array(value, path, depth)
        return self._described(value)

    def _items(self, items: list[Any], path: str, depth: int) -> list[Any]:
        self.left -= min(len(items), MAX_ITEMS)
        kept = [self.value(v, f"{path}.{i}", depth + 1) for i, v in enumerate(items[:MAX_ITEMS])]
        if len(items) > MAX_ITEMS:
            kept.append(f"<cut: {len(items)} items>")
        return kept

    def _array(self, value: Any, path: str, depth: int) -> Any:
        if math.prod(value.shape) == 1 and on_host(value):
            item = value.item()
            # numpy's long double gives itself.
            return self.value(float(item) if type(item) is type(value) else item, path, depth + 1)
        device = "" if on_host(value) else f" on {value.device}"
        shape = tuple(int(n) for n in value.shape)
        return f"<{type(value).__name__}: {value.dtype} {shape}{device}>"

    def _described(self, value: Any) -> str:
        kind = type(value).__name__
        if isinstance(value, type) or callable(value):
            name = getattr(value, "__qualname__", None)
            return f"<{kind}: {getattr(value, '__module__', '?')}.{name}>" if name else f"<{kind}>"
        text = str(value)
        return text if kind in ("UUID", "Decimal", "Fraction") else f"<{kind}: {cut(text, 200)}>"
