"""Workers: short-lived child processes that record, such as those of a DataLoader.

A worker writes live files only, into ``workers/`` in the folder of its parent. The pump of the parent seals
its full segments. When the worker has ended, the pump folds it in: its documents become one block, its
segments others, and its folder is removed. So new workers every epoch do not increase the number of files.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

from stepwell._core.files import read_json
from stepwell._core.system import is_alive
from stepwell.journal.archive import Archive, pack
from stepwell.journal.format import EVENTS, NAMES, PROCESS, WORKERS
from stepwell.journal.seal import seal_files, segment_files


def fold_workers(folder: Path, archives: dict[str, Archive]) -> int:
    """Seal the full segments of workers below ``folder``, and fold in ended workers.

    Return the number of bytes added to the archives.
    """
    added = 0
    try:
        workers = sorted((folder / WORKERS).iterdir())
    except OSError:
        return 0
    for worker in workers:
        document = read_json(worker / PROCESS)
        if document is None:
            continue
        ended = not is_alive(int(document.get("pid") or 0), int(document.get("start") or 0))
        if ended:
            added += _fold_documents(worker, document, archives["workers"])
        states = ("full", "live") if ended else ("full",)
        added += sum(seal_files(worker, worker.name, archives, states))
        if ended:
            _remove(worker)
    return added


def remove_if_empty(folder: Path) -> None:
    """Remove ``workers/`` if no worker is left in it."""
    with contextlib.suppress(OSError):
        (folder / WORKERS).rmdir()


def _fold_documents(worker: Path, document: dict[str, object], archive: Archive) -> int:
    texts = {name: _text(worker / name) for name in (NAMES, EVENTS)}
    header = {"process": worker.name, "kind": "worker", "seq": 0}
    document = {**document, "status": "finished"}
    block = pack(header, json.dumps({PROCESS: document, **texts}).encode())
    archive.append(block)
    return len(block)


def _remove(worker: Path) -> None:
    """Remove the folder of a worker that was folded in, except segments that could not be sealed."""
    with contextlib.suppress(OSError):
        # First: without it, a folder that is left over is not folded in again.
        (worker / PROCESS).unlink(missing_ok=True)
        if segment_files(worker):
            for name in (NAMES, EVENTS):
                (worker / name).unlink(missing_ok=True)
        else:
            shutil.rmtree(worker, ignore_errors=True)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
