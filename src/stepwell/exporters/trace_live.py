"""Traces that are written while a run goes on: what the exporters of trace formats share."""

from __future__ import annotations

import errno
import gzip
import os
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from stepwell.exporters.trace_files import LEVEL
from stepwell.journal.errors import StepwellError
from stepwell.telemetry.exporter import Exporter, Record, Source

LOST_FILE = (errno.ESTALE, errno.EBADF, errno.EIO, errno.ENODEV)
MOST_NAMES = 100_000


class LiveTrace(Exporter):
    """Appends text to a file of its own: every run, rank and attempt begins a new one.

    Where a file of that name is there already it stays as it is, and a number is added: ``trace-2.json``.
    A name that ends in ``.gz`` makes a packed file: each piece by itself, so that all that was written
    can be unpacked whenever the process dies.
    """

    suffixes: ClassVar[tuple[str, ...]] = ()
    every_span = True

    def __init__(self, file_path: str | os.PathLike[str]) -> None:
        if not isinstance(file_path, str | os.PathLike) or not os.fspath(file_path):
            raise StepwellError(f"file_path is {file_path!r}: write a path")
        # Where the program was started, whatever folder it changes to later.
        self.file_path = Path(os.path.abspath(os.path.expanduser(os.fspath(file_path))))
        if not self.file_path.name.endswith(self.suffixes) or self.file_path.is_dir():
            wanted = " or ".join(self.suffixes)
            raise StepwellError(f"file_path is {os.fspath(file_path)!r}: end the name in {wanted}")
        self.path = self.file_path
        self.name = f"{type(self).__name__} {self.file_path.name}"
        self._fd = -1
        self._left = b""
        self._is_head_left = False

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.file_path == self.file_path

    def __hash__(self) -> int:
        return hash((type(self), self.file_path))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(file_path={str(self.file_path)!r})"

    # What formats write

    def place(self, source: Source, number: int) -> Path:
        """The file of a process; ``number`` is 1 at first, and more while that file is there."""
        return numbered(self.file_path, source.rank, number, self.suffixes)

    def begin(self, source: Source) -> str:
        """What stands at the beginning."""
        raise NotImplementedError

    def text_of(self, records: Sequence[Record]) -> str:
        """These records; called once for each."""
        raise NotImplementedError

    def finish(self) -> str:
        """What stands at the end of a trace whose process came to its end."""
        raise NotImplementedError

    # The exporter

    def open(self, source: Source) -> None:
        """Make the file, with its folders."""
        self.close()
        self._left = b""
        for number in range(1, MOST_NAMES):
            self.path = self.place(source, number)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._fd = os.open(self.path, _flags() | os.O_CREAT | os.O_EXCL, 0o644)
                break
            except FileExistsError:
                continue
        self._add(self.begin(source))
        self._is_head_left = True

    def export(self, records: Sequence[Record]) -> None:
        """Append these records."""
        if self._fd < 0:
            self._fd = os.open(self.path, _flags())
        # What is left did not fit the last time: these are the same records, and only that is written.
        if not self._left or self._is_head_left:
            self._add(self.text_of(records))
            self._is_head_left = False
        self._write()

    def flush(self) -> None:
        """Write the beginning, even when nothing comes behind it."""
        if self._fd >= 0:
            self._write()
            self._is_head_left = False

    def close(self) -> None:
        """Write the end."""
        if self._fd < 0:
            return
        try:
            self._add(self.finish())
            self._write()
        finally:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)

    def _add(self, text: str) -> None:
        data = text.encode()
        if self.path.suffix == ".gz" and data:
            data = gzip.compress(data, LEVEL, mtime=0)
        self._left += data

    def _write(self) -> None:
        try:
            while self._left:
                self._left = self._left[os.write(self._fd, self._left) :]
        except OSError as error:
            if error.errno in LOST_FILE:
                fd, self._fd = self._fd, -1
                os.close(fd)
            raise


def numbered(path: Path, rank: int, number: int, suffixes: tuple[str, ...]) -> Path:
    """``trace.json`` as ``trace.rank-3.json`` for rank 3; the second such file is ``trace.rank-3-2.json``."""
    suffix = max((s for s in suffixes if path.name.endswith(s)), key=len)
    stem = path.name[: -len(suffix)] + (f".rank-{rank}" if rank else "")
    return path.with_name(stem + (f"-{number}" if number > 1 else "") + suffix)


def _flags() -> int:
    flags = os.O_WRONLY | os.O_APPEND
    return flags | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
