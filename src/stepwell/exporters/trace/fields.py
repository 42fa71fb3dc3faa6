"""JSON fields of trace formats: texts, microseconds, attributes. Also parses ``--steps`` and ``--ranks``."""

from __future__ import annotations

import json
import re
from typing import Any

from stepwell._core.errors import StepwellError
from stepwell._core.values import plain_mapping
from stepwell.vocabulary import word_of

BASE_BITS = 52
"""Times in a Chrome trace are relative to a multiple of 2**52 ns (52 days). Such small numbers keep every
nanosecond in viewers that read numbers as 64-bit floats."""

MAX_WHOLE = 1 << 63
LONG = re.compile(r"\d{19}")

_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode
NOT_WELL = ("error", "unfinished", "open")
"""Every status but "ok"."""


def time_base(time_ns: int) -> int:
    """Return the time that a trace counts from, the same for all traces that begin in the same 52 days."""
    return time_ns >> BASE_BITS << BASE_BITS


def format_micros(nanoseconds: int) -> str:
    """Return nanoseconds as a decimal number of microseconds, without loss."""
    if nanoseconds < 0:
        return "-" + format_micros(-nanoseconds)
    whole, rest = divmod(nanoseconds, 1000)
    return f"{whole}.{rest:03d}" if rest else str(whole)


def quoted(text: str) -> str:
    """Return a text as a JSON string."""
    return json.dumps(_sound(text), ensure_ascii=False)


def json_members(values: dict[str, Any]) -> str:
    """Return a mapping as the members of a JSON object, without the braces. Strictly valid."""
    try:
        text = _encode(values)
    except (ValueError, TypeError, RecursionError):
        text = _encode(plain_mapping(values))
    return _sound(text[1:-1])


def _sound(text: str) -> str:
    """Replace lone surrogates, which strict readers reject even when escaped."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def parse_attributes(text: str | None) -> dict[str, Any]:
    """Return attributes from their JSON in a run; {} if it is damaged."""
    if not text:
        return {}
    try:
        whole = _whole if LONG.search(text) else None
        attributes = json.loads(text, parse_constant=_no_number, parse_int=whole)
    except (ValueError, RecursionError):
        return {}
    return attributes if isinstance(attributes, dict) else {}


def _no_number(word: str) -> None:
    return None


def _whole(digits: str) -> int | str:
    """Return an integer, or its digits if it does not fit into 64 bits."""
    number = int(digits)
    return number if -MAX_WHOLE <= number < MAX_WHOLE else digits


def with_status(attributes: dict[str, Any], status: str) -> dict[str, Any]:
    """Return attributes and the status, unless it is "ok".

    A user's attribute ``status`` becomes ``args.status`` where it could be mistaken for the status.
    """
    if status == "ok" and attributes.get("status") not in NOT_WELL:
        return attributes
    renamed = {"args.status" if key == "status" else key: v for key, v in attributes.items()}
    return renamed if status == "ok" else {**renamed, "status": status}


def parse_steps(text: str | None) -> tuple[int, int] | None:
    """Parse ``1000:1010``, the steps from 1000 up to but not including 1010, or ``1000``, that step alone."""
    if text is None or not text.strip():
        return None
    match = re.fullmatch(r"(\d+)?(:)?(\d+)?", text.replace(" ", "").replace("_", ""))
    if match is None:
        raise StepwellError(f"--steps must be FIRST:END, such as 1000:1010, got {text!r}")
    first = int(match[1]) if match[1] else 0
    end = int(match[3]) if match[3] else 1 << 62 if match[2] else first + 1
    if end <= first:
        raise StepwellError(f"--steps must end after its first step, got {text!r}")
    return first, end


def parse_ranks(text: str | None) -> list[int] | None:
    """Parse ``0-7,16`` into a list of ranks."""
    if text is None or not text.strip():
        return None
    ranks: set[int] = set()
    for part in text.replace(" ", "").split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None or int(match[2] or match[1]) - int(match[1]) not in range(1 << 20):
            raise StepwellError(f"--ranks must be ranks such as 0-7,16, got {text!r}")
        ranks.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return sorted(ranks)


def category_of(name: str, category: str | None) -> str:
    """Return the category of a span: its own, or that of its name in the vocabulary."""
    if category:
        return category
    word = word_of(name)
    return word.category if word is not None else ""
