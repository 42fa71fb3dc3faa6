"""The backend's own run, as far as the backend has told of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stepwell.loggers.delivery.backend import NotYet

LOOK_EVERY = 0.05
KNOWN_BY = ("run_id", "id", "folder", "url")
"""A backend has its run when it has said one of these."""


@dataclass(frozen=True)
class BackendRun:
    """What a backend calls the run; None where it has no such thing.

    Attributes:
        id: the backend's own id of the run.
        name: what the run is called there.
        url: where it can be seen.
        folder: where its files are on this machine.
    """

    id: str | None = None
    name: str | None = None
    url: str | None = None
    folder: str | None = None

    @classmethod
    def of(cls, state: dict[str, Any]) -> BackendRun:
        """From what the backend keeps about itself."""
        found = {
            "id": state.get("run_id") or state.get("id"),
            "name": state.get("run_name") or state.get("name"),
            "url": state.get("url"),
            "folder": state.get("folder") or state.get("savedir"),
        }
        return cls(**{key: None if value is None else str(value) for key, value in found.items()})


def wait_for_run(
    delivery: Any, timeout: float, find: Callable[[dict[str, Any]], Any]
) -> Any | None:
    """Return what ``find`` makes of what the backend keeps about its run; None when there is none in time."""
    worker = None if delivery is None else delivery.delivery
    if worker is None:
        return None
    deadline = time.monotonic() + timeout
    worker.hurry()
    try:
        while True:
            run = _find(delivery.state(), find)
            if run is not None or time.monotonic() >= deadline:
                return run
            time.sleep(LOOK_EVERY)
    finally:
        worker.rest()


def _find(state: dict[str, Any], find: Callable[[dict[str, Any]], Any]) -> Any | None:
    if not any(state.get(key) for key in KNOWN_BY):
        return None
    try:
        return find(state)
    except NotYet:
        return None
