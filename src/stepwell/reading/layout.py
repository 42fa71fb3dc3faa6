"""What the processes of a run share: with it, each of them can be read by itself, anywhere."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepwell.reading.clock import clock_offsets
from stepwell.reading.context import ContextLog
from stepwell.reading.process import Process, read_processes
from stepwell.reading.tables import ProcessTables


@dataclass(frozen=True)
class Layout:
    """The clocks of a run's machines and the numbers of its processes.

    Attributes:
        run: the id of the run.
        offsets: what to add to a clock for the time since the epoch, by boot id.
        numbers: one for each process, which makes the ids of its spans unique.
    """

    run: str
    offsets: dict[str, int]
    numbers: dict[str, int]

    @classmethod
    def of(cls, run: str, documents: list[dict[str, Any]]) -> Layout:
        """The layout that these processes, which are all of a run's, make."""
        return cls(run, clock_offsets(documents), _numbers(d["process"] for d in documents))

    def only(self, documents: Iterable[dict[str, Any]]) -> Layout:
        """The little of it that these processes need."""
        offsets, numbers = {}, {}
        for about in documents:
            numbers[about["process"]] = self.numbers[about["process"]]
            if about["boot"] in self.offsets:
                offsets[about["boot"]] = self.offsets[about["boot"]]
        return Layout(self.run, offsets, numbers)

    def read(self, folder: Path, partial: bool = False) -> Iterator[ProcessTables]:
        """The records of the process in a folder, and of each of its workers."""
        processes = read_processes(folder)
        for process, context in zip(processes, contexts(processes, partial), strict=True):
            offset = self.offsets.get(process.about["boot"], 0)
            # One that came meanwhile has no number yet.
            number = self.numbers.get(process.name, _number(process.name))
            yield ProcessTables(process, context, offset, number, self.run)


def contexts(processes: list[Process], partial: bool = False) -> list[ContextLog]:
    """The context of each process: what it set itself, and for the rest that of the first one."""
    logs: list[ContextLog] = []
    for process in processes:
        logs.append(ContextLog(process, partial, logs[0] if logs else None))
    return [log if log.is_known else logs[0] for log in logs]


def _number(process: str) -> int:
    return zlib.crc32(process.encode()) & 0x7FFFFFFF


def _numbers(processes: Iterable[str]) -> dict[str, int]:
    """A number for each process, the same whenever it is read, no two alike."""
    numbers: dict[str, int] = {}
    taken: set[int] = set()
    for name in sorted(processes):
        number = _number(name)
        while number in taken:
            number = (number + 1) & 0x7FFFFFFF
        taken.add(number)
        numbers[name] = number
    return numbers
