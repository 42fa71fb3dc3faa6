"""The files of an import: which they are, and their text piece by piece, unpacked on the way."""

from __future__ import annotations

import codecs
import glob
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from stepwell.journal.errors import StepwellError

SUFFIXES = (".pfw", ".pfw.gz", ".json", ".json.gz", ".jsonl", ".jsonl.gz", ".ndjson")
GZIP = b"\x1f\x8b"
CHUNK = 1 << 20
BITE = 1 << 14
MAX_FILES = 100_000
MOST_UNPACKED = 250
"""No trace packs so well: what unpacks to more than this times its size is made to fill memory."""
UNSUSPICIOUS = 256 << 20
"""So many unpacked bytes are taken whatever the ratio."""

Progress = Callable[[str, int, int], None]
"""Called with what is under way ("reading" or "writing"), how much is done, and of how much."""


def find_files(path: str | os.PathLike[str]) -> list[Path]:
    """The files that are meant by a path, a pattern or a folder."""
    place = Path(path).expanduser()
    if place.is_dir():
        entries = sorted(place.iterdir())
        found = [p for p in entries if p.name.lower().endswith(SUFFIXES) and p.is_file()]
        if not found:
            raise StepwellError(
                f"there is no trace in the folder {str(place)!r}: "
                f"it should hold files that end with {', '.join(SUFFIXES)}"
            )
    elif place.is_file():
        found = [place]
    else:
        found = [Path(p) for p in sorted(glob.glob(str(place))) if Path(p).is_file()]
        if not found:
            if place.exists():
                raise StepwellError(f"{str(place)!r} is no regular file")
            raise StepwellError(f"there is no file {str(place)!r}")
    if len(found) > MAX_FILES:
        raise StepwellError(f"{str(place)!r} means {len(found)} files: at most {MAX_FILES}")
    return found


class Source:
    """One file to read. ``damage`` says what kept it from being read to its end, if anything did."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = path.stat().st_size
        self.done = 0
        self.damage = ""

    def texts(self) -> Iterator[str]:
        """Its text in pieces; bytes that are no UTF-8 become replacement characters."""
        decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        for data in self.pieces():
            piece = decoder.decode(data)
            if piece:
                yield piece
        rest = decoder.decode(b"", True)
        if rest:
            yield rest

    def pieces(self) -> Iterator[bytes]:
        """Its bytes in pieces of a bounded size."""
        with open(self.path, "rb") as file:
            packed = file.read(2) == GZIP
            file.seek(0)
            self.done = 0
            yield from self._unpacked(file) if packed else self._plain(file)

    def _plain(self, file: IO[bytes], size: int = 0) -> Iterator[bytes]:
        while data := file.read(size or CHUNK):
            self.done += len(data)
            yield data

    def _unpacked(self, file: IO[bytes]) -> Iterator[bytes]:
        """What a gzip file holds, as far as it goes; it may have several members."""
        given = 0
        unpacker = zlib.decompressobj(31)
        # In small bites: of the one that is damaged, nothing comes out.
        for data in self._plain(file, BITE):
            while data:
                if unpacker.eof:
                    data = data.lstrip(b"\0")
                    if not data:
                        break
                    unpacker = zlib.decompressobj(31)
                try:
                    piece = unpacker.decompress(data, CHUNK)
                except zlib.error as error:
                    self.damage = f"damaged gzip data ({error})"
                    return
                given += len(piece)
                self._check_ratio(given)
                yield piece
                data = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
        if not unpacker.eof:
            self.damage = "the gzip data is cut off"

    def _check_ratio(self, given: int) -> None:
        if given > UNSUSPICIOUS and given > MOST_UNPACKED * self.done:
            raise StepwellError(
                f"{str(self.path)!r} unpacks to more than {MOST_UNPACKED} times its size: "
                "no trace does, so it is not read. If it is one, unpack it first"
            )
