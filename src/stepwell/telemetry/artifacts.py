"""Artifacts: files stored with a run, each content once, named by its sha256."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

ARTIFACTS = "artifacts"
BLOCK = 1 << 20


def store(run_folder: Path, content: bytes | Path) -> tuple[str, int]:
    """Copy the content into the run folder; return (sha256, size)."""
    digest = hashlib.sha256()
    size = 0
    with _incoming(run_folder) as (target, keep):
        with target, _reading(content) as source:
            while block := source.read(BLOCK):
                digest.update(block)
                size += target.write(block)
        keep(digest.hexdigest())
    return digest.hexdigest(), size


def store_written(run_folder: Path, write: Callable[[IO[bytes]], object]) -> tuple[str, int]:
    """Store a file that ``write`` fills; return (sha256, size). It is on disk once, and never in memory."""
    with _incoming(run_folder) as (target, keep):
        with target:
            write(target)
        sha256, size = file_sha256(Path(target.name)), os.path.getsize(target.name)
        keep(sha256)
    return sha256, size


def file_sha256(path: Path) -> str:
    """Return the sha256 of the content of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def _incoming(run_folder: Path) -> Iterator[tuple[IO[bytes], Callable[[str], None]]]:
    """Yield a new file, and a function that stores it under its hash. An exception removes the file."""
    folder = run_folder / ARTIFACTS
    folder.mkdir(parents=True, exist_ok=True)
    # Not `tempfile`, whose files only the user can read: the user's umask applies.
    name = folder / f".incoming-{uuid.uuid4().hex}"

    def keep(sha256: str) -> None:
        os.replace(name, artifact_path(run_folder, sha256))

    try:
        yield open(name, "xb"), keep
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def artifact_path(run_folder: Path, sha256: str) -> Path:
    """Return the path of a content."""
    return run_folder / ARTIFACTS / sha256


def contents(
    source: str | os.PathLike[str] | bytes, name: str | None
) -> list[tuple[bytes | Path, str]]:
    """Return (content, name) for each file to store; ``name`` replaces the name of the file or folder."""
    if isinstance(source, bytes | bytearray | memoryview):
        return [(bytes(source), str(name or "bytes"))]
    if not os.fspath(source):
        raise OSError(errno.ENOENT, "the path of an artifact must not be empty")
    path = Path(source)
    base = str(name) if name is not None else path.absolute().name
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        return [(file, f"{base}/{file.relative_to(path).as_posix()}") for file in files]
    if path.exists() and not path.is_file():
        # Reading a pipe or a device might never end.
        raise OSError(errno.EINVAL, "not a file or a folder", str(path))
    return [(path, base)]


def _reading(content: bytes | Path) -> IO[bytes]:
    import io

    return io.BytesIO(content) if isinstance(content, bytes) else content.open("rb")
