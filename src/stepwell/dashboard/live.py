"""Followers of live runs: one thread per viewed run, whatever the number of viewers."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from stepwell.analysis.live import LiveRun, Snapshot
from stepwell.analysis.timeline import run_wall_ns
from stepwell.dashboard.answers.values import encode, number, plain
from stepwell.dashboard.catalogue import Catalogue
from stepwell.reading import RecordedRun
from stepwell.reading.run import Stamp, stamp_of

EVERY_S = 1.0
LIST_EVERY_S = 2.0
UNUSED_S = 20.0
"""A follower ends after this time without a request."""
MOST_RANKS = 16
MOST_FOLLOWERS = 32
log = logging.getLogger("stepwell.dashboard")


class LiveFollower:
    """Looks at a run once a second while it is viewed. ``latest`` is (version, event)."""

    def __init__(self, run: RecordedRun) -> None:
        self.latest: tuple[int, bytes] = (0, b"")
        self.snapshot: Snapshot | None = None
        self._run = run
        self._asked = time.monotonic()
        self._thread = threading.Thread(target=self._follow, name="stepwell-follow", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def ask(self) -> tuple[int, bytes]:
        """Return the latest version and event, and keep the follower alive."""
        self._asked = time.monotonic()
        return self.latest

    def _follow(self) -> None:
        live = LiveRun(self._run)
        before: Any = None
        while time.monotonic() - self._asked < UNUSED_S:
            began = time.monotonic()
            try:
                self.snapshot = now = live.look()
            except Exception:
                # Files may disappear while they are read: the next look reads them again.
                log.debug("Looking at run %s failed", self._run.id, exc_info=True)
                time.sleep(EVERY_S)
                continue
            state = (
                now.status,
                now.step,
                len(now.findings),
                *((m.step, m.last) for m in now.metrics),
            )
            version = self.latest[0]
            if state != before:
                version, before = version + 1, state
            # Also without a change: the time goes on, and so do the open spans.
            self.latest = version, encode(event_of(now, version))
            if now.is_over:
                return
            took = time.monotonic() - began
            time.sleep(max(EVERY_S - took, 0.05, took))


def event_of(now: Snapshot, version: int) -> dict[str, Any]:
    """Return a snapshot as an event of the page."""
    return {
        "version": version,
        "status": now.status,
        "step": now.step,
        "wall_ns": round(now.seconds * 1e9),
        "seconds_left": now.seconds_left,
        "steps_per_second": now.steps_per_second,
        "values": {m.name: [[m.step, number(m.last)]] for m in now.metrics},
        "ranks": plain(now.ranks[:MOST_RANKS]),
        "findings": len(now.findings),
    }


class Followers:
    """The followers of a server, by run."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._lock = threading.Lock()
        self._followers: dict[str, LiveFollower] = {}
        self._list_version = 0
        self._list_state: dict[str, Stamp] = {}
        self._list_looked = 0.0

    def of(self, run_id: str, run: RecordedRun) -> LiveFollower:
        """Return the follower of a run; start one if there is none."""
        with self._lock:
            follower = self._followers.get(run_id)
            if follower is None or (not follower.is_alive and run.status == "running"):
                alive = {key: each for key, each in self._followers.items() if each.is_alive}
                if len(alive) >= MOST_FOLLOWERS:
                    alive.pop(next(iter(alive)))
                follower = alive[run_id] = LiveFollower(run)
                self._followers = alive
            return follower

    def list_version(self) -> int:
        """Return a number that grows when the list of runs or one of its runs changes."""
        with self._lock:
            if time.monotonic() - self._list_looked >= LIST_EVERY_S:
                state = {key: stamp_of(run) for key, run in self._catalogue.runs().items()}
                self._list_version += state != self._list_state
                self._list_state = state
                self._list_looked = time.monotonic()
            return self._list_version

    def change_list(self) -> None:
        """Let viewers ask for the list again, because more is known about its runs."""
        with self._lock:
            self._list_version += 1


def final_event(run: RecordedRun) -> bytes:
    """Return the event of a run that has ended: nothing more comes."""
    empty = {"values": {}, "ranks": [], "findings": 0}
    unknown = dict.fromkeys(("step", "seconds_left", "steps_per_second"))
    wall = run_wall_ns(run) or 0
    return encode({"version": 0, "status": run.status, "wall_ns": wall, **unknown, **empty})
