"""Artifacts: files kept with a run, each content once, under its sha256."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import tempfile
from collections.abc import Callable
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


def store_written(run_folder: Path, write: Callable[[IO[bytes]], object]) -> tuple[str, int]:
    """Have a file written and keep it; returns (sha256, size). It is on disk once, and never in memory."""
    folder = run_folder / ARTIFACTS
    folder.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(dir=folder, prefix=".incoming-")
    try:
        with os.fdopen(fd, "wb") as target:
            write(target)
        digest = hashlib.sha256()
        with open(name, "rb") as source:
            while block := source.read(BLOCK):
                digest.update(block)
            size = source.tell()
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
        return [(bytes(source), str(name or "bytes"))]
    if not os.fspath(source):
        raise OSError(errno.ENOENT, "an empty path names no artifact")
    path = Path(source)
    called = str(name) if name is not None else path.absolute().name
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        return [(file, f"{called}/{file.relative_to(path).as_posix()}") for file in files]
    if path.exists() and not path.is_file():
        # Reading a pipe or a device might never end.
        raise OSError(errno.EINVAL, "neither a file nor a folder", str(path))
    return [(path, called)]


def _reading(content: bytes | Path) -> IO[bytes]:
    import io

    return io.BytesIO(content) if isinstance(content, bytes) else content.open("rb")
