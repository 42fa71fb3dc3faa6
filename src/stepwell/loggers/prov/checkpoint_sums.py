"""The sha256 of checkpoints that training wrote itself, taken soon after they were saved.

The journal has their folder, their size and when they were saved. A file is taken for the checkpoint only if
it is the one there of that size that was written in that time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from stepwell.loggers.prov.facts import Checkpoint, Facts

LARGEST = 8 << 30
"""Bytes of a checkpoint that are read through."""
BLOCK = 1 << 20
SLACK = 2_000_000_000
"""Nanoseconds by which the clocks of a file system and of a process may differ."""
MOST_FILES = 10_000


def checkpoint_sums(facts: Facts, process: str, known: Mapping[str, Any]) -> dict[str, Any]:
    """What is known of each checkpoint of a process, with the sums that were not known yet."""
    found = dict(known)
    starts = {phase.id: phase.start for phase in facts.phases}
    for saved in facts.checkpoints:
        key = sum_key(saved)
        if saved.process == process and key not in found:
            start = starts.get(saved.span, saved.time) if saved.span is not None else saved.time
            found[key] = _sum(saved, start) or {}
    return found


def sum_key(saved: Checkpoint) -> str:
    """What a checkpoint is called in the file of sums."""
    return f"{saved.process} {saved.span} {saved.time}"


def _sum(saved: Checkpoint, start: int) -> dict[str, Any] | None:
    directory, size = (
        saved.attributes.get("checkpoint_directory"),
        saved.attributes.get("checkpoint_size"),
    )
    if not isinstance(directory, str) or not isinstance(size, int) or size > LARGEST:
        return None
    try:
        return _of_folder(Path(directory), size, start - SLACK, saved.time + SLACK)
    except OSError:
        return None


def _of_folder(folder: Path, size: int, start: int, end: int) -> dict[str, Any] | None:
    files = [path for path in islice(folder.iterdir(), MOST_FILES) if path.is_file()]
    alike = [path for path in files if _is_fresh(path, start, end) and path.stat().st_size == size]
    if len(alike) == 1:
        return {"sha256": _digest(alike[0]), "file": str(alike[0].absolute())}
    if alike:
        return None
    # Perhaps the folder is the checkpoint: then it has nothing else in it, and its sum is that of a line
    # for each of its files.
    files = sorted(path for path in islice(folder.rglob("*"), MOST_FILES) if path.is_file())
    if not all(_is_fresh(path, start, end) for path in files):
        return None
    if not files or sum(path.stat().st_size for path in files) != size:
        return None
    lines = [f"{_digest(path)}  {path.relative_to(folder).as_posix()}\n" for path in files]
    whole = hashlib.sha256("".join(lines).encode("utf-8", "replace")).hexdigest()
    return {"sha256": whole, "file": str(folder.absolute())}


def _is_fresh(path: Path, start: int, end: int) -> bool:
    return start <= path.stat().st_mtime_ns <= end


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()
