"""A sidecar's turn on the processor: after training, except while somebody waits for it.

Being nice is not enough. A sidecar has a session of its own, so that Ctrl-C ends training alone, and Linux
shares processors evenly between sessions first (autogroups); how nice a process is counts only
inside its session. So the whole session is made nice, which, unlike a process, can be taken back.
"""

from __future__ import annotations

import os
from pathlib import Path

NICE = 10
"""For the process, where it counts; it cannot be taken back."""
SESSION_NICE = 15
"""For the session. The kernel weighs it as it weighs processes: 36 against the 1024 of one that trains."""


class Modesty:
    """How much of the processor this process and those it has started claim."""

    def __init__(self) -> None:
        self._usual = self._wanted = 0
        self._set: dict[int, int] = {}

    def begin(self) -> None:
        """From now on training comes first."""
        if hasattr(os, "nice"):
            os.nice(NICE)
        self._usual = SESSION_NICE
        self.rest()

    def rest(self) -> None:
        """Nobody waits."""
        self._wanted = self._usual
        self.keep()

    def hurry(self) -> None:
        """Somebody waits, and so does not train."""
        self._wanted = 0
        self.keep()

    def keep(self) -> None:
        """Also for sessions that were begun since. To be called now and then."""
        for process in _own_processes():
            try:
                is_leader = os.getsid(process) == process
                if is_leader and self._set.get(process, 0) != self._wanted:
                    Path(f"/proc/{process}/autogroup").write_text(str(self._wanted))
                    self._set[process] = self._wanted
            except OSError:
                # It has ended, this is another kind of system, or it was asked too often: then next time.
                continue


def _own_processes() -> list[int]:
    """This process and its children."""
    own = os.getpid()
    found = [own]
    for path in Path(f"/proc/{own}/task").glob("*/children"):
        try:
            found += map(int, path.read_text().split())
        except (OSError, ValueError):
            continue
    return found
