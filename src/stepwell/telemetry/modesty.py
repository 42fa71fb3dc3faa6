"""A sidecar's turn on the processor: after training, except while somebody waits for it.

Being nice is not enough. A sidecar has a session of its own, so that Ctrl-C ends training alone, and Linux
shares processors evenly between sessions first (autogroups); how nice a process is counts only
inside its session. So the whole session is made nice, which, unlike a process, can be taken back.
"""

from __future__ import annotations

import os
from pathlib import Path

NICE = 10


class Modesty:
    """How much of the processor this process and those it has started claim."""

    def __init__(self) -> None:
        self._wanted = 0
        self._set: dict[int, int] = {}

    def begin(self) -> None:
        """From now on training comes first."""
        if hasattr(os, "nice"):
            os.nice(NICE)
        self.rest()

    def rest(self) -> None:
        """Nobody waits."""
        self._wanted = NICE
        self.keep()

    def hurry(self) -> None:
        """Somebody waits, and so does not train."""
        self._wanted = 0
        self.keep()

    def keep(self) -> None:
        """Also for sessions that were begun since. To be called now and then."""
        try:
            for leader in _sessions():
                if self._set.get(leader, 0) != self._wanted:
                    Path(f"/proc/{leader}/autogroup").write_text(str(self._wanted))
                    self._set[leader] = self._wanted
        except (OSError, ValueError):
            # Another kind of system, or asked too often: then next time.
            return


def _sessions() -> list[int]:
    """The leaders of the sessions that are this process's own, or were begun by its children."""
    own = os.getpid()
    children = (
        int(pid)
        for path in Path(f"/proc/{own}/task").glob("*/children")
        for pid in path.read_text().split()
    )
    return [pid for pid in (own, *children) if os.getsid(pid) == pid]
