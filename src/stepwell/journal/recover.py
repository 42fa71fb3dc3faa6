"""Recovery: collect what a dead process left in live files or in a spool.

Nothing needs this to be read on the machine where it lies. It makes the run folder complete for other
machines, and small.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepwell.journal.archive import Archive, archive_kind
from stepwell.journal.document import PROCESS, read_json, write_json
from stepwell.journal.format import HEADER_BYTES, parse_header
from stepwell.journal.journal import EVENTS, NAMES
from stepwell.journal.liveness import status_of
from stepwell.journal.seal import seal
from stepwell.journal.spool import is_spool_of
from stepwell.journal.system import boot_id
from stepwell.journal.workers import fold_workers, remove_if_empty


@dataclass(frozen=True)
class Recovery:
    """What became of one process: recovered, alive, clean, or elsewhere (its spool is on ``host``)."""

    process: str
    outcome: str
    segments: int = 0
    host: str = ""


def recover_process(folder: Path) -> Recovery:
    """Seal everything that a dead process left, and note in its document that it was killed."""
    about = read_json(folder / PROCESS)
    if about is None:
        return Recovery(folder.name, "clean")
    here = about.get("boot") == boot_id()
    if status_of(about) == "running":
        return Recovery(folder.name, "alive")
    spool = _spool(folder, about)
    if spool is not None and not spool.is_dir():
        if not here and about.get("status") == "running":
            return Recovery(folder.name, "elsewhere", host=str(about.get("host")))
        spool = None
    archives = {kind: Archive(folder, kind) for kind in ("spans", "metrics", "workers")}
    count = 0
    if spool is not None:
        count += _collect_spool(spool, folder, archives)
    count += _seal_folder(folder, folder.name, archives)
    added = fold_workers(folder, archives)
    if about.get("status") == "running":
        # A damaged number may be infinite, which JSON cannot hold: then the document stays as it is.
        with contextlib.suppress(ValueError):
            write_json(folder / PROCESS, {**about, "status": "killed", "spool": None})
    return Recovery(folder.name, "recovered" if count or added else "clean", count)


def _spool(folder: Path, about: dict[str, Any]) -> Path | None:
    spool = about.get("spool")
    return Path(spool) if isinstance(spool, str) and is_spool_of(Path(spool), folder) else None


def _collect_spool(spool: Path, folder: Path, archives: dict[str, Archive]) -> int:
    for name in (NAMES, EVENTS):
        source, target = spool / name, folder / name
        if source.is_file() and (not target.exists() or _longer(source, target)):
            beside = folder / f".{name}.{uuid.uuid4().hex}"
            with source.open("rb") as spooled, beside.open("xb") as copy:
                shutil.copyfileobj(spooled, copy)
            os.replace(beside, target)
    count = _seal_folder(spool, folder.name, archives)
    # Copies of what was just sealed from the spool itself.
    for path in [*folder.glob("*.live"), *folder.glob("*.full")]:
        path.unlink()
    fold_workers(spool, archives)
    for name in (NAMES, EVENTS):
        (spool / name).unlink(missing_ok=True)
    remove_if_empty(spool)
    # Not empty: a worker still lives, and what it records must not go.
    with contextlib.suppress(OSError):
        spool.rmdir()
    return count


def _longer(source: Path, target: Path) -> bool:
    return source.stat().st_size > target.stat().st_size


def _seal_folder(folder: Path, process: str, archives: dict[str, Archive]) -> int:
    count = 0
    # Sorted: attributes before the spans that refer to them.
    for path in sorted([*folder.glob("*.live"), *folder.glob("*.full")]):
        data = path.read_bytes()
        frame = seal(process, data, path.name)
        if frame is not None:
            archives[archive_kind(path.name.partition("-")[0])].append(frame)
            count += 1
        elif parse_header(data[:HEADER_BYTES]) is None and data.strip(b"\0"):
            continue  # Its header is damaged, so nobody can read it: it is kept, not deleted.
        path.unlink()
    return count
