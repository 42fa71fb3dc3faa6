"""Turning any value a user passes into strict JSON, and any scalar into a float.

Attributes take the quick way through msgspec; whatever it cannot keep exactly (NaN, numpy scalars,
lone surrogates, huge integers, unknown objects, very long texts) takes the careful way. Nothing here
raises: what cannot be kept is replaced by a description between angle brackets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

MAX_TEXT = 8192
"""Longer strings are cut, and say so."""
LONGEST_SHOWN = 120
NULL = b"null"
RARE = NULL[1]
"""The byte of ``NULL`` that fewest names have. One byte is found in a tenth of the time that
``NULL in data`` takes, ``data.find(NULL)`` in half of it."""

_quick: Callable[[Any], bytes] | None = None


def encode_quickly() -> Callable[[Any], bytes]:
    """The encoder of msgspec: raises on what it does not know, and writes NaN as null."""
    global _quick
    if _quick is None:
        import msgspec

        _quick = msgspec.json.Encoder().encode
    return _quick


def encode(attributes: Mapping[str, Any]) -> bytes:
    """Strict JSON of an attribute set. Non-finite numbers are null and named in ``nonfinite``."""
    try:
        data = (_quick or encode_quickly())(attributes)
        # Only the careful way can tell NaN from None.
        if len(data) <= MAX_TEXT and (RARE not in data or data.find(NULL) < 0):
            return data
    except Exception:  # any value may raise anything while it is being looked at
        pass
    from stepwell.journal.careful import encode_carefully

    return encode_carefully(attributes)


def cut(text: str, limit: int = MAX_TEXT) -> str:
    """The text, or its beginning and a mark that says how long it was."""
    return text if len(text) <= limit else f"{text[:limit]}…<cut: {len(text)} characters>"


def text_of(value: Any) -> str:
    """What str() gives, or a description where that fails."""
    try:
        return str(value)
    except Exception as error:
        return f"<{type(value).__name__}: unreadable, {type(error).__name__}>"


def shown(value: Any) -> str:
    """How a value looks in a message."""
    try:
        return cut(repr(value), LONGEST_SHOWN)
    except Exception as error:
        return f"<{type(value).__name__}: unreadable, {type(error).__name__}>"


def on_host(value: Any) -> bool:
    """Whether looking at this array's elements needs no wait for an accelerator."""
    device = getattr(value, "device", None)
    # torch has a type, JAX a platform, TensorFlow a text.
    kind = getattr(device, "type", None) or getattr(device, "platform", None) or device
    return kind is None or kind == "meta" or "cpu" in str(kind).lower()


def number(value: Any) -> float | None:
    """The value as a float, or None when it is no scalar or does not lie in host memory."""
    if type(value) is int or isinstance(value, float | bool):
        return _float(value)
    if isinstance(value, str | bytes | bytearray):
        return None
    try:
        if hasattr(value, "shape") and (not on_host(value) or math.prod(value.shape) != 1):
            return None
        if hasattr(value, "item"):
            return _float(value.item())
        # An Enum's number is its value.
        inner = getattr(value, "value", value)
        return None if isinstance(inner, str | bytes) else _float(inner)
    except Exception:  # a complex number, None, or whatever the object's own __float__ raises
        return None


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
