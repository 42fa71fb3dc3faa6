"""Runs on object storage: what is needed of them is copied here, and read like any other run.

Reading wants files that can be looked into at any place and that no link leads out of, while storage gives
whole objects. So every object that somebody asks for becomes a file in a cache on this machine, once, and
again when it has changed. Whoever wants the state of a run gets a few small ones, whoever reads a rank gets
its folder. Needs fsspec, imported where an address is given.
"""

from __future__ import annotations

import os
import re
import tempfile
import zlib
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from stepwell.journal.document import PROCESS
from stepwell.journal.errors import StepwellError

CACHE = "STEPWELL_CACHE"
ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(/?)(?=[^/]|/)")


def address_of(place: str | os.PathLike[str] | None) -> str | None:
    """The address, if this is one; None for a path, also where one is written as ``file://``.

    A ``Path`` has swallowed a slash of the address that it was made of.
    """
    text = "" if place is None else os.fspath(place)
    found = ADDRESS.match(text)
    if found is None or (isinstance(place, str) and not found[2]):
        return None
    if found[1] == "file":
        return None
    return text if found[2] else text.replace(":/", "://", 1)


def path_of(place: str | os.PathLike[str]) -> Path:
    """The path that is meant by a path, or by ``file://`` and a path."""
    text = os.fspath(place)
    if text.startswith("file:/"):
        return Path(unquote(urlsplit(text).path))
    return Path(text).expanduser()


class Mirror:
    """A folder on object storage, and the copies of its objects."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._files, root = _open(self.url)
        self._root = root.rstrip("/")
        digest = sha256(self.url.encode()).hexdigest()[:20]
        self.folder = cache_folder() / digest / PurePosixPath(self._root).name
        """Where the copies are."""

    def listing(self, under: str = "") -> dict[str, tuple[int, int]]:
        """Objects by their path below the folder: size, and a number that another content would not have."""
        top = f"{self._root}/{under}" if under else self._root
        try:
            self._files.invalidate_cache()
            found = self._files.find(top, detail=True)
        except FileNotFoundError:
            return {}
        except Exception as error:
            raise StepwellError(f"{self.url} cannot be read: {error}") from None
        objects = {}
        for name, about in found.items():
            inside = name[len(self._root) + 1 :]
            # A stranger's names have no say in where files are written.
            if name.startswith(f"{self._root}/") and _is_inside(inside):
                objects[inside] = int(about.get("size") or 0), _stamp(about)
        return objects

    def children(self) -> list[str]:
        """The names of the folders right below."""
        return sorted({name.partition("/")[0] for name in self.listing() if "/" in name})

    def fetch(self, under: str = "", wanted: Callable[[str], bool] = bool) -> int:
        """Make the copies of the wanted objects what they should be; returns the bytes of all objects."""
        objects = self.listing(under)
        for inside, (size, stamp) in objects.items():
            if wanted(inside) and not _is_same(self.folder / inside, size, stamp):
                self._copy(inside, stamp)
        top = self.folder / under
        for path in top.rglob("*") if top.is_dir() else ():
            if path.is_file() and path.relative_to(self.folder).as_posix() not in objects:
                path.unlink()
        return sum(size for size, _ in objects.values())

    def _copy(self, inside: str, stamp: int) -> None:
        path = self.folder / inside
        path.parent.mkdir(parents=True, exist_ok=True)
        fd, beside = tempfile.mkstemp(dir=self.folder.parent)
        os.close(fd)
        try:
            self._files.get_file(f"{self._root}/{inside}", beside)
            os.utime(beside, ns=(stamp, stamp))
            os.replace(beside, path)
        except BaseException as error:
            os.unlink(beside)
            # What was there a moment ago may have been sealed and removed since.
            if not isinstance(error, FileNotFoundError):
                raise


def is_document(name: str) -> bool:
    """Whether an object is needed to know what a run is and how it is, without its records."""
    last = name.rpartition("/")[2]
    return last in ("run.json", PROCESS) or last.startswith("workers-")


def _is_inside(name: str) -> bool:
    parts = name.split("/")
    return all(part not in ("", ".", "..") and "\0" not in part for part in parts)


def _is_same(path: Path, size: int, stamp: int) -> bool:
    try:
        found = path.stat()
    except OSError:
        return False
    return found.st_size == size and found.st_mtime_ns == stamp


def _stamp(about: dict[str, Any]) -> int:
    """A time of change for the copy, that tells whether the object is still the one that was copied."""
    keys = ("ETag", "etag", "md5", "LastModified", "last_modified", "mtime", "created", "size")
    told = "|".join(f"{key}={about[key]}" for key in keys if key in about)
    # Whole seconds, which every file system keeps.
    return (zlib.crc32(told.encode()) & 0x7FFFFFFF) * 1_000_000_000


def cache_folder(part: str = "") -> Path:
    """Return where readers keep copies: ``STEPWELL_CACHE``, else the user's own cache."""
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
            f"{url} needs one more package: {error}. For s3:// that is pip install s3fs, "
            "for gs:// gcsfs, for abfs:// adlfs"
        ) from None
    except ValueError as error:
        raise StepwellError(f"{url} cannot be read: {error}") from None
    return files, root
