"""Files: reading from untrusted folders, replacing in one step, locking.

Reading never follows a symlink and never waits for a pipe.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_FLAGS = os.O_RDONLY
for _name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
    _FLAGS |= getattr(os, _name, 0)


def open_file(path: Path) -> int:
    """Return a descriptor for reading. Raise OSError if the path is not a regular file."""
    fd = os.open(path, _FLAGS)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return fd


def read_file(path: Path, limit: int) -> bytes:
    """Return the content of a file. Raise OSError if it is not a regular file, or larger than ``limit``."""
    with open(open_file(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise OSError(errno.EFBIG, "too large", str(path))
        return file.read(size)


@contextlib.contextmanager
def replacing(path: Path, durable: bool = False) -> Iterator[Path]:
    """Yield the path of a new file beside `path`, and put it in its place when the block ends.

    Readers see the old file or the new one, never a part. If the block raises, the old file stays and the new
    one is removed. The caller creates the new file.

    Args:
        path: the file to replace.
        durable: whether the new content must survive a power cut.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        yield beside
        if durable:
            sync(beside)
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
    if durable:
        # Some network file systems cannot sync a folder: the new file is in place all the same.
        with contextlib.suppress(OSError):
            sync(path.parent)


def sync(path: Path) -> None:
    """Flush a file or a folder to disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def locked(path: Path, wait: bool = True, required: bool = True) -> Iterator[bool]:
    """Hold an exclusive lock on a file, which is created if missing. Yield whether it was acquired.

    On systems and network file systems that have no locks, it is always acquired.

    Args:
        path: the file to lock.
        wait: whether to wait for another holder. If not, and there is one, yield False.
        required: whether to raise OSError if the file cannot be opened, and to yield False if another user's
            file cannot be locked. If not, yield True in both cases.
    """
    fd, is_writable = None, False
    try:
        fd, is_writable = _open_lock(path)
    except OSError:
        if required:
            raise
    try:
        yield fd is None or _lock(fd, wait, otherwise=is_writable or not required)
    finally:
        if fd is not None:
            os.close(fd)


def _open_lock(path: Path) -> tuple[int, bool]:
    """Return a descriptor, and whether it is writable."""
    flags = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
    try:
        return os.open(path, flags | os.O_RDWR | os.O_CREAT, 0o666), True
    except PermissionError as error:
        # Another user's file, of a database that several users share.
        try:
            return os.open(path, flags | os.O_RDONLY), False
        except FileNotFoundError:
            raise error from None


def _lock(fd: int, wait: bool, otherwise: bool) -> bool:
    """Return whether the lock was acquired; ``otherwise`` if the file system cannot lock this descriptor.

    NFS has no exclusive locks on descriptors that are not writable (EBADF): another process may hold one.
    """
    try:
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except (BlockingIOError, PermissionError):
        return False
    except ImportError:
        return True
    except OSError:
        return otherwise
    return True


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file in one step. Raise OSError if it cannot be written, ValueError for NaN."""
    text = json.dumps(value, indent=1, allow_nan=False, ensure_ascii=True)
    with replacing(path) as beside:
        beside.write_text(text + "\n")


def read_json(path: Path, limit: int = 64 << 20) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if it is missing, too large or not a JSON object."""
    try:
        value = json.loads(read_file(path, limit))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
