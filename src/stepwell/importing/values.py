"""Numbers and attributes as a file has them, kept exactly where that is possible."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from stepwell.journal.values import MAX_TEXT, encode

MAX_DIGITS = 30
MAX_DEPTH = 60

NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}

_quick: Callable[[Any], bytes] | None = None


def parse_fraction(text: str) -> Decimal | float:
    """A number with a fraction: exact, since microseconds since the epoch do not fit a float."""
    if len(text) <= MAX_DIGITS and "e" not in text and "E" not in text:
        return Decimal(text)
    return float(text)


def parse_whole(text: str) -> int | float:
    """A whole number; one that no machine word could hold becomes a float."""
    return int(text) if len(text) <= MAX_DIGITS else float(text)


def exact(value: Any) -> int | Decimal | None:
    """A number of the file, also where it stands in quotes; None when it is none."""
    kind = type(value)
    if kind is int or kind is Decimal:
        return value  # type: ignore[no-any-return]
    if kind is float and math.isfinite(value) and abs(value) < 1e19:
        return Decimal(repr(value))
    if kind is str and len(value) <= MAX_DIGITS:
        try:
            number = Decimal(value)
        except InvalidOperation:
            return None
        return number if number.is_finite() and number.adjusted() < 19 else None
    return None


def nanoseconds(value: int | Decimal, unit: int) -> int:
    """So many units as nanoseconds, rounded to a whole number."""
    return value * unit if isinstance(value, int) else int((value * unit).to_integral_value())


def as_number(value: Any) -> float | None:
    """A value of a counter as a float; None when it is no number."""
    if isinstance(value, bool | int | float | Decimal):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    return NOT_FINITE.get(value) if isinstance(value, str) else None


def encode_attributes(attributes: Mapping[str, Any]) -> bytes:
    """The attributes as the journal keeps them."""
    global _quick
    if _quick is None:
        import msgspec

        _quick = msgspec.json.Encoder(decimal_format="number").encode
    try:
        data = _quick(attributes)
        if b"null" not in data and len(data) <= MAX_TEXT:
            return data
    except Exception:  # lone surrogates, integers past 64 bits
        pass
    return encode(with_floats(attributes))


def with_floats(value: Any, depth: int = 0) -> Any:
    """The same with floats in the place of exact fractions."""
    if isinstance(value, Decimal):
        return float(value)
    if depth > MAX_DEPTH:
        return f"<{type(value).__name__}: nested too deeply>"
    if isinstance(value, Mapping):
        return {key: with_floats(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [with_floats(item, depth + 1) for item in value]
    return value


def text(value: Any, otherwise: str = "") -> str:
    """The value as a text."""
    if type(value) is str:
        return value
    return otherwise if value is None else str(with_floats(value))[:2000]
