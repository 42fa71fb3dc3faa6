"""Values as texts and sums of them."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from stepwell.loggers.prov.statements import printable

MAX_VALUE = 4000


def digest_of(value: Any) -> str:
    """The sha256 of a value as JSON with sorted keys and no spaces."""
    return hashlib.sha256(json_of(value, (",", ":")).encode("utf-8", "replace")).hexdigest()


def value_of(value: Any) -> Any:
    """A value for a statement: what is no single number or text is JSON."""
    if value is None:
        return "null"
    if isinstance(value, str):
        return value[:MAX_VALUE]
    if isinstance(value, int | float):
        return value
    return printable(json_of(value))[:MAX_VALUE]


def json_of(value: Any, separators: tuple[str, str] = (", ", ": ")) -> str:
    """A value as JSON, whatever a stranger put into it."""
    try:
        return json.dumps(
            value, sort_keys=True, separators=separators, ensure_ascii=False, default=str
        )
    except RecursionError:
        return "nested too deeply"
