"""Pieces of JSON that trace formats share: texts, numbers of microseconds, attributes."""

from __future__ import annotations

import json
import re
from typing import Any

from stepwell.journal.careful import plain_mapping
from stepwell.journal.errors import StepwellError

BASE_BITS = 52
"""Times in a Chrome trace are counted from a multiple of 2**52 ns (52 days): so small, every nanosecond of
them can be told apart by viewers that read numbers as 64-bit floats."""

MAX_WHOLE = 1 << 63
LONG = re.compile(r"\d{19}")


def base_of(time_ns: int) -> int:
    """What the times of a trace are counted from, the same for all that begin in the same 52 days."""
    return time_ns >> BASE_BITS << BASE_BITS


def micros(nanoseconds: int) -> str:
    """Microseconds with all their nanoseconds."""
    if nanoseconds < 0:
        return "-" + micros(-nanoseconds)
    whole, rest = divmod(nanoseconds, 1000)
    return f"{whole}.{rest:03d}" if rest else str(whole)


def quoted(text: str) -> str:
    """A text as JSON."""
    return json.dumps(_sound(text), ensure_ascii=False)


def members(values: dict[str, Any]) -> str:
    """What stands between the braces of a JSON object, strictly."""
    try:
        text = _encode(values)
    except (ValueError, TypeError, RecursionError):
        text = _encode(plain_mapping(values))
    return _sound(text[1:-1])


_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode


def _sound(text: str) -> str:
    """The text without halves of characters, which strict readers refuse even when escaped."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def parsed(text: str | None) -> dict[str, Any]:
    """Attributes as a run has them; a stranger's run may have anything there."""
    if not text:
        return {}
    try:
        whole = _whole if LONG.search(text) else None
        found = json.loads(text, parse_constant=_no_number, parse_int=whole)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _no_number(word: str) -> None:
    return None


def _whole(digits: str) -> int | str:
    """A whole number; as a text where 64 bits are not enough for it."""
    number = int(digits)
    return number if -MAX_WHOLE <= number < MAX_WHOLE else digits


NOT_WELL = ("error", "unfinished", "open")
"""How a span may have ended but for well."""


def with_status(attributes: dict[str, Any], status: str) -> dict[str, Any]:
    """Attributes with how the span ended unless it was well; one of the user's of that name makes way."""
    if status == "ok" and attributes.get("status") not in NOT_WELL:
        return attributes
    told = {"args.status" if key == "status" else key: v for key, v in attributes.items()}
    return told if status == "ok" else {**told, "status": status}


def parse_steps(text: str | None) -> tuple[int, int] | None:
    """``1000:1010`` as the steps from 1000 up to, not including, 1010; ``1000`` is that step alone."""
    if text is None or not text.strip():
        return None
    match = re.fullmatch(r"(\d+)?(:)?(\d+)?", text.replace(" ", "").replace("_", ""))
    if match is None:
        raise StepwellError(f"--steps is {text!r}: write FIRST:END, such as 1000:1010")
    first = int(match[1]) if match[1] else 0
    end = int(match[3]) if match[3] else 1 << 62 if match[2] else first + 1
    if end <= first:
        raise StepwellError(f"--steps is {text!r}: the end has to come after the first step")
    return first, end


def parse_ranks(text: str | None) -> list[int] | None:
    """``0-7,16`` as a list of ranks."""
    if text is None or not text.strip():
        return None
    ranks: set[int] = set()
    for part in text.replace(" ", "").split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None or int(match[2] or match[1]) - int(match[1]) not in range(1 << 20):
            raise StepwellError(f"--ranks is {text!r}: write ranks such as 0-7,16")
        ranks.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return sorted(ranks)
