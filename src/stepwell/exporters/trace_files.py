"""Files that traces are written to: beside their place first, packed where the name says so."""

from __future__ import annotations

import gzip
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TextIO

LEVEL = 4
"""Of gzip: a third larger than the tightest, and several times faster."""


@contextmanager
def written(path: Path) -> Iterator[TextIO]:
    """A file to write text to. It appears at ``path`` when all is written, and not at all otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(beside, "wb") as raw:
            if path.suffix == ".gz":
                # Without the name and time of the file, equal traces are equal files.
                with gzip.GzipFile("", "wb", LEVEL, raw, 0) as packed, _text(packed) as file:
                    yield file
            else:
                with _text(raw) as file:
                    yield file
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _text(raw: BinaryIO | gzip.GzipFile) -> io.TextIOWrapper:
    return io.TextIOWrapper(raw, "utf-8", newline="\n")
