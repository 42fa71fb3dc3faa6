"""Whether a recorded process still lives, told from its document, on its machine or on another."""

from __future__ import annotations

import socket
import time
from typing import Any

from stepwell.journal.system import boot_id, is_alive

STALE_HEARTBEATS = 6


def status_of(about: dict[str, Any]) -> str:
    """running, finished, failed, or killed: it says it runs but does not."""
    status = str(about.get("status") or "running")
    if status != "running":
        return status
    if about.get("boot") == boot_id() and about.get("host") == socket.gethostname():
        alive = is_alive(int(about.get("pid") or 0), int(about.get("start") or 0))
        return "running" if alive else "killed"
    age = time.time_ns() - int(about.get("heartbeat") or 0)
    limit = STALE_HEARTBEATS * float(about.get("interval") or 5.0) * 1e9
    return "running" if age < limit else "killed"
