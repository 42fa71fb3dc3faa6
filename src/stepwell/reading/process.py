"""One recorded process: its document, names, segments and events, wherever they lie just now."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepwell.journal.archive import archive_files, read_frames
from stepwell.journal.document import PROCESS, read_json
from stepwell.journal.journal import EVENTS, NAMES
from stepwell.journal.system import boot_id, is_alive
from stepwell.journal.workers import WORKERS
from stepwell.reading.segments import Segment, live_segments, sealed_segments

MAX_TEXT_FILE = 4 << 30
STALE_HEARTBEATS = 6
REQUIRED = ("process", "run", "attempt", "rank", "pid", "start", "host", "boot", "anchors")

Name = tuple[str, str, str]
"""(kind, category, name)"""


@dataclass
class Process:
    """What one process recorded."""

    about: dict[str, Any]
    folder: Path
    names: dict[int, Name] = field(default_factory=dict)
    segments: list[Segment] = field(default_factory=list)
    event_lines: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Its name within the run."""
        return str(self.about["process"])

    def of_kind(self, kind: str) -> list[Segment]:
        """Its segments of one kind, oldest first."""
        return sorted((s for s in self.segments if s.kind == kind), key=lambda s: s.seq)

    def events(self) -> Iterator[dict[str, Any]]:
        """Its events, oldest first; lines that a full disk tore are left out."""
        for line in self.event_lines:
            event = _parse(line)
            if event is not None and isinstance(event.get("time"), int):
                yield event


def process_folders(run: Path) -> list[Path]:
    """The folders of a run that hold a process."""
    try:
        found = sorted(p for p in run.iterdir() if p.is_dir() and not p.is_symlink())
    except OSError:
        return []
    return [p for p in found if (p / PROCESS).is_file()]


def read_documents(folder: Path) -> list[dict[str, Any]]:
    """process.json of a process and of its workers, with nothing else read."""
    found = {}
    for place in [folder, *_worker_folders(_live_folder(folder))]:
        about = _document(place)
        if about is not None:
            found[about["process"]] = about
    for about, _, _ in _folded(folder):
        found[about["process"]] = about
    return list(found.values())


def read_processes(folder: Path) -> list[Process]:
    """A process and its workers. The order of reading makes it right while they are written:
    what leaves a live file is in an archive before, and a name is written before it is used.
    """
    about = _document(folder)
    if about is None:
        return []
    live = _live_folder(folder)
    main = Process(about, live)
    found = {main.name: main}
    for place in _worker_folders(live):
        worker = _document(place)
        if worker is not None:
            found[worker["process"]] = Process(worker, place)
    segments = [s for p in list(found.values()) for s in live_segments(p.folder, p.name)]
    if live != folder:
        segments += live_segments(folder, main.name)
    sealed = sealed_segments(folder)
    for about, names, events in _folded(folder):
        process = found.setdefault(about["process"], Process(about, folder))
        process.names = _names(names)
        process.event_lines = events.splitlines()
    for process in found.values():
        _read_texts(process, folder if process is main and live != folder else process.folder)
    _assign(found, [*sealed, *segments])
    return list(found.values())


def _assign(processes: dict[str, Process], segments: list[Segment]) -> None:
    seen = set()
    for segment in segments:
        key = (segment.process, segment.kind, segment.seq)
        if key not in seen and segment.process in processes:
            seen.add(key)
            processes[segment.process].segments.append(segment)


def _read_texts(process: Process, other: Path) -> None:
    """Names and events of a process that is not folded; from the fuller copy when spooled."""
    if process.names:
        return
    texts = {name: _read_text(process.folder / name) or "" for name in (NAMES, EVENTS)}
    if other != process.folder:
        for name in texts:
            copy = _read_text(other / name) or ""
            texts[name] = max(texts[name], copy, key=len)
    process.names = _names(texts[NAMES])
    process.event_lines = texts[EVENTS].splitlines()


def _live_folder(folder: Path) -> Path:
    """Where the live files of a process are: its spool if that is on this machine, else here."""
    about = _document(folder)
    spool = about.get("spool") if about is not None else None
    if about is not None and isinstance(spool, str) and about["boot"] == boot_id():
        # Only a spool of ours is looked at, whatever the document says.
        path = Path(spool)
        if path.name == folder.name and path.is_dir() and not path.is_symlink():
            return path
    return folder


def _worker_folders(folder: Path) -> list[Path]:
    return process_folders(folder / WORKERS)


def _folded(folder: Path) -> Iterator[tuple[dict[str, Any], str, str]]:
    """(document, names, events) of each worker that was folded in."""
    for path in archive_files(folder, "workers"):
        for frame in read_frames(path):
            content = _parse(frame.payload().decode("utf-8", "replace")) or {}
            about = content.get(PROCESS)
            if isinstance(about, dict) and all(key in about for key in REQUIRED):
                yield about, str(content.get(NAMES, "")), str(content.get(EVENTS, ""))


def _document(folder: Path) -> dict[str, Any] | None:
    about = read_json(folder / PROCESS)
    if about is None or not all(key in about for key in REQUIRED):
        return None
    return about


def _names(text: str) -> dict[int, Name]:
    names = {}
    for line in text.splitlines():
        entry = _parse(line)
        if entry is not None and isinstance(entry.get("id"), int):
            names[entry["id"]] = (str(entry["kind"]), str(entry["category"]), str(entry["name"]))
    return names


def _parse(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _read_text(path: Path) -> str | None:
    try:
        if path.stat().st_size > MAX_TEXT_FILE:
            return None
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def status_of(about: dict[str, Any]) -> str:
    """running, finished, failed, or killed: it says it runs but does not."""
    status = str(about.get("status", "running"))
    if status != "running":
        return status
    if about["boot"] == boot_id() and about["host"] == socket.gethostname():
        return "running" if is_alive(int(about["pid"]), int(about["start"])) else "killed"
    age = time.time_ns() - int(about.get("heartbeat", 0))
    limit = STALE_HEARTBEATS * float(about.get("interval") or 5.0) * 1e9
    return "running" if age < limit else "killed"
