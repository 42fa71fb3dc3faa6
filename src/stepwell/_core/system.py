"""The operating system: processes that are alive, the boot id, the type of a file system, freed memory."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from functools import cache
from pathlib import Path
from typing import Any

NETWORK_FILE_SYSTEMS = re.compile(
    r"nfs|cifs|smb|lustre|gpfs|mmfs|beegfs|ceph|glusterfs|9p|afs|wekafs|panfs|orangefs|pvfs|"
    r"ocfs|gfs2|virtiofs|davfs|daos|vastnfs|fuse(?!blk|ctl)"
)
"""File systems on which a mapped page may raise SIGBUS or be invisible to other nodes."""


def process_start(pid: int) -> int:
    """Return when a process started, in clock ticks since boot; 0 if it is unknown or has ended."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return 0 if fields[0] in "ZX" else int(fields[19])
    return 0


def is_alive(pid: int, start: int) -> bool:
    """Return whether the process with this pid and start time (0: unknown) is running."""
    if os.path.isdir("/proc/self"):
        now = process_start(pid)
        return now != 0 and (start == 0 or now == start)
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def boot_id() -> str:
    """Return the id of this boot of this machine. Processes with the same id share a monotonic clock."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"host-{socket.gethostname()}"


def file_system(path: Path, mounts: str | None = None) -> str:
    """Return the type of the file system of a path, "" if it is unknown."""
    if mounts is None:
        try:
            mounts = Path("/proc/self/mountinfo").read_text()
        except OSError:
            return ""
    mount_point, kind = "", ""
    target = os.path.realpath(path)
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 5 or not right:
            continue
        # mountinfo escapes spaces and other characters in octal.
        point = re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), fields[4])
        inside = target == point or target.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(mount_point):
            mount_point, kind = point, right.split()[0]
    return kind


def is_network(path: Path) -> bool:
    """Return whether a path is on a network file system."""
    return NETWORK_FILE_SYSTEMS.search(file_system(path)) is not None


@cache
def _trim() -> Any:
    try:
        import ctypes

        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        # Only glibc has it.
        return None


def trim_malloc() -> None:
    """Return freed memory to the system, which the C library keeps otherwise. Only glibc can."""
    trim = _trim()
    if trim is not None:
        trim(0)
