"""Reading files that anybody may have put there: links are not followed, pipes not waited for."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_FLAGS = os.O_RDONLY
for _name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
    _FLAGS |= getattr(os, _name, 0)


def open_file(path: Path) -> int:
    """A descriptor to read a regular file with; OSError when it is anything else."""
    fd = os.open(path, _FLAGS)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return fd


def read_file(path: Path, limit: int) -> bytes:
    """The content of a regular file; OSError when it is anything else, or larger than this."""
    with open(open_file(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise OSError(errno.EFBIG, "too large to be read", str(path))
        return file.read(size)
