"""The layout of a run: clock offsets and process numbers, with which each process can be read on its own."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepwell.journal.document import clock_offset
from stepwell.reading.context import ContextLog
from stepwell.reading.process import Process, SealedSegments, read_processes
from stepwell.reading.tables import ProcessTables


@dataclass(frozen=True)
class Layout:
    """The clock offsets of the machines of a run, and the numbers of its processes.

    Attributes:
        run: the id of the run.
        offsets: nanoseconds to add to a clock value to get the time since the epoch, by boot id.
        numbers: a number for each process, which makes its span ids unique in the run.
    """

    run: str
    offsets: dict[str, int]
    numbers: dict[str, int]

    @classmethod
    def of(cls, run: str, documents: list[dict[str, Any]]) -> Layout:
        """Return the layout of a run with these documents, which must be all of its processes."""
        return cls(run, clock_offsets(documents), _numbers(d["process"] for d in documents))

    def only(self, documents: Iterable[dict[str, Any]]) -> Layout:
        """Return the part of the layout that these processes need."""
        offsets, numbers = {}, {}
        for document in documents:
            numbers[document["process"]] = self.numbers[document["process"]]
            if document["boot"] in self.offsets:
                offsets[document["boot"]] = self.offsets[document["boot"]]
        return Layout(self.run, offsets, numbers)

    def read(
        self,
        folder: Path,
        partial: bool = False,
        sealed_of: SealedSegments | None = None,
        events: bool = True,
    ) -> Iterator[ProcessTables]:
        """Yield the records of the process in a folder, and of each of its workers.

        With ``partial``, steps are read only when needed. See ``read_processes`` for the others.
        """
        processes = read_processes(folder, sealed_of, events)
        for process, context in zip(processes, contexts(processes, partial), strict=True):
            offset = self.offsets.get(process.document["boot"], 0)
            # A process that started after the layout was made has no number yet.
            number = self.numbers.get(process.name, _number(process.name))
            yield ProcessTables(process, context, offset, number, self.run)


def contexts(processes: list[Process], partial: bool = False) -> list[ContextLog]:
    """Return the context of each process; the first one is the parent of the others."""
    logs: list[ContextLog] = []
    for process in processes:
        logs.append(ContextLog(process, partial, logs[0] if logs else None))
    return [log if log.is_known else logs[0] for log in logs]


def _number(process: str) -> int:
    return zlib.crc32(process.encode()) & 0x7FFFFFFF


def _numbers(processes: Iterable[str]) -> dict[str, int]:
    """Return a unique number for each process, the same for every reader."""
    numbers: dict[str, int] = {}
    taken: set[int] = set()
    for name in sorted(processes):
        number = _number(name)
        while number in taken:
            number = (number + 1) & 0x7FFFFFFF
        taken.add(number)
        numbers[name] = number
    return numbers


def clock_offsets(documents: list[dict[str, Any]]) -> dict[str, int]:
    """Return the nanoseconds to add to a clock value to get the time since the epoch, by boot id.

    Processes of one boot share a monotonic clock, so they share one offset: the median of all their anchors,
    which a temporary step of the wall clock does not change.
    """
    anchors: dict[str, list[Any]] = {}
    for document in documents:
        anchors.setdefault(document["boot"], []).extend(document["anchors"])
    offsets = {boot: clock_offset(pairs) for boot, pairs in anchors.items()}
    return {boot: offset for boot, offset in offsets.items() if offset is not None}
