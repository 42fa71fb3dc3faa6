"""Whether a recorded process still runs, and how it ended, from its document."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable
from typing import Any

from stepwell.journal.system import boot_id, is_alive

STALE_HEARTBEATS = 6
ENDINGS = ("finished", "failed", "interrupted", "killed")
"""How a process can end. ``interrupted``: Ctrl-C. ``killed``: ended without a chance to say how."""
_WORST_FIRST = ("running", "failed", "interrupted", "killed", "finished")


def status_of(about: dict[str, Any]) -> str:
    """Return running, or how the process ended; killed if it says that it runs but does not."""
    status = str(about.get("status") or "running")
    if status != "running":
        return status
    if about.get("boot") == boot_id() and about.get("host") == socket.gethostname():
        alive = is_alive(int(_number(about, "pid")), int(_number(about, "start")))
        return "running" if alive else "killed"
    age = time.time_ns() - _number(about, "heartbeat")
    limit = STALE_HEARTBEATS * (_number(about, "interval") or 5.0) * 1e9
    return "running" if age < limit else "killed"


def _number(about: dict[str, Any], key: str) -> float:
    """A number of the document, 0 if it is not there or is damaged."""
    value = about.get(key)
    return value if isinstance(value, int | float) and abs(value) < 2**63 else 0


def worst_of(statuses: Iterable[str]) -> str:
    """Return the status of a whole from the statuses of its parts; empty without parts."""
    known = set(statuses)
    return next((status for status in _WORST_FIRST if status in known), "empty")
