"""Keeping the content of logged items as ordinary files, in a folder for people to look into."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import uuid
from pathlib import Path, PurePosixPath

BLOCK = 1 << 20
MAX_PART = 150
"""So many bytes of a name, the last ones, are taken into a path; file systems end at 255."""


def keep_file(content: Path, sha256: str, folder: Path, path: str) -> Path:
    """Copy a content to this path below a folder, and return where it is then.

    One that is there already is not copied again, and one with another content is not replaced: the new
    one then has the beginning of its sha256 in its name. No name leads out of the folder.
    """
    wanted = folder.joinpath(*safe_parts(path))
    beside = wanted.with_name(f"{wanted.stem}-{sha256[:12]}{wanted.suffix}")
    for target in (wanted, beside):
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            _copy(content, target)
            return target
        if _is(target, sha256, content.stat().st_size):
            return target
    return beside


def safe_parts(path: str) -> list[str]:
    """The parts of a path from somebody else, with nothing in them that leads out of a folder."""
    parts = [part for part in PurePosixPath(path.replace("\\", "/")).parts if part.strip("/. ")]
    return [_safe(part) for part in parts] or ["unnamed"]


def as_one_part(name: str) -> str:
    """A name from somebody else, as that of one file or folder."""
    return "_".join(safe_parts(name))


def _safe(part: str) -> str:
    printable = re.sub(r"[\x00-\x1f:*?\"<>|]", "_", part)
    short = printable.encode("utf-8", "replace")[-MAX_PART:]
    return short.decode("utf-8", "ignore")


def _is(path: Path, sha256: str, size: int) -> bool:
    if not path.is_file() or path.stat().st_size != size:
        return False
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest() == sha256


def _copy(content: Path, target: Path) -> None:
    """In one step, so that nobody sees half of it."""
    incoming = target.with_name(f".{uuid.uuid4().hex}")
    try:
        shutil.copyfile(content, incoming)
        os.replace(incoming, target)
    finally:
        incoming.unlink(missing_ok=True)
