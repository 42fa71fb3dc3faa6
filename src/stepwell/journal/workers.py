"""Workers: child processes that record for a short while, such as those of a DataLoader.

They come and go every epoch. A worker writes live files only, into ``workers/`` of its parent's folder;
the parent's pump seals what is full, and when the worker has ended folds it in: its documents become one
frame, its segments others, its folder goes. So the number of files does not grow with the epochs.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

from stepwell.journal.archive import Archive, archive_kind, pack
from stepwell.journal.document import PROCESS, read_json
from stepwell.journal.journal import EVENTS, NAMES
from stepwell.journal.seal import seal
from stepwell.journal.system import is_alive

WORKERS = "workers"


def fold_workers(folder: Path, archives: dict[str, Archive]) -> int:
    """Take over what workers below ``folder`` have finished; returns bytes added to archives."""
    added = 0
    try:
        found = sorted((folder / WORKERS).iterdir())
    except OSError:
        return 0
    for worker in found:
        about = read_json(worker / PROCESS)
        if about is None:
            continue
        ended = not is_alive(int(about.get("pid") or 0), int(about.get("start") or 0))
        if ended:
            added += _fold_documents(worker, about, archives["workers"])
        for path in _segments(worker, ended):
            added += _fold_segment(worker.name, path, archives)
        if ended:
            shutil.rmtree(worker, ignore_errors=True)
    return added


def remove_if_empty(folder: Path) -> None:
    """Remove ``workers/`` once nobody is in it."""
    with contextlib.suppress(OSError):
        (folder / WORKERS).rmdir()


def _segments(worker: Path, ended: bool) -> list[Path]:
    full = list(worker.glob("*.full"))
    # Attributes before spans: a sealed span must find its own.
    return sorted([*full, *worker.glob("*.live")] if ended else full)


def _fold_segment(process: str, path: Path, archives: dict[str, Archive]) -> int:
    frame = seal(process, path.read_bytes(), path.name)
    if frame is not None:
        archives[archive_kind(path.name.partition("-")[0])].append(frame)
    path.unlink()
    return len(frame or b"")


def _fold_documents(worker: Path, about: dict[str, object], archive: Archive) -> int:
    texts = {name: _text(worker / name) for name in (NAMES, EVENTS)}
    header = {"process": worker.name, "kind": "worker", "seq": 0}
    about = {**about, "status": "finished"}
    frame = pack(header, json.dumps({PROCESS: about, **texts}).encode())
    archive.append(frame)
    return len(frame)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
