"""One recorded process: its document, names, segments and events, wherever they lie just now."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepwell.journal.archive import archive_files, read_frames
from stepwell.journal.document import PROCESS, STACKS, read_json
from stepwell.journal.files import read_file
from stepwell.journal.format import MAX_NAMES
from stepwell.journal.journal import EVENTS, NAMES
from stepwell.journal.spool import live_folder
from stepwell.journal.tail import parse_object
from stepwell.journal.workers import WORKERS
from stepwell.reading.documents import (
    MAX_INT32,
    MAX_TIME,
    PythonStacks,
    check_document,
    check_stacks,
    clean,
    is_count,
)
from stepwell.reading.segments import Segment, live_segments, sealed_segments

MAX_TEXT_FILE = 4 << 30
MAX_STACKS = 8 << 20

Name = tuple[str, str, str]
"""(kind, category, name)"""


@dataclass
class Process:
    """What one process recorded."""

    about: dict[str, Any]
    folder: Path
    home: Path
    """Its folder in the run; ``folder`` is its spool while that is on this machine."""
    names: dict[int, Name] = field(default_factory=dict)
    segments: list[Segment] = field(default_factory=list)
    event_lines: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Its name within the run."""
        return str(self.about["process"])

    def python_stacks(self) -> PythonStacks | None:
        """Where its threads were when it made no progress; None if it did, or never wrote them."""
        is_main = self.about["role"] != "worker"
        return check_stacks(read_json(self.home / STACKS, MAX_STACKS)) if is_main else None

    def of_kind(self, kind: str) -> list[Segment]:
        """Its segments of one kind, oldest first."""
        return sorted((s for s in self.segments if s.kind == kind), key=lambda s: s.seq)

    def events(self) -> Iterator[dict[str, Any]]:
        """Its events, oldest first; lines that a full disk tore are left out."""
        for line in self.event_lines:
            event = parse_object(line)
            if event is not None and is_count(event.get("time"), MAX_TIME):
                yield _checked_event(event)


def _checked_event(event: dict[str, Any]) -> dict[str, Any]:
    """The event with nothing in it that its table could not hold."""
    for key, most in (("span", MAX_TIME), ("size", MAX_TIME), ("lane", MAX_INT32)):
        if not is_count(event.get(key), most):
            event[key] = None
    for key in ("name", "thread", "sha256"):
        event[key] = clean(str(event.get(key)))
    if not isinstance(event.get("attributes"), dict):
        event["attributes"] = {}
    return event


def process_folders(run: Path) -> list[Path]:
    """The folders of a run that hold a process."""
    try:
        with os.scandir(run) as entries:
            found = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))
    except OSError:
        return []
    return [run / name for name in found if os.path.isfile(os.path.join(run, name, PROCESS))]


def read_documents(folder: Path) -> list[dict[str, Any]]:
    """process.json of a process and of its workers, with nothing else read."""
    own = read_document(folder)
    places = _worker_folders(folder if own is None else live_folder(folder, own))
    found = {}
    for about in [own, *map(read_document, places)]:
        if about is not None:
            found[about["process"]] = about
    for about, _, _ in _folded(folder):
        found[about["process"]] = about
    return list(found.values())


def read_processes(folder: Path) -> list[Process]:
    """A process and its workers. The order of reading makes it right while they are written:
    what leaves a live file is in an archive before, and a name is written before it is used.
    """
    about = read_document(folder)
    if about is None:
        return []
    live = live_folder(folder, about)
    main = Process(about, live, folder)
    found = {main.name: main}
    for place in _worker_folders(live):
        worker = read_document(place)
        if worker is not None:
            found[worker["process"]] = Process(worker, place, place)
    segments = [s for p in list(found.values()) for s in live_segments(p.folder, p.name)]
    if live != folder:
        segments += live_segments(folder, main.name)
    sealed = sealed_segments(folder)
    for process in found.values():
        _read_texts(process, folder if process is main and live != folder else process.folder)
    # Last: a worker's texts are folded before they are removed.
    for about, names, events in _folded(folder):
        process = found.setdefault(about["process"], Process(about, folder, folder))
        process.about = about
        process.names = _names(names)
        process.event_lines = events.split("\n")
    # What was read live counts: where its spans went on meanwhile was perhaps not looked at.
    _assign(found, [*segments, *sealed])
    return list(found.values())


def _assign(processes: dict[str, Process], segments: list[Segment]) -> None:
    seen = set()
    for segment in segments:
        key = (segment.process, segment.kind, segment.seq)
        if key not in seen and segment.process in processes:
            seen.add(key)
            processes[segment.process].segments.append(segment)


def _read_texts(process: Process, other: Path) -> None:
    """Names and events of a process; from the fuller copy when spooled."""
    texts = {name: _read_text(process.folder / name) or "" for name in (NAMES, EVENTS)}
    if other != process.folder:
        for name in texts:
            copy = _read_text(other / name) or ""
            texts[name] = max(texts[name], copy, key=len)
    process.names = _names(texts[NAMES])
    process.event_lines = texts[EVENTS].split("\n")


def _worker_folders(folder: Path) -> list[Path]:
    place = folder / WORKERS
    return [] if place.is_symlink() else process_folders(place)


def _folded(folder: Path) -> Iterator[tuple[dict[str, Any], str, str]]:
    """(document, names, events) of each worker that was folded in."""
    for path in archive_files(folder, "workers"):
        for frame in read_frames(path):
            try:
                content = parse_object(frame.payload().decode("utf-8", "replace")) or {}
            except (OSError, ValueError):
                continue
            about = check_document(content.get(PROCESS))
            if about is not None:
                yield about, str(content.get(NAMES, "")), str(content.get(EVENTS, ""))


def read_document(folder: Path) -> dict[str, Any] | None:
    """process.json of one process, None when there is none that can be trusted."""
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
