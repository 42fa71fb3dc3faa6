"""The processes of a run as the level of detail needs them: numbers, lanes, and times since the run began.

Opening a process takes time in proportion to its archives. Blocks of archives are therefore remembered and
only new ones are read, and processes that have ended are remembered as long as their files do not change.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from stepwell._core import clock
from stepwell.analysis.cache import memory
from stepwell.analysis.ranks.stacks import seen_status
from stepwell.analysis.timeline.wall import Liveness, began_ns, life, life_of
from stepwell.journal.archive import Block, read_blocks
from stepwell.journal.document import status_of
from stepwell.journal.names import MAX_NAME
from stepwell.reading import RecordedRun
from stepwell.reading.layout import Layout
from stepwell.reading.process import Process, process_folders, read_document, read_documents
from stepwell.reading.segments import RecordedSegment, sealed_segments
from stepwell.reading.spans import OPEN, SpanReader
from stepwell.reading.tables import LOST, ProcessTables

PROCESS_SHIFT = 34
"""Ids of spans here: the number of the process << 34 | the id in the process. Below 2**53, so that
JavaScript has them exactly."""
MAX_PROCESSES = 1 << 19
LOCAL_MASK = (1 << PROCESS_SHIFT) - 1
GROUP = 32
"""Numbers of segments in one file of the cache."""
BLOCK_COST = 2000
"""Approximate bytes in memory of one block without its payload."""

Signature = tuple[Any, ...]


@dataclass(eq=False)
class ProcessSource:
    """One process of a run.

    Attributes:
        run: the folder of the run.
        tables: its records, without events.
        number: its place among the processes of the run, by start.
        shift: add it to a clock value of the process to get nanoseconds since the run began.
        status: running, or how it ended.
    """

    run: Path
    tables: ProcessTables
    number: int
    shift: int
    status: str
    _endless: dict[int, dict[int, bool]] = field(default_factory=dict)

    @property
    def process(self) -> Process:
        """The files of the process."""
        return self.tables.process

    @property
    def rank(self) -> int:
        """Its rank; for a worker that of its parent."""
        return int(self.process.document["rank"])

    @property
    def attempt(self) -> int:
        """Its attempt."""
        return int(self.process.document["attempt"])

    @property
    def is_worker(self) -> bool:
        """Whether it is the worker of a rank."""
        return bool(self.process.document["role"] == "worker")

    @cached_property
    def reader(self) -> SpanReader:
        """Reads its spans."""
        return SpanReader(self.process)

    @cached_property
    def texts(self) -> dict[int, RecordedSegment]:
        """Its segments of attributes by the number of the span segment that they belong to."""
        return {segment.seq: segment for segment in self.process.of_kind("attributes")}

    def name(self, number: int) -> tuple[str, str]:
        """Return the name with this number and its category; names of strangers are cut off."""
        _, category, name = self.process.names.get(number, LOST)
        return name[:MAX_NAME], category[:MAX_NAME]

    def thread(self, lane: int) -> str:
        """Return the name of a thread."""
        return self.tables.threads.get(lane, "")[:MAX_NAME]

    def endless(self, segment: RecordedSegment) -> dict[int, bool]:
        """Return the spans of a segment that have no end anywhere, and whether they are open."""
        if segment.seq not in self._endless:
            rows = self.reader.rows(segment, depths=False)
            at = np.flatnonzero(rows.end == 0)
            is_open = rows.status[at] == OPEN
            pairs = zip(rows.id[at].tolist(), is_open.tolist(), strict=True)
            self._endless[segment.seq] = dict(pairs)
        return self._endless[segment.seq]

    @cached_property
    def last_seen(self) -> int:
        """Now, or the last sign of life, on the clock of the process."""
        alive = Liveness(self.status, clock.wall())
        return life_of(self.tables, alive)[1] - self.tables.offset


@dataclass(frozen=True)
class Outline:
    """A process in few words: its document, the lanes that have spans, and its last sign of life."""

    folder: Path
    document: dict[str, Any]
    lanes: tuple[int, ...]
    last_clock: int


class RunSource:
    """A run at one moment: its documents, and its processes when they are needed."""

    def __init__(self, run: RecordedRun) -> None:
        self.run = run
        self._folders = process_folders(run.folder)
        documents = [d for folder in self._folders for d in _documents(folder)]
        self.documents = sorted(documents, key=_by_start)[:MAX_PROCESSES]
        self.began_ns = began_ns(run, self.documents)
        self._numbers = {str(d["process"]): i for i, d in enumerate(self.documents)}
        self._statuses = {str(d["process"]): status_of(d) for d in self.documents}
        self._layout = Layout.of(run.id, self.documents)

    @property
    def ranks(self) -> list[int]:
        """The ranks of the run."""
        return sorted({int(d["rank"]) for d in self.documents})

    @property
    def is_live(self) -> bool:
        """Whether one of its processes is running."""
        return "running" in self._statuses.values()

    def signature(self) -> str:
        """Return a text that changes when the files of an ended run do."""
        parts = [(folder.name, _files(folder)) for folder in self._folders]
        return f"{zlib.crc32(json.dumps(parts).encode()):08x}-{len(parts)}"

    def outlines(self, ranks: Sequence[int] | None = None) -> list[Outline]:
        """Return the processes of some ranks, or of all, in the order of the screen."""
        outlines = [o for folder in self._chosen(ranks) for o in self._outlined(folder)]
        outlines = [o for o in outlines if o.document["process"] in self._numbers]
        return sorted(outlines, key=lambda o: _on_screen(o.document))

    def end(self, outlines: Iterable[Outline]) -> int:
        """Return the end of the run: now, or the last sign of life of these processes."""
        ends = [self.began_ns + 1]
        for outline in outlines:
            document, last = outline.document, outline.last_clock
            alive = Liveness(seen_status(document, self._statuses), clock.wall())
            records = [last + self._layout.offsets.get(document["boot"], 0)] if last else []
            ends.append(life(document, alive, records)[1])
        return max(ends) - self.began_ns

    def open(self, outline: Outline) -> ProcessSource | None:
        """Return the process of an outline."""
        return self._opened(outline.folder).get(str(outline.document["process"]))

    def processes(self, ranks: Sequence[int] | None = None) -> Iterator[ProcessSource]:
        """Yield the processes of some ranks, or of all, in the order of the screen."""
        opened = [p for folder in self._chosen(ranks) for p in self._opened(folder).values()]
        yield from sorted(opened, key=lambda source: _on_screen(source.process.document))

    def process_numbered(self, number: int) -> ProcessSource | None:
        """Return the process with this number; None if there is none."""
        if not 0 <= number < len(self.documents):
            return None
        rank = int(self.documents[number]["rank"])
        return next((p for p in self.processes([rank]) if p.number == number), None)

    def _chosen(self, ranks: Sequence[int] | None) -> list[Path]:
        if ranks is None:
            return self._folders
        wanted = set(ranks)
        documents = ((folder, read_document(folder)) for folder in self._folders)
        return [folder for folder, d in documents if d is not None and d["rank"] in wanted]

    def _outlined(self, folder: Path) -> list[Outline]:
        """Return the outlines of a process and its workers. Their lanes change only with their files."""
        self.run.bring(folder)
        document = read_document(folder)
        if document is None:
            return []
        # Live files have their full size from the start. A process with a spool has them elsewhere.
        files = tuple((n, s if n.endswith(".zst") else None) for n, s, _ in _files(folder))
        is_running = status_of(document) == "running"
        workers = tuple(d["process"] for d in _documents(folder))
        key = "outline", str(folder), files, workers, is_running
        uses_spool = is_running and document["spool"]
        outlines: list[Outline] | None = None if uses_spool else memory.get(key)
        if outlines is None:
            outlines = [
                Outline(
                    folder,
                    source.process.document,
                    tuple(sorted(source.reader.lanes)),
                    source.process.last_clock,
                )
                for source in self._opened(folder).values()
            ]
            memory.put(key, outlines, 2000 * (1 + len(outlines)))
        return outlines

    def _opened(self, folder: Path) -> dict[str, ProcessSource]:
        self.run.bring(folder)
        shifts = sorted(self._layout.offsets.items()), self.began_ns, len(self.documents)
        key = "process", str(folder), json.dumps(_files(folder)), json.dumps(shifts)
        sources: dict[str, ProcessSource] | None = memory.get(key)
        if sources is None:
            sources = self._open(folder)
            if not any(source.status == "running" for source in sources.values()):
                segments = [s for source in sources.values() for s in source.process.segments]
                memory.put(key, sources, sum(BLOCK_COST + len(s.body) for s in segments))
        return sources

    def _open(self, folder: Path) -> dict[str, ProcessSource]:
        sources = {}
        for tables in self._layout.read(folder, True, _sealed_segments, events=False):
            name, shift = tables.process.name, tables.offset - self.began_ns
            number = self._numbers.get(name)
            if number is not None:
                status = seen_status(tables.process.document, self._statuses)
                sources[name] = ProcessSource(self.run.folder, tables, number, shift, status)
        return sources


def pack_id(number: int, local: int) -> int:
    """Return the id of a span from the number of its process and its id there."""
    return number << PROCESS_SHIFT | local


def unpack_id(identity: int) -> tuple[int, int]:
    """Return the number of the process of a span, and its id there."""
    return identity >> PROCESS_SHIFT, identity & LOCAL_MASK


def by_group(segments: Iterable[RecordedSegment]) -> dict[int, list[RecordedSegment]]:
    """Return the sealed segments among these by the number of their group, which is one file of the cache."""
    groups: dict[int, list[RecordedSegment]] = {}
    for segment in segments:
        if segment.sealed is not None:
            groups.setdefault(segment.seq // GROUP, []).append(segment)
    return groups


def fingerprint(segment: RecordedSegment) -> int:
    """Return a number that differs for another sealed segment with the same process and number."""
    assert segment.sealed is not None
    parts = [segment.header.get(key) for key in ("time", "until", "slots", "rows", "thread")]
    return zlib.crc32(repr((segment.sealed.size, parts)).encode("utf-8", "replace"))


# Files


def _sealed_segments(folder: Path) -> list[RecordedSegment]:
    return sealed_segments(folder, _blocks)


def _blocks(path: Path) -> list[Block]:
    """Return the blocks of an archive, which only grows: a file that did anything else is read again."""
    try:
        status = path.stat()
    except OSError:
        return []
    key = "archive", str(path), status.st_ino
    known: tuple[list[Block], int, int] | None = memory.get(key)
    if known is not None and known[1:] == (status.st_size, status.st_mtime_ns):
        return known[0]
    blocks: list[Block] = []
    if known is not None and status.st_size > known[1]:
        blocks = list(known[0])
    blocks += read_blocks(path, blocks[-1].end if blocks else 0)
    memory.put(key, (blocks, status.st_size, status.st_mtime_ns), BLOCK_COST * (1 + len(blocks)))
    return blocks


def _files(folder: Path) -> list[tuple[str, int, int]]:
    """Return name, size and modification time of the files of a process, without heartbeats."""
    try:
        with os.scandir(folder) as entries:
            statuses = [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries]
    except OSError:
        return []
    return sorted((name, status.st_size, status.st_mtime_ns) for name, status in statuses)


def _documents(folder: Path) -> list[dict[str, Any]]:
    """Return the documents of a process and its workers. Those of an ended process are remembered."""
    own = read_document(folder)
    if own is None or status_of(own) == "running":
        return read_documents(folder)
    key = "documents", str(folder), json.dumps(_files(folder))
    return memory.kept(key, lambda: read_documents(folder), lambda made: 3000 * (1 + len(made)))


def _by_start(document: dict[str, Any]) -> tuple[Any, ...]:
    return document["started"] or 0, document["process"]


def _on_screen(document: dict[str, Any]) -> tuple[Any, ...]:
    place = document["rank"], document["attempt"], document["role"] == "worker"
    return *place, document["worker"] or 0, *_by_start(document)
