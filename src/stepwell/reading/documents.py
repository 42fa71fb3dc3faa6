"""process.json as readers take it: every field of the type that it should have, or left out."""

from __future__ import annotations

from typing import Any

MAX_INT32 = (1 << 31) - 1
MAX_TIME = (1 << 62) - 1

REQUIRED: dict[str, type[str] | int] = {
    "process": str,
    "run": str,
    "host": str,
    "boot": str,
    "attempt": MAX_INT32,
    "rank": MAX_INT32,
    "pid": MAX_INT32,
    "start": MAX_TIME,
}
OPTIONAL: dict[str, type[str] | int] = {
    "role": str,
    "parent": str,
    "status": str,
    "spool": str,
    "worker": MAX_INT32,
    "local_rank": MAX_INT32,
    "world_size": MAX_INT32,
    "started": MAX_TIME,
    "heartbeat": MAX_TIME,
    "recorder_cpu_ns": MAX_TIME,
}


def check_document(about: Any) -> dict[str, Any] | None:
    """The fields that readers use; None when it is no document of a process."""
    if not isinstance(about, dict):
        return None
    fields = {key: _checked(about.get(key), kind) for key, kind in (REQUIRED | OPTIONAL).items()}
    if any(fields[key] is None for key in REQUIRED):
        return None
    drops, anchors = about.get("drops"), about.get("anchors")
    counts = drops.values() if isinstance(drops, dict) else ()
    fields["dropped"] = min(sum(n for n in counts if is_count(n, MAX_TIME)), MAX_TIME)
    fields["anchors"] = [
        pair
        for pair in (anchors if isinstance(anchors, list) else ())
        if isinstance(pair, list) and len(pair) == 2 and all(is_count(n, MAX_TIME) for n in pair)
    ]
    interval = about.get("interval")
    fields["interval"] = interval if isinstance(interval, int | float) and interval > 0 else 5.0
    fields["error"] = _error(about.get("error"))
    return fields


def _checked(value: Any, kind: type[str] | int) -> Any:
    if isinstance(kind, int):
        return value if is_count(value, kind) else None
    return clean(value) if isinstance(value, str) else None


def _error(error: Any) -> str | None:
    if not isinstance(error, dict):
        return None
    return clean(f"{error.get('type')}: {error.get('message')}"[:4000])


def is_count(value: Any, most: int) -> bool:
    """Whether this is a number from 0 to ``most``."""
    return isinstance(value, int) and 0 <= value <= most


def clean(text: str) -> str:
    """The text without lone surrogates, which no table can hold."""
    return text.encode("utf-8", "replace").decode()
