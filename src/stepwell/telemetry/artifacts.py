"""Artifacts: files kept with a run, each content once, under its sha256."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

ARTIFACTS = "artifacts"
BLOCK = 1 << 20


def store(run_folder: Path, content: bytes | Path) -> tuple[str, int]:
    """Copy the content into the run folder; returns (sha256, size)."""
    digest = hashlib.sha256()
    size = 0
    folder = run_folder / ARTIFACTS
    folder.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(dir=folder, prefix=".incoming-")
    try:
        with os.fdopen(fd, "wb") as target, _reading(content) as source:
            while block := source.read(BLOCK):
                digest.update(block)
                size += target.write(block)
        os.chmod(name, 0o644)
        os.replace(name, artifact_path(run_folder, digest.hexdigest()))
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    return digest.hexdigest(), size


def artifact_path(run_folder: Path, sha256: str) -> Path:
    """Where a content is kept."""
    return run_folder / ARTIFACTS / sha256


def contents(
    source: str | os.PathLike[str] | bytes, name: str | None
) -> list[tuple[bytes | Path, str]]:
    """(content, name) for each thing to keep; ``name`` replaces that of the file or folder."""
    if isinstance(source, bytes | bytearray | memoryview):
        return [(bytes(source), name or "bytes")]
    path = Path(source)
    found = files_below(path)
    if name is None:
        return list(found)
    return [(file, name + called[len(path.name) :]) for file, called in found]


def files_below(path: Path) -> Iterator[tuple[Path, str]]:
    """(file, name) for a file, or for each file of a folder, named from the folder on."""
    if not path.is_dir():
        yield path, path.name
        return
    for file in sorted(path.rglob("*")):
        if file.is_file():
            yield file, f"{path.name}/{file.relative_to(path).as_posix()}"


def _reading(content: bytes | Path) -> IO[bytes]:
    import io

    return io.BytesIO(content) if isinstance(content, bytes) else content.open("rb")
