"""Files of exporters: appended to while a run records, or written as a whole."""

from __future__ import annotations

import errno
import gzip
import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, ClassVar, TextIO

from stepwell._core.errors import StepwellError
from stepwell._core.files import replacing
from stepwell.telemetry.exporter import Exporter, Record, Source

LOST_FILE = (errno.ESTALE, errno.EBADF, errno.EIO, errno.ENODEV)
MOST_NAMES = 100_000

LEVEL = 4
"""gzip level: files are a third larger than at level 9, and written several times faster."""


class AppendingExporter(Exporter):
    """Base class of exporters that append to a file."""

    def __init__(self, file_path: str | os.PathLike[str]) -> None:
        if not isinstance(file_path, str | os.PathLike) or not os.fspath(file_path):
            raise StepwellError(
                f"file_path must be a path, such as 'telemetry.json', got {file_path!r}"
            )
        # Relative to the current folder, even if the program changes it later.
        self.file_path = Path(os.path.abspath(os.path.expanduser(os.fspath(file_path))))
        self.path = self.file_path
        self._fd = -1
        self._left = b""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.file_path == self.file_path

    def __hash__(self) -> int:
        return hash((type(self), self.file_path))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(file_path={str(self.file_path)!r})"

    def _open_file(self, flags: int) -> None:
        self._close_file()
        flags |= os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        self._fd = os.open(self.path, flags, 0o644)

    def _close_file(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _close_lost_file(self, error: OSError) -> None:
        """Close the file after an error after which it must be opened again."""
        if error.errno in LOST_FILE:
            self._close_file()


class LiveTrace(AppendingExporter):
    """Base class of exporters that append text to a new file for each run, rank and attempt.

    An existing file is kept, and a number is added to the name: ``trace-2.json``. If the name ends in
    ``.gz``, each piece is compressed on its own, so that the file can be decompressed even if the process
    is killed.
    """

    suffixes: ClassVar[tuple[str, ...]] = ()
    every_span = True

    def __init__(self, file_path: str | os.PathLike[str]) -> None:
        super().__init__(file_path)
        if not self.file_path.name.endswith(self.suffixes) or self.file_path.is_dir():
            suffixes = " or ".join(self.suffixes)
            raise StepwellError(f"file_path must end in {suffixes}, got {os.fspath(file_path)!r}")
        self.name = f"{type(self).__name__} {self.file_path.name}"
        self._is_head_left = False

    # For subclasses

    def file_of(self, source: Source, number: int) -> Path:
        """Return the file of a process; ``number`` is 1 first, and grows while that file exists."""
        return numbered(self.file_path, source.rank, number, self.suffixes)

    def begin(self, source: Source) -> str:
        """Return the start of the file."""
        raise NotImplementedError

    def text_of(self, records: Sequence[Record]) -> str:
        """Return the text of these records. Called once for each record."""
        raise NotImplementedError

    def finish(self) -> str:
        """Return the end of the file of a process that has finished."""
        raise NotImplementedError

    # The exporter

    def open(self, source: Source) -> None:
        """Create the file and its folders."""
        self.close()
        self._left = b""
        for number in range(1, MOST_NAMES):
            self.path = self.file_of(source, number)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._open_file(os.O_WRONLY | os.O_CREAT | os.O_EXCL)
                break
            except FileExistsError:
                continue
        self._add(self.begin(source))
        self._is_head_left = True

    def export(self, records: Sequence[Record]) -> None:
        if self._fd < 0:
            self._open_file(os.O_WRONLY)
        # After a full disk the same records come again: write only the bytes that are left.
        if not self._left or self._is_head_left:
            self._add(self.text_of(records))
            self._is_head_left = False
        self._write()

    def flush(self) -> None:
        """Write the start of the file, even if no record follows."""
        if self._fd >= 0:
            self._write()
            self._is_head_left = False

    def close(self) -> None:
        """Write the end of the file and close it."""
        if self._fd < 0:
            return
        try:
            self._add(self.finish())
            self._write()
        finally:
            self._close_file()

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
            self._close_lost_file(error)
            raise


def numbered(path: Path, rank: int, number: int, suffixes: tuple[str, ...]) -> Path:
    """Return the path with the rank and a number: ``trace.rank-3.json``, then ``trace.rank-3-2.json``."""
    suffix = max((s for s in suffixes if path.name.endswith(s)), key=len)
    stem = path.name[: -len(suffix)] + (f".rank-{rank}" if rank else "")
    return path.with_name(stem + (f"-{number}" if number > 1 else "") + suffix)


@contextmanager
def replaced_text_file(path: Path) -> Iterator[TextIO]:
    """Yield a text file, compressed if the name ends in ``.gz``, and put it at ``path`` when the block ends.

    If the block raises, an existing file is kept.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as beside, open(beside, "wb") as raw:
        if path.suffix == ".gz":
            # Without the name and time of the file, equal traces are equal files.
            with gzip.GzipFile("", "wb", LEVEL, raw, 0) as packed, _text(packed) as file:
                yield file
        else:
            with _text(raw) as file:
                yield file


def _text(raw: BinaryIO | gzip.GzipFile) -> io.TextIOWrapper:
    return io.TextIOWrapper(raw, "utf-8", newline="\n")
