"""Caches: files in the reader's cache folder, and recent values in memory.

A *shelf* is a file of compressed blobs by key, with a note that says what they were made from. A shelf that
is missing, damaged or made from something else is made again; one that cannot be written stays in memory.
The folder has a size limit: the files that were not used for the longest time are removed.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import zstandard

from stepwell._core.files import open_file, replacing
from stepwell.reading.remote import cache_folder

FORMAT = 1
"""Version of the cached files: a new number invalidates older ones."""
HEAD = struct.Struct("<8sII")
MAGIC = b"stepwell"
MAX_HEAD = 32 << 20
MAX_BLOB = 256 << 20
MAX_BYTES = 4 << 30
"""Limit of the cache folder."""
KEPT_SHARE = 0.8
"""Share of the limit that is kept when files are removed."""
TIDY_S = 60.0
TIDIED = ".tidied"

T = TypeVar("T")
Blobs = tuple[dict[str, bytes], dict[str, Any]]
"""Blobs by key, and a note about them."""


class RecentValues:
    """Values by key, in memory: those used last, up to a total cost in bytes. Safe for threads."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._cost = 0
        self._values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable) -> Any:
        """Return the value with this key; None if there is none."""
        with self._lock:
            entry = self._values.get(key)
            if entry is None:
                return None
            self._values.move_to_end(key)
            return entry[0]

    def put(self, key: Hashable, value: Any, cost: int) -> None:
        """Keep a value; remove those that were not used for the longest time."""
        with self._lock:
            _, before = self._values.pop(key, (None, 0))
            self._cost += cost - before
            self._values[key] = value, cost
            while self._cost > self._limit and len(self._values) > 1:
                _, (_, old) = self._values.popitem(last=False)
                self._cost -= old

    def kept(self, key: Hashable, make: Callable[[], T], cost: Callable[[T], int]) -> T:
        """Return the value with this key; if there is none, make and keep it."""
        value: T | None = self.get(key)
        if value is None:
            value = make()
            self.put(key, value, cost(value))
        return value

    def clear(self) -> None:
        """Forget all values."""
        with self._lock:
            self._values.clear()
            self._cost = 0


memory = RecentValues(384 << 20)
"""Decoded values of all runs."""


@dataclass
class Shelf:
    """Blobs by key. ``note`` is JSON: what they were made from."""

    path: Path
    note: Any
    _places: dict[str, tuple[int, int]]
    _packed: dict[str, bytes]

    def __contains__(self, key: str) -> bool:
        return key in self._places or key in self._packed

    @property
    def stored(self) -> list[str]:
        """The keys of all blobs."""
        return [*self._places, *self._packed]

    def packed(self, keys: Iterable[str]) -> dict[str, bytes]:
        """Return the compressed blobs with these keys, without those that cannot be read."""
        result = {key: self._packed[key] for key in keys if key in self._packed}
        places = {key: self._places[key] for key in keys if key in self._places}
        if places:
            with contextlib.suppress(OSError), open(open_file(self.path), "rb") as file:
                for key, (offset, size) in places.items():
                    result[key] = os.pread(file.fileno(), size, offset)
        return result

    def get(self, keys: Iterable[str]) -> dict[str, bytes]:
        """Return the blobs with these keys, without those that are damaged."""
        blobs = {}
        unpacker = zstandard.ZstdDecompressor()
        for key, data in self.packed(list(keys)).items():
            blob = _unpack(unpacker, data)
            if blob is not None:
                blobs[key] = blob
        return blobs

    def blob(self, key: str) -> bytes:
        """Return the blob with this key; empty if there is none."""
        return self.get([key]).get(key, b"")


def shelf_path(run: Path, *names: str) -> Path:
    """Return the file of a shelf of the run in this folder."""
    home = cache_folder("detail") / _digest(str(run.absolute()))
    return home / f"{_digest('/'.join(names))}.shelf"


def read_shelf(path: Path) -> Shelf | None:
    """Return the shelf in a file; None if it is missing or damaged."""
    try:
        status = path.stat()
        key = "shelf", str(path), status.st_ino, status.st_mtime_ns, status.st_size
        shelf = memory.get(key)
        if shelf is None:
            shelf = _read_head(path, status.st_size)
            memory.put(key, shelf, 2000 + 200 * len(shelf._places))
            with contextlib.suppress(OSError):
                # Used now: removed last.
                os.utime(path, ns=(time.time_ns(), status.st_mtime_ns))
    except (OSError, ValueError, KeyError, TypeError, RecursionError, struct.error):
        shelf = memory.get(("unwritten", str(path)))
    return shelf if isinstance(shelf, Shelf) else None


def write_shelf(
    path: Path, note: Any, blobs: Mapping[str, bytes], old: Mapping[str, bytes] | None = None
) -> Shelf:
    """Write a shelf with these blobs, and ``old`` ones that are compressed already. Return it."""
    packed = {**(old or {}), **_pack(blobs)}
    places, offset = {}, 0
    for key, data in packed.items():
        places[key] = offset, len(data)
        offset += len(data)
    head = json.dumps({"format": FORMAT, "note": note, "places": places}).encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with replacing(path) as beside:
            fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(HEAD.pack(MAGIC, len(head), zlib.crc32(head)))
                file.write(head)
                file.writelines(packed.values())
        _tidy(path.parent.parent)
    except OSError:
        # Answers are complete without the cache: an unwritable folder is not an error.
        shelf = Shelf(path, note, {}, packed)
        memory.put(("unwritten", str(path)), shelf, 2000 + offset)
        return shelf
    return read_shelf(path) or Shelf(path, note, {}, packed)


def memory_shelf(blobs: Mapping[str, bytes], note: Any) -> Shelf:
    """Return a shelf that is not in a file."""
    return Shelf(Path(), note, {}, _pack(blobs))


def _pack(blobs: Mapping[str, bytes]) -> dict[str, bytes]:
    packer = zstandard.ZstdCompressor(level=1, write_checksum=True)
    return {key: packer.compress(blob) for key, blob in blobs.items()}


class CachedShelf(Shelf):
    """The shelf in a file. It is made and written if it is missing, damaged or made from something else.

    Args:
        path: the file.
        made_from: JSON that changes when the shelf must be made again; it becomes part of the note.
        make: returns the blobs and the rest of the note.
    """

    def __init__(self, path: Path, made_from: Any, make: Callable[[], Blobs]) -> None:
        self._recipe = path, made_from, make
        shelf = read_shelf(path)
        self._use(shelf if shelf is not None and _is_made_from(shelf, made_from) else self._made())

    def _use(self, shelf: Shelf) -> None:
        super().__init__(shelf.path, shelf.note, shelf._places, shelf._packed)

    def _made(self) -> Shelf:
        path, made_from, make = self._recipe
        blobs, note = make()
        return write_shelf(path, {**note, "from": made_from}, blobs)

    def blob(self, key: str) -> bytes:
        """Return the blob with this key. If it is damaged, the shelf is made again."""
        blob = self.get([key]).get(key)
        if blob is not None:
            return blob
        self._use(self._made())
        return super().blob(key)


def cached_json(path: Path, made_from: Any, make: Callable[[], Any]) -> Any:
    """Return the JSON value in this file if it was made from the same, else make and write it."""
    value = stored_json(path, made_from)
    if value is None:
        value = make()
        store_json(path, made_from, value)
    return value


def stored_json(path: Path, made_from: Any) -> Any:
    """Return the JSON value in this file if it was made from the same, else None."""
    shelf = read_shelf(path)
    if shelf is not None and _is_made_from(shelf, made_from):
        with contextlib.suppress(KeyError, ValueError, RecursionError):
            return json.loads(shelf.get(["value"])["value"])
    return None


def store_json(path: Path, made_from: Any, value: Any) -> None:
    """Write a JSON value and what it was made from."""
    write_shelf(path, {"from": made_from}, {"value": json.dumps(value).encode()})


def _is_made_from(shelf: Shelf, made_from: Any) -> bool:
    note = shelf.note if isinstance(shelf.note, dict) else {}
    return bool(note.get("from") == json.loads(json.dumps(made_from)))


def _read_head(path: Path, size: int) -> Shelf:
    with open(open_file(path), "rb") as file:
        magic, length, check = HEAD.unpack(file.read(HEAD.size))
        if magic != MAGIC or length > min(MAX_HEAD, size):
            raise ValueError("not a shelf")
        text = file.read(length)
    if zlib.crc32(text) != check:
        raise ValueError("damaged")
    head = json.loads(text)
    if head["format"] != FORMAT:
        raise ValueError("another format")
    base = HEAD.size + length
    places = {key: (base + int(at), int(count)) for key, (at, count) in head["places"].items()}
    if any(at < base or at + count > size for at, count in places.values()):
        raise ValueError("cut off")
    return Shelf(path, head["note"], places, {})


def _unpack(unpacker: zstandard.ZstdDecompressor, data: bytes) -> bytes | None:
    try:
        if zstandard.get_frame_parameters(data).content_size > MAX_BLOB:
            return None
        return unpacker.decompress(data)
    except zstandard.ZstdError:
        return None


def _tidy(folder: Path) -> None:
    """Remove the files that were used least recently, if the folder is too large. Checked once a minute."""
    mark = folder / TIDIED
    with contextlib.suppress(OSError):
        if time.time() - mark.stat().st_mtime < TIDY_S:
            return
    mark.touch(mode=0o600)
    files = []
    for path in folder.glob("*/*.shelf"):
        with contextlib.suppress(OSError):
            status = path.stat()
            files.append((max(status.st_atime, status.st_mtime), status.st_size, path))
    total = sum(size for _, size, _ in files)
    if total <= MAX_BYTES:
        return
    for _, size, path in sorted(files):
        with contextlib.suppress(OSError):
            path.unlink()
        total -= size
        if total <= KEPT_SHARE * MAX_BYTES:
            break


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "replace")).hexdigest()[:32]
