"""The findings of a running job: rules are applied now and then, beside the view, not in its way."""

from __future__ import annotations

import threading
import time

from stepwell.analysis.findings.finding import Finding
from stepwell.reading import RecordedRun

EVERY_S = 30.0
REST = 20
"""They rest for so many times as long as they took: at most a twentieth of a core goes to them."""
Found = tuple[Finding, ...]


class LiveFindings:
    """Looks at a run in a thread of its own, and keeps what it found."""

    def __init__(self, run: RecordedRun) -> None:
        self._run = run
        self._thread: threading.Thread | None = None
        self._due = time.monotonic()
        self._found: Found = ()
        self._told: set[object] = set()

    def take(self, wait: bool = False) -> tuple[Found, Found]:
        """All findings as of the last time, and those that were not given out before.

        With ``wait`` the rules are applied to what is there now.
        """
        if wait:
            if self._thread is not None:
                self._thread.join()
            self._apply()
        elif self._is_due():
            # A daemon: who stops watching need not wait for it.
            self._thread = threading.Thread(target=self._apply, daemon=True)
            self._thread.start()
        found = self._found
        new = tuple(f for f in found if f.key not in self._told)
        self._told.update(finding.key for finding in new)
        return found, new

    def _is_due(self) -> bool:
        is_at_it = self._thread is not None and self._thread.is_alive()
        return not is_at_it and time.monotonic() >= self._due

    def _apply(self) -> None:
        from stepwell.analysis.findings import findings

        began = time.monotonic()
        try:
            all_of_them = findings(RecordedRun(self._run.path))
            self._found = tuple(f for f in all_of_them if f.severity != "note")
        except Exception:
            # A file that went while it was read, say: the next time tells.
            pass
        took = time.monotonic() - began
        self._due = time.monotonic() + max(EVERY_S, REST * took)
