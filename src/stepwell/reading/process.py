"""One recorded process: its document, names, segments and events, live or sealed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepwell._core.files import read_file, read_json
from stepwell.journal.archive import archive_files, read_blocks
from stepwell.journal.document import live_folder
from stepwell.journal.format import EVENTS, MAX_NAMES, NAMES, PROCESS, STACKS, WORKERS
from stepwell.journal.tail import parse_object
from stepwell.reading.documents import (
    MAX_INT32,
    MAX_TIME,
    PythonStacks,
    check_document,
    check_stacks,
    clean,
    is_count,
)
from stepwell.reading.segments import (
    RecordedSegment,
    ends_of,
    live_segments,
    sealed_segments,
)

MAX_TEXT_FILE = 4 << 30
MAX_STACKS = 8 << 20

Name = tuple[str, str, str]
"""(kind, category, name)"""
SealedSegments = Callable[[Path], list[RecordedSegment]]
"""Returns the segments in the archives of a folder."""


@dataclass
class Process:
    """The records of one process."""

    document: dict[str, Any]
    folder: Path
    home: Path
    """Its folder in the run; ``folder`` is its spool if that is on this machine."""
    names: dict[int, Name] = field(default_factory=dict)
    segments: list[RecordedSegment] = field(default_factory=list)
    event_lines: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name of the process in its run."""
        return str(self.document["process"])

    def python_stacks(self) -> PythonStacks | None:
        """Return the stacks of its threads while it made no progress; None if there are none."""
        is_main = self.document["role"] != "worker"
        return check_stacks(read_json(self.home / STACKS, MAX_STACKS)) if is_main else None

    def of_kind(self, kind: str) -> list[RecordedSegment]:
        """Return its segments of one kind, oldest first."""
        return sorted((s for s in self.segments if s.kind == kind), key=lambda s: s.seq)

    @property
    def last_clock(self) -> int:
        """When its last span or metric was recorded, on its clock, by the headers of segments; else 0."""
        kinds = ("spans", "metrics")
        return max((ends_of(s) for s in self.segments if s.kind in kinds), default=0)

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield its events, oldest first, without lines that a full disk cut off."""
        for line in self.event_lines:
            event = parse_object(line)
            if event is not None and is_count(event.get("time"), MAX_TIME):
                yield _checked_event(event)


def _checked_event(event: dict[str, Any]) -> dict[str, Any]:
    """Return the event with invalid fields replaced, so that it fits into its table."""
    for key, most in (("span", MAX_TIME), ("size", MAX_TIME), ("lane", MAX_INT32)):
        if not is_count(event.get(key), most):
            event[key] = None
    for key in ("name", "thread", "sha256"):
        event[key] = clean(str(event.get(key)))
    if not isinstance(event.get("attributes"), dict):
        event["attributes"] = {}
    return event


def process_folders(run: Path) -> list[Path]:
    """Return the folders of the processes of a run."""
    try:
        with os.scandir(run) as entries:
            names = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))
    except OSError:
        return []
    return [run / name for name in names if os.path.isfile(os.path.join(run, name, PROCESS))]


def read_documents(folder: Path) -> list[dict[str, Any]]:
    """Return the documents of a process and of its workers."""
    own = read_document(folder)
    places = _worker_folders(folder if own is None else live_folder(folder, own))
    documents = {}
    for document in [own, *map(read_document, places)]:
        if document is not None:
            documents[document["process"]] = document
    for document, _, _ in _folded(folder):
        documents[document["process"]] = document
    return list(documents.values())


def read_processes(
    folder: Path,
    sealed_of: SealedSegments | None = None,
    events: bool = True,
) -> list[Process]:
    """Return a process and its workers.

    The order of reading is correct while they record: live segments before archives, because a segment is in
    an archive before its file is removed; and names last, because a name is written before it is used.

    Args:
        folder: the folder of the process.
        sealed_of: returns the segments in the archives of a folder; for readers that remember them.
        events: whether to read the events.
    """
    document = read_document(folder)
    if document is None:
        return []
    live = live_folder(folder, document)
    main = Process(document, live, folder)
    processes = {main.name: main}
    for place in _worker_folders(live):
        worker = read_document(place)
        if worker is not None:
            processes[worker["process"]] = Process(worker, place, place)
    segments = [s for p in list(processes.values()) for s in live_segments(p.folder, p.name)]
    if live != folder:
        segments += live_segments(folder, main.name)
    sealed = (sealed_of or sealed_segments)(folder)
    for process in processes.values():
        other = folder if process is main and live != folder else process.folder
        _read_texts(process, other, events)
    # Last: the texts of a worker are folded in before they are removed.
    for document, names, lines in _folded(folder):
        process = processes.setdefault(document["process"], Process(document, folder, folder))
        process.document = document
        process.names = _names(names)
        process.event_lines = lines.split("\n") if events else []
    # Live copies first: the segments in which their spans continued since may not have been read.
    _assign(processes, [*segments, *sealed])
    return list(processes.values())


def _assign(processes: dict[str, Process], segments: list[RecordedSegment]) -> None:
    seen = set()
    for segment in segments:
        key = (segment.process, segment.kind, segment.seq)
        if key not in seen and segment.process in processes:
            seen.add(key)
            processes[segment.process].segments.append(segment)


def _read_texts(process: Process, other: Path, events: bool) -> None:
    """Read names and events of a process; with a spool, from the longer copy."""
    files = (NAMES, EVENTS) if events else (NAMES,)
    texts = {name: _read_text(process.folder / name) or "" for name in files}
    if other != process.folder:
        for name in texts:
            copy = _read_text(other / name) or ""
            texts[name] = max(texts[name], copy, key=len)
    process.names = _names(texts[NAMES])
    process.event_lines = texts[EVENTS].split("\n") if events else []


def _worker_folders(folder: Path) -> list[Path]:
    place = folder / WORKERS
    return [] if place.is_symlink() else process_folders(place)


def _folded(folder: Path) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Yield (document, names, events) of each worker that was folded in."""
    for path in archive_files(folder, "workers"):
        for block in read_blocks(path):
            try:
                content = parse_object(block.payload().decode("utf-8", "replace")) or {}
            except (OSError, ValueError):
                continue
            document = check_document(content.get(PROCESS))
            if document is not None:
                yield document, str(content.get(NAMES, "")), str(content.get(EVENTS, ""))


def read_document(folder: Path) -> dict[str, Any] | None:
    """Return the checked content of process.json; None if it is missing or invalid."""
    return check_document(read_json(folder / PROCESS))


def _names(text: str) -> dict[int, Name]:
    names = {}
    for line in text.split("\n"):
        entry = parse_object(line)
        if entry is not None and is_count(entry.get("id"), MAX_NAMES):
            parts = [clean(str(entry.get(key))) for key in ("kind", "category", "name")]
            names[int(entry["id"])] = (parts[0], parts[1], parts[2])
    return names


def _read_text(path: Path) -> str | None:
    try:
        return read_file(path, MAX_TEXT_FILE).decode("utf-8", "replace")
    except OSError:
        return None
