"""A recorded run as parts to write out: which processes, which stretch of each, under which numbers."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.exporters.trace_json import parsed
from stepwell.journal.errors import StepwellError

if TYPE_CHECKING:
    from stepwell.reading import RecordedRun
    from stepwell.reading.tables import ProcessTables
    from stepwell.reading.window import Window

EVENT_COLUMNS = ("name", "thread", "time_ns", "step", "epoch", "attributes")
METRIC_COLUMNS = ("name", "time_ns", "value", "step")


@dataclass(frozen=True)
class Place:
    """What a trace calls a process: a number that no other one has, and a name for people."""

    number: int
    name: str
    about: dict[str, Any]


@dataclass(frozen=True)
class Written:
    """What an export wrote, and how much of it."""

    files: list[Path]
    spans: int
    events: int
    metrics: int


@dataclass(frozen=True)
class Part:
    """The records of one process that are to be written."""

    place: Place
    tables: ProcessTables
    window: Window | None
    steps: tuple[int, int] | None

    @property
    def threads(self) -> dict[int, str]:
        """Names of its threads by the number of their lane."""
        return self.tables.threads

    def native_threads(self) -> dict[int, int]:
        """The operating system's number of each thread, by lane, where it is known."""
        found = {s.lane: s.header.get("native") for s in self.tables.process.segments}
        return {lane: n for lane, n in found.items() if type(n) is int and 0 < n < 1 << 31}

    def last_sign_ns(self) -> int:
        """When the process was last known to live; what is open lasted at least until then."""
        from stepwell.reading.window import ends_of

        segments = self.tables.process.of_kind("spans")
        last = max(map(ends_of, segments), default=0)
        heartbeat = int(self.place.about["heartbeat"] or 0)
        return max(heartbeat, last + self.tables.offset if last else 0)

    def spans(self, depths: bool = False) -> Iterator[tuple[int, list[Any]]]:
        """(lane, rows) of a segment at a time; a row has the columns of ``reading.pieces``."""
        from stepwell.reading.pieces import SpanPieces

        for lane, rows in SpanPieces(self.tables, self.window, depths):
            yield lane, rows if self.steps is None else [r for r in rows if self._has(r[7])]

    def events(self) -> Iterator[tuple[str, str, int, int | None, int | None, dict[str, Any]]]:
        """Name, thread, time, step, epoch and attributes of each event."""
        from stepwell.reading.window import ALWAYS

        for frame in self.tables.events(set(EVENT_COLUMNS), window=self.window or ALWAYS):
            for *row, text in frame.select(EVENT_COLUMNS).iter_rows():
                if self._has(row[3]):
                    yield row[0], row[1], row[2], row[3], row[4], parsed(text)

    def metrics(self) -> Iterator[tuple[str, int, float]]:
        """Name, time and value of each number."""
        for frame in self.tables.metrics(set(METRIC_COLUMNS), self.window):
            for name, time, value, step in frame.select(METRIC_COLUMNS).iter_rows():
                if self._has(step):
                    yield name, time, value

    def _has(self, step: int | None) -> bool:
        if self.steps is None:
            return True
        return step is not None and self.steps[0] <= step < self.steps[1]


def recorded(run: RecordedRun | str | os.PathLike[str]) -> RecordedRun:
    """A run, or the one in this folder."""
    from stepwell.reading import RecordedRun, open_run

    return run if isinstance(run, RecordedRun) else open_run(run)


def places_of(run: RecordedRun) -> dict[str, Place]:
    """The processes of a run by name, numbered from 1: rank by rank, workers behind their parent."""
    documents = sorted(run.documents(), key=_order)
    has_restarts = any(about["attempt"] for about in documents)
    return {
        about["process"]: Place(number, _name(about, has_restarts), about)
        for number, about in enumerate(documents, 1)
    }


def parts_of(
    run: RecordedRun,
    places: dict[str, Place],
    steps: tuple[int, int] | None = None,
    ranks: Iterable[int] | None = None,
) -> Iterator[Part]:
    """The processes to write, one after the other; those that were in none of the steps are left out."""
    for rank in check_ranks(run, ranks):
        for tables in run.by_process(rank, partial=steps is not None):
            place = places.get(tables.process.name)
            if place is None:
                continue
            if steps is None:
                yield Part(place, tables, None, None)
            elif not tables.context.has_steps:
                # Only the spans themselves may say which step they belong to.
                yield Part(place, tables, None, steps)
            else:
                window = tables.context.window(*steps)
                if window is not None:
                    yield Part(place, tables, window, None)


def check_ranks(run: RecordedRun, ranks: Iterable[int] | None) -> Collection[int]:
    """The ranks of a run that are asked for; an error when there is none of them."""
    there = run.ranks()
    if ranks is None:
        return there
    found = sorted(set(there) & set(ranks))
    if not found:
        raise StepwellError(f"run {run.id} has none of these ranks: it has {_listed(there)}")
    return found


def check_found(spans: int, steps: tuple[int, int] | None) -> None:
    """Refuse a window that has nothing in it."""
    if steps is not None and not spans:
        raise StepwellError(f"there are no spans in steps {steps[0]}:{steps[1]}")


def _order(about: dict[str, Any]) -> tuple[Any, ...]:
    is_worker = about["role"] == "worker"
    return (
        about["rank"],
        about["attempt"],
        is_worker,
        about["worker"] if about["worker"] is not None else 0,
        about["started"] or 0,
        about["process"],
    )


def _name(about: dict[str, Any], has_restarts: bool) -> str:
    name = f"rank {about['rank']}"
    if about["role"] == "worker":
        number = about["worker"]
        name += " worker" if number is None else f" worker {number}"
    return f"{name} (attempt {about['attempt']})" if has_restarts else name


def _listed(ranks: list[int]) -> str:
    if len(ranks) > 8:
        return f"{ranks[0]} to {ranks[-1]}"
    return ", ".join(map(str, ranks)) or "none"
