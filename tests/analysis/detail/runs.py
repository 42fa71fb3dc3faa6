"""Runs with given records: random nested spans in many small segments, and metrics."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from stepwell import open_run
from stepwell._core.files import write_json
from stepwell.journal.format import ERROR
from stepwell.journal.process_writer import ProcessWriter, SpanColumns
from stepwell.reading import RecordedRun

BEGAN = 1_700_000_000_000_000_000
CLOCK = 10**12
"""The clock of each process when the run began."""
NAMES = ("forward", "backward", "my own", "all_reduce")


@dataclass
class Written:
    """A run to write: call ``add`` for each process, then ``open``."""

    folder: Path
    rows_a_segment: int = 40
    processes: int = 0
    document: dict[str, Any] = field(default_factory=dict)

    def add(
        self,
        write: Callable[[ProcessWriter], None],
        rank: int = 0,
        attempt: int = 0,
        started: int = 0,
        lasted: int = 10**9,
        **document: Any,
    ) -> str:
        """Write a process and return its name. ``started`` is in ns since the run began."""
        name = f"rank-{rank:05d}.attempt-{attempt}.pid-{1000 + self.processes}"
        writer = ProcessWriter(self.folder / name, name)
        writer.begin_lane("MainThread", 1)

        def has_room(columns: SpanColumns, size: int) -> bool:
            return len(columns._starts) + 2 <= self.rows_a_segment

        with mock.patch.object(SpanColumns, "has_room", has_room):
            write(writer)
            values = {
                "process": name,
                "role": "main",
                "run": self.folder.name,
                "attempt": attempt,
                "rank": rank,
                "host": "node",
                "boot": "another",
                "pid": 1000 + self.processes,
                "start": 0,
                "started": BEGAN + started,
                "status": "finished",
                "heartbeat": BEGAN + started + lasted,
                "interval": 5.0,
                "anchors": [[CLOCK, BEGAN]],
            }
            writer.close({**values, **document})
        self.processes += 1
        return name

    def open(self) -> RecordedRun:
        """Write run.json and return the run."""
        document = {"stepwell": 1, "id": self.folder.name, "name": "test", "created": BEGAN}
        write_json(self.folder / "run.json", {**document, **self.document})
        return open_run(self.folder)


def random_spans(
    seed: int, count: int, open_at_end: int = 0, lanes: int = 1
) -> Callable[[ProcessWriter], None]:
    """Return a function that writes nested spans of very different lengths."""

    def write(writer: ProcessWriter) -> None:
        chance = random.Random(seed)
        for lane in range(lanes):
            if lane:
                writer.begin_lane(f"thread {lane}", 1 + lane)
            clock = CLOCK + chance.randrange(1000)
            root = writer.span("training_loop", "", clock, 0 if open_at_end else clock + 10**9)
            stack = [root]
            for _ in range(open_at_end):
                clock += chance.randrange(1, 50)
                stack.append(writer.span(chance.choice(NAMES), "", clock, 0, stack[-1]))
            for _ in range(count // lanes):
                clock += int(10 ** chance.uniform(0, 5.5))
                length = int(10 ** chance.uniform(0, 6))
                mark = ERROR if chance.random() < 0.02 else 0
                name = chance.choice(NAMES)
                outer = writer.span(name, "", clock, clock + length, stack[-1], mark=mark)
                inner, until = clock, clock + length
                while length > 100 and chance.random() < 0.7:
                    inner += int(10 ** chance.uniform(0, 4))
                    end = inner + int(10 ** chance.uniform(0, 4))
                    if end >= until:
                        break
                    writer.span(chance.choice(NAMES), "own", inner, end, outer)
                    inner = end
                clock += length

    return write
