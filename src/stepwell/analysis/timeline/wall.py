"""Wall time, from the first to the last sign of life.

Of a process: when it started, its last heartbeat, its records, and now if it runs. Of a run: from the first
process to the last one, over all attempts and ranks, without workers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

from stepwell._core import clock
from stepwell.journal.document import status_of
from stepwell.reading import RecordedRun
from stepwell.reading.tables import ProcessTables

Life = tuple[int, int]
"""The first and the last sign of life, in nanoseconds since the epoch."""


@dataclass(frozen=True)
class Liveness:
    """The status of a process at a given time."""

    status: str
    now_ns: int

    @classmethod
    def now(cls, document: dict[str, Any]) -> Liveness:
        """Return the current status, as seen from this machine."""
        return cls(status_of(document), clock.wall())


def life(document: dict[str, Any], alive: Liveness, records: Iterable[int] = ()) -> Life:
    """Return the first and the last sign of life of a process.

    ``records`` are times of its records: heartbeats are seconds apart, so these are more exact.
    """
    now = alive.now_ns if alive.status == "running" else None
    signs = [document.get("started"), document.get("heartbeat"), now]
    times = [sign for sign in signs if isinstance(sign, int)]
    recorded = list(records)
    start = min([*times[:1], *recorded], default=0)
    return start, max([start, *times, *recorded])


def wall_ns(lives: Iterable[Life]) -> int:
    """Return the time from the first sign of life to the last one; 0 without any."""
    signs = list(lives)
    return max((last for _, last in signs), default=0) - min(
        (first for first, _ in signs), default=0
    )


def life_of(tables: ProcessTables, alive: Liveness, records: Iterable[int] = ()) -> Life:
    """Return the first and the last sign of life of a process, from the headers of its segments."""
    last = tables.process.last_clock
    seen = [last + tables.offset] if last else []
    return life(tables.process.document, alive, [*records, *seen])


def lives_by_attempt(processes: Iterable[ProcessTables]) -> dict[int, list[Life]]:
    """Return the lives of the ranks that have started, by attempt, without reading spans."""
    lives: dict[int, list[Life]] = {}
    for tables in processes:
        document = tables.process.document
        if document["role"] != "worker" and document["started"] is not None:
            own = lives.setdefault(document["attempt"], [])
            own.append(life_of(tables, Liveness.now(document)))
    return lives


def run_wall_ns(run: RecordedRun) -> int | None:
    """Return the wall time of a run without reading its spans; None if no process has started."""
    lives = lives_by_attempt(run.by_process(partial=True))
    return wall_ns(chain(*lives.values())) if lives else None


def began_ns(run: RecordedRun, documents: Iterable[dict[str, Any]] | None = None) -> int:
    """Return when a run began, the origin of its times: the start of its first process.

    Without one, when it was created. ``documents`` are those of its processes, if they have been read.
    """
    known = run.documents() if documents is None else documents
    started = [int(document["started"]) for document in known if document["started"]]
    return min(started, default=run.created_ns)
