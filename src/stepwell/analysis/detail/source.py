"""The processes of a run as the level of detail needs them: numbers, lanes, and times since the run began."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from stepwell._core import clock
from stepwell.analysis.ranks.stacks import seen_status
from stepwell.journal.document import status_of
from stepwell.reading import RecordedRun
from stepwell.reading.process import Process
from stepwell.reading.segments import ends_of
from stepwell.reading.tables import ProcessTables

PROCESS_SHIFT = 34
"""Ids of spans here: the number of the process << 34 | the id in the process. Below 2**53, so that
JavaScript has them exactly."""
MAX_PROCESSES = 1 << 19
LOCAL_MASK = (1 << PROCESS_SHIFT) - 1


@dataclass(frozen=True)
class ProcessSource:
    """One process of a run.

    Attributes:
        tables: its records.
        number: its place among the processes of the run, by start.
        shift: add it to a clock value of the process to get nanoseconds since the run began.
        status: running, or how it ended.
    """

    tables: ProcessTables
    number: int
    shift: int
    status: str

    @property
    def process(self) -> Process:
        """The files of the process."""
        return self.tables.process

    @property
    def rank(self) -> int:
        """Its rank; for a worker that of its parent."""
        return int(self.process.about["rank"])

    @property
    def attempt(self) -> int:
        """Its attempt."""
        return int(self.process.about["attempt"])

    @property
    def is_worker(self) -> bool:
        """Whether it is the worker of a rank."""
        return bool(self.process.about["role"] == "worker")

    def last_seen(self) -> int:
        """Return now, or the last sign of life, on the clock of the process."""
        if self.status == "running":
            return clock.wall() - self.tables.offset
        latest = max((ends_of(s) for s in self.process.of_kind("spans")), default=0)
        return max(int(self.process.about["heartbeat"] or 0) - self.tables.offset, latest)


class RunSource:
    """A run at one moment: its documents, and its processes when they are needed."""

    def __init__(self, run: RecordedRun) -> None:
        self.run = run
        self.documents = sorted(run.documents(), key=_by_start)[:MAX_PROCESSES]
        self.began_ns = began_ns(self.documents)
        self._numbers = {str(d["process"]): i for i, d in enumerate(self.documents)}
        self._statuses = {str(d["process"]): status_of(d) for d in self.documents}

    @property
    def ranks(self) -> list[int]:
        """The ranks of the run."""
        return sorted({int(d["rank"]) for d in self.documents})

    def processes(self, ranks: Iterable[int] | None = None) -> Iterator[ProcessSource]:
        """Yield the processes of some ranks, or of all, in the order of the screen."""
        wanted = None if ranks is None else set(ranks)
        chosen = []
        for rank in self.ranks if wanted is None else sorted(wanted.intersection(self.ranks)):
            for tables in self.run.by_process(rank, partial=True):
                number = self._numbers.get(tables.process.name)
                if number is not None:
                    status = seen_status(tables.process.about, self._statuses)
                    shift = tables.offset - self.began_ns
                    chosen.append(ProcessSource(tables, number, shift, status))
        yield from sorted(chosen, key=lambda source: _on_screen(source.process.about))

    def process_numbered(self, number: int) -> ProcessSource | None:
        """Return the process with this number; None if there is none."""
        if not 0 <= number < len(self.documents):
            return None
        rank = int(self.documents[number]["rank"])
        return next((p for p in self.processes([rank]) if p.number == number), None)


def began_ns(documents: Iterable[dict[str, Any]]) -> int:
    """Return when the run began, the origin of all times here: the start of its first process."""
    return min((int(d["started"]) for d in documents if d["started"]), default=0)


def pack_id(number: int, local: int) -> int:
    """Return the id of a span from the number of its process and its id there."""
    return number << PROCESS_SHIFT | local


def unpack_id(identity: int) -> tuple[int, int]:
    """Return the number of the process of a span, and its id there."""
    return identity >> PROCESS_SHIFT, identity & LOCAL_MASK


def _by_start(document: dict[str, Any]) -> tuple[Any, ...]:
    return document["started"] or 0, document["process"]


def _on_screen(document: dict[str, Any]) -> tuple[Any, ...]:
    worker = document["worker"]
    return (
        document["rank"],
        document["attempt"],
        document["role"] == "worker",
        0 if worker is None else worker,
        *_by_start(document),
    )
