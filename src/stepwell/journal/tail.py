"""The new complete lines of a text file that grows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stepwell._core.files import open_file

CHUNK = 4 << 20
"""Bytes of one read. A longer line is not valid, and is skipped."""


class Tail:
    """Reads a file line by line, from the copy that has more. ``more``: whether to read again at once."""

    def __init__(self) -> None:
        self.offset = 0
        self.more = False
        self._inside = False

    def skip_to(self, offset: int) -> None:
        """Continue at this offset; skip the line that it is in."""
        self.offset = offset
        self._inside = offset > 0

    def read(self, paths: Iterable[Path]) -> list[bytes]:
        """Return the next complete lines."""
        return [line for _, line in self.read_places(paths)]

    def read_places(self, paths: Iterable[Path]) -> list[tuple[int, bytes]]:
        """Return (offset, line) of the next complete lines."""
        for path in paths:
            data = self._piece(path)
            if data:
                return self._lines(data)
        self.more = False
        return []

    def _piece(self, path: Path) -> bytes:
        """Return complete lines, or a part of an overlong one; b"" while the next line is incomplete."""
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
        # The rest after the last newline: empty, except in an overlong line.
        _, rest = places.pop()
        if self._inside:
            places = places[1:]
        self._inside = bool(rest)
        return [place for place in places if place[1]]


def parse_object(text: bytes | str) -> dict[str, Any] | None:
    """Return a JSON object; None for anything else, such as a line cut off by a full disk."""
    try:
        value = _STRICT.decode(text if isinstance(text, str) else text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _refuse(token: str) -> None:
    raise ValueError(f"{token} is not JSON")


# Shared: json.loads would create a decoder for each line.
_STRICT = json.JSONDecoder(parse_constant=_refuse)
