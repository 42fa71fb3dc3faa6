"""Runs on object storage: the objects that a reader needs are copied to a cache and read like local files.

Readers need random access and folders without symlinks; storage serves whole objects. Each object is copied
when it is first needed, and again when it has changed: a few small ones for the state of a run, a whole
folder for the records of a rank. Needs fsspec, which is imported when the first address is given.
"""

from __future__ import annotations

import contextlib
import os
import re
import zlib
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from stepwell._core.errors import StepwellError
from stepwell._core.files import replacing
from stepwell.journal.format import PROCESS

CACHE = "STEPWELL_CACHE"
ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(/?)(?=[^/]|/)")


def address_of(place: str | os.PathLike[str] | None) -> str | None:
    """Return the address of a run on object storage; None for a local path, also with ``file://``.

    A ``Path`` made from an address has lost one of its slashes; it is put back.
    """
    text = "" if place is None else os.fspath(place)
    match = ADDRESS.match(text)
    if match is None or (isinstance(place, str) and not match[2]):
        return None
    if match[1] == "file":
        return None
    return text if match[2] else text.replace(":/", "://", 1)


def path_of(place: str | os.PathLike[str]) -> Path:
    """Return a local path, given with or without ``file://``."""
    text = os.fspath(place)
    if text.startswith("file:/"):
        return Path(unquote(urlsplit(text).path))
    return Path(text).expanduser()


class Mirror:
    """A folder on object storage and the local copies of its objects."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._files, root = _open(self.url)
        self._root = root.rstrip("/")
        digest = sha256(self.url.encode()).hexdigest()[:20]
        self.folder = cache_folder() / digest / PurePosixPath(self._root).name
        """The local folder with the copies."""

    def listing(self, under: str = "") -> dict[str, tuple[int, int]]:
        """Return (size, stamp) of each object by its path below the folder. A new content has a new stamp."""
        top = f"{self._root}/{under}" if under else self._root
        try:
            self._files.invalidate_cache()
            entries = self._files.find(top, detail=True)
        except FileNotFoundError:
            return {}
        except Exception as error:
            raise StepwellError(f"{self.url} cannot be read: {error}") from None
        objects = {}
        for name, info in entries.items():
            inside = name[len(self._root) + 1 :]
            # Names are untrusted: no file may be written outside of the folder.
            if name.startswith(f"{self._root}/") and _is_inside(inside):
                objects[inside] = int(info.get("size") or 0), _stamp(info)
        return objects

    def children(self) -> list[str]:
        """Return the names of the folders directly below."""
        return sorted({name.partition("/")[0] for name in self.listing() if "/" in name})

    def fetch(self, under: str = "", wanted: Callable[[str], bool] = bool) -> int:
        """Update the copies of the wanted objects. Return the size in bytes of all objects."""
        objects = self.listing(under)
        for inside, (size, stamp) in objects.items():
            if wanted(inside) and not _is_same(self.folder / inside, size, stamp):
                self._copy(inside, stamp)
        top = self.folder / under
        for path in top.rglob("*") if top.is_dir() else ():
            # Another reader may be writing a copy, under a name that begins with a dot.
            is_copy = path.is_file() and not path.name.startswith(".")
            if is_copy and path.relative_to(self.folder).as_posix() not in objects:
                path.unlink()
        return sum(size for size, _ in objects.values())

    def _copy(self, inside: str, stamp: int) -> None:
        path = self.folder / inside
        path.parent.mkdir(parents=True, exist_ok=True)
        # FileNotFoundError: the object was sealed and removed after it was listed.
        with contextlib.suppress(FileNotFoundError), replacing(path) as beside:
            beside.touch(mode=0o600)
            self._files.get_file(f"{self._root}/{inside}", str(beside))
            os.utime(beside, ns=(stamp, stamp))


def is_document(name: str) -> bool:
    """Return whether an object describes a run or its processes, rather than holding records."""
    last = name.rpartition("/")[2]
    return last in ("run.json", PROCESS) or last.startswith("workers-")


def _is_inside(name: str) -> bool:
    parts = name.split("/")
    return all(part not in ("", ".", "..") and "\0" not in part for part in parts)


def _is_same(path: Path, size: int, stamp: int) -> bool:
    try:
        status = path.stat()
    except OSError:
        return False
    return status.st_size == size and status.st_mtime_ns == stamp


def _stamp(info: dict[str, Any]) -> int:
    """Return a modification time for the copy, derived from the version of the object."""
    keys = ("ETag", "etag", "md5", "LastModified", "last_modified", "mtime", "created", "size")
    version = "|".join(f"{key}={info[key]}" for key in keys if key in info)
    # Whole seconds: some file systems store no fractions.
    return (zlib.crc32(version.encode()) & 0x7FFFFFFF) * 1_000_000_000


def cache_folder(part: str = "") -> Path:
    """Return the folder for copies: ``STEPWELL_CACHE``, else the cache folder of the user."""
    chosen = os.environ.get(CACHE)
    if chosen:
        return Path(chosen).expanduser() / part
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "stepwell" / (part or "remote")


def _open(url: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise StepwellError(f"{url} needs fsspec: pip install 'stepwell[fsspec]'") from None
    try:
        files, root = url_to_fs(url)
    except ImportError as error:
        raise StepwellError(
            f"{url} needs another package: {error}. Run pip install s3fs for s3://, gcsfs for gs:// "
            "or adlfs for abfs://"
        ) from None
    except ValueError as error:
        raise StepwellError(f"{url} cannot be read: {error}") from None
    return files, root
