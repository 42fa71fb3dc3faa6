"""Records in words: names and values as people read them, safe in any line."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

MAX_VALUE = 200
"""Longer values are cut, where lines are for people."""

_BARE = re.compile(r"[\w.:/+\-]+")


def word(text: str) -> str:
    """A text that stays one word: in quotes when it has blanks, quotes or anything invisible."""
    if _BARE.fullmatch(text) and text.isprintable():
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())


def value(item: Any, limit: int | None = None) -> str:
    """A value of an attribute in one word or in JSON."""
    if isinstance(item, str):
        text = word(item)
    else:
        text = json.dumps(item, ensure_ascii=False, default=str)
        if not text.isprintable():
            text = json.dumps(item, default=str)
    return text if limit is None or len(text) <= limit else f"{text[:limit]}…"


def pairs(items: Mapping[str, Any], limit: int | None = None) -> str:
    """``name=value`` for each, None being left out."""
    shown = ((name, item) for name, item in items.items() if item is not None)
    return " ".join(f"{word(name)}={value(item, limit)}" for name, item in shown)
