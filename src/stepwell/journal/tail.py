"""The end of a text file that grows: what is new since the last look, in complete lines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stepwell.journal.files import open_file

CHUNK = 4 << 20
"""So much is read at a time. A line that is longer is none of ours, and is skipped."""


class Tail:
    """Reads a file of lines piece by piece, from whichever of its copies has more."""

    def __init__(self) -> None:
        self.offset = 0
        self.more = False
        self._inside = False

    def skip_to(self, offset: int) -> None:
        """Read on from here; a line that this is inside of is left out."""
        self.offset = offset
        self._inside = offset > 0

    def read(self, paths: Iterable[Path]) -> list[bytes]:
        """The next complete lines; ``more`` says whether it is worth calling again at once."""
        return [line for _, line in self.read_places(paths)]

    def read_places(self, paths: Iterable[Path]) -> list[tuple[int, bytes]]:
        """The same, each line behind the offset at which it begins."""
        for path in paths:
            data = self._piece(path)
            if data:
                return self._lines(data)
        self.more = False
        return []

    def _piece(self, path: Path) -> bytes:
        """Whole lines, or a full piece of an overlong one; nothing while the next one is torn."""
        try:
            fd = open_file(path)
            try:
                data = os.pread(fd, CHUNK, self.offset)
            finally:
                os.close(fd)
        except OSError:
            return b""
        end = data.rfind(b"\n") + 1
        self.more = len(data) == CHUNK
        return data if self.more and not end else data[:end]

    def _lines(self, data: bytes) -> list[tuple[int, bytes]]:
        places, at = [], self.offset
        for line in data.split(b"\n"):
            places.append((at, line))
            at += len(line) + 1
        self.offset += len(data)
        # What stands behind the last newline: nothing, but for a line that is longer than a piece.
        _, rest = places.pop()
        if self._inside:
            places = places[1:]
        self._inside = bool(rest)
        return [place for place in places if place[1]]


def parse_object(text: bytes | str) -> dict[str, Any] | None:
    """Return a JSON object; None for anything else, such as a line that a full disk tore."""
    try:
        value = _STRICT.decode(text if isinstance(text, str) else text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _refuse(token: str) -> None:
    raise ValueError(f"{token} is not JSON")


# One for all lines: json.loads would make one for each.
_STRICT = json.JSONDecoder(parse_constant=_refuse)
