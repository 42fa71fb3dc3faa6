"""Recovery: seal the live files that a dead process left, in its folder or in a spool.

Readers on the same machine do not need it. It makes the run folder complete for other machines, and small.
"""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepwell._core.files import read_json, replacing, write_json
from stepwell._core.system import boot_id
from stepwell.journal.archive import Archive
from stepwell.journal.document import is_spool_of, status_of
from stepwell.journal.format import EVENTS, NAMES, PROCESS
from stepwell.journal.seal import seal_files, segment_files
from stepwell.journal.workers import fold_workers, remove_if_empty


@dataclass(frozen=True)
class Recovery:
    """The outcome for one process: recovered, alive, clean, or elsewhere (its spool is on ``host``)."""

    process: str
    outcome: str
    segments: int = 0
    host: str = ""


def recover_process(folder: Path) -> Recovery:
    """Seal all segments that a dead process left, and set its status to killed."""
    document = read_json(folder / PROCESS)
    if document is None:
        return Recovery(folder.name, "clean")
    here = document.get("boot") == boot_id()
    if status_of(document) == "running":
        return Recovery(folder.name, "alive")
    spool = _spool(folder, document)
    if spool is not None and not spool.is_dir():
        if not here and document.get("status") == "running":
            return Recovery(folder.name, "elsewhere", host=str(document.get("host")))
        spool = None
    archives = {kind: Archive(folder, kind) for kind in ("spans", "metrics", "workers")}
    count = 0
    if spool is not None:
        count += _collect_spool(spool, folder, archives)
    count += len(seal_files(folder, folder.name, archives))
    added = fold_workers(folder, archives)
    if document.get("status") == "running":
        # A damaged number may be infinite, which JSON cannot represent: then the document stays as it is.
        with contextlib.suppress(ValueError):
            write_json(folder / PROCESS, {**document, "status": "killed", "spool": None})
    return Recovery(folder.name, "recovered" if count or added else "clean", count)


def _spool(folder: Path, document: dict[str, Any]) -> Path | None:
    spool = document.get("spool")
    return Path(spool) if isinstance(spool, str) and is_spool_of(Path(spool), folder) else None


def _collect_spool(spool: Path, folder: Path, archives: dict[str, Archive]) -> int:
    for name in (NAMES, EVENTS):
        source, target = spool / name, folder / name
        if source.is_file() and (not target.exists() or _longer(source, target)):
            with (
                replacing(target) as beside,
                source.open("rb") as spooled,
                beside.open("xb") as copy,
            ):
                shutil.copyfileobj(spooled, copy)
    count = len(seal_files(spool, folder.name, archives))
    # Copies of the segments that were just sealed from the spool.
    for path in segment_files(folder):
        path.unlink()
    fold_workers(spool, archives)
    for name in (NAMES, EVENTS):
        (spool / name).unlink(missing_ok=True)
    remove_if_empty(spool)
    # It is not empty while a worker is alive, whose records must be kept, or if a segment was not sealed.
    with contextlib.suppress(OSError):
        spool.rmdir()
    return count


def _longer(source: Path, target: Path) -> bool:
    return source.stat().st_size > target.stat().st_size
