"""Values of any type that users pass in: as strict JSON, as a float, as text in a message.

msgspec encodes most attribute sets. Values that it cannot encode exactly (NaN, numpy scalars, lone
surrogates, huge integers, unknown objects, very long strings) are converted one by one and limited in size.
Nothing here raises: a value that cannot be converted becomes a description in angle brackets.
Modules that only the conversion needs are imported there: `import stepwell` stays quick.
"""

from __future__ import annotations

import enum
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

MAX_TEXT = 8192
"""Longer strings are cut, with a note of their length."""
LONGEST_SHOWN = 120
NULL = b"null"
MAX_ITEMS = 1000
MAX_DEPTH = 12
MAX_VALUES = 20_000
"""Limit of values in one attribute set: MAX_DEPTH alone does not bound a cycle that branches."""
MAX_BYTES = 1 << 16
"""Limit of one encoded attribute set: above it, strings are cut to SECOND_TEXT."""
SECOND_TEXT = 256
RARE = NULL[1]
"""The byte of ``NULL`` that occurs least often. A search for one byte takes a tenth of the time of
``NULL in data``; ``data.find(NULL)`` takes half of it."""

_quick: Callable[[Any], bytes] | None = None


def fast_encoder() -> Callable[[Any], bytes]:
    """Return the encoder of msgspec. It raises for unknown types, and writes NaN as null."""
    global _quick
    if _quick is None:
        import msgspec

        _quick = msgspec.json.Encoder().encode
    return _quick


def encode(attributes: Mapping[str, Any]) -> bytes:
    """Return an attribute set as strict JSON. Non-finite numbers are null and listed in ``nonfinite``."""
    try:
        data = (_quick or fast_encoder())(attributes)
        # A null may be NaN or None: only `encode_any` can tell.
        if len(data) <= MAX_TEXT and (RARE not in data or data.find(NULL) < 0):
            return data
    except Exception:  # any value may raise anything
        pass
    return encode_any(attributes)


def cut(text: str, limit: int = MAX_TEXT) -> str:
    """Return the text, cut to ``limit`` characters with a note of its length."""
    return text if len(text) <= limit else f"{text[:limit]}…<cut: {len(text)} characters>"


def text_of(value: Any) -> str:
    """Return str(value), or a description if that raises."""
    try:
        return str(value)
    except Exception as error:
        return f"<{type(value).__name__}: unreadable, {type(error).__name__}>"


def shown(value: Any) -> str:
    """Return repr(value) for a message: cut, or a description if repr raises."""
    try:
        return cut(repr(value), LONGEST_SHOWN)
    except Exception as error:
        return f"<{type(value).__name__}: unreadable, {type(error).__name__}>"


def on_host(value: Any) -> bool:
    """Return whether the elements of an array can be read without waiting for an accelerator."""
    device = getattr(value, "device", None)
    # torch devices have a type, JAX devices a platform; TensorFlow has a string.
    kind = getattr(device, "type", None) or getattr(device, "platform", None) or device
    return kind is None or kind == "meta" or "cpu" in str(kind).lower()


def number(value: Any) -> float | None:
    """Return a scalar in host memory as a float; None for anything else."""
    if type(value) is int or isinstance(value, float | bool):
        return as_float(value)
    if isinstance(value, str | bytes | bytearray):
        return None
    try:
        if hasattr(value, "shape") and (not on_host(value) or math.prod(value.shape) != 1):
            return None
        if hasattr(value, "item"):
            return as_float(value.item())
        # The number of an Enum is its value.
        inner = getattr(value, "value", value)
        return None if isinstance(inner, str | bytes) else as_float(inner)
    except Exception:  # a complex number, None, or anything that __float__ raises
        return None


def as_float(value: Any) -> float:
    """Return float(value); an infinity for an integer that is too large."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def finite_or_text(value: float) -> float | str:
    """Return a number; one that JSON cannot represent as text, as W&B and OTLP write it."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def encode_any(attributes: Mapping[str, Any]) -> bytes:
    """Like ``encode``, with every value converted on its own."""
    import json

    data = _dump(attributes, MAX_TEXT)
    if len(data) > MAX_BYTES:
        data = _dump(attributes, SECOND_TEXT)
    if len(data) > MAX_BYTES:
        note = f"<attributes: {len(attributes)} of {len(data)} bytes, cut>"
        data = json.dumps({"cut": note}).encode()
    return data


def merge_encoded(old: bytes, attributes: Mapping[str, Any]) -> bytes:
    """Return an encoded attribute set with these attributes added."""
    import json

    before, added = json.loads(old), plain_mapping(attributes)
    flags = {k: v for k, v in _flags(before).items() if k.partition(".")[0] not in added}
    flags.update(_flags(added))
    if flags:
        added["nonfinite"] = flags
    data = json.dumps({**before, **added}, separators=(",", ":")).encode()
    return data if len(data) <= MAX_BYTES else encode_any({**before, **added})


def _flags(plain: dict[str, Any]) -> dict[str, str]:
    """Remove and return the record of non-finite numbers."""
    return plain.pop("nonfinite") if isinstance(plain.get("nonfinite"), dict) else {}


def _dump(attributes: Mapping[str, Any], max_text: int) -> bytes:
    import json

    plain = plain_mapping(attributes, max_text)
    return json.dumps(plain, allow_nan=False, separators=(",", ":")).encode()


def plain_mapping(attributes: Mapping[Any, Any], max_text: int = MAX_TEXT) -> dict[str, Any]:
    """Return a mapping as JSON types. Non-finite numbers are None and listed in ``nonfinite``."""
    plainer = JsonableWalker(max_text)
    try:
        plain = plainer.mapping(attributes, "", 0)
    except Exception as error:  # __getitem__ raises, or the mapping changes while it is read
        plain = {"cut": f"<attributes: unreadable, {type(error).__name__}>"}
    if plainer.nonfinite:
        key = "nonfinite" if "nonfinite" not in plain else "nonfinite_"
        plain[key] = plainer.nonfinite
    return plain


def plain(value: Any) -> Any:
    """Return a value as JSON types: dicts, lists, strings, numbers, booleans and None."""
    return JsonableWalker(MAX_TEXT).value(value, "", 0)


class JsonableWalker:
    """Converts one value to JSON types; notes in ``nonfinite`` where NaN and infinity were."""

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
        # Python refuses to print integers with thousands of digits.
        return value if value.bit_length() < 10_000 else f"<int: {value.bit_length()} bits>"

    def _float(self, value: float, path: str) -> float | None:
        if math.isfinite(value):
            return value
        self.nonfinite[path] = "nan" if value != value else "inf" if value > 0 else "-inf"
        return None

    def _other(self, value: Any, path: str, depth: int) -> Any:
        import dataclasses
        import datetime
        import json

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
            import base64

            return cut(base64.b64encode(value).decode(), self.max_text)
        if isinstance(value, datetime.date | datetime.time | datetime.timedelta):
            return json.loads(fast_encoder()(value))
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
            # item() of numpy's long double returns the same type.
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
