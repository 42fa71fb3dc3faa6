"""The file exporter: one JSON object per line, with every field of the records."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stepwell._core.errors import StepwellError
from stepwell._core.values import fast_encoder, plain_mapping
from stepwell.exporters.record_format import join_short
from stepwell.exporters.trace.file import AppendingExporter
from stepwell.telemetry.exporter import Record, Source, SpanRecord


class FileExporter(AppendingExporter):
    """Append records to a file, one JSON object per line; ``docs/exporters.md`` lists the fields.

    Ranks other than 0 add their rank to the file name: ``training.json`` becomes ``training.rank-3.json``.
    An existing file is appended to.
    """

    def __init__(self, file_path: str | os.PathLike[str] = "training_telemetry.json") -> None:
        super().__init__(file_path)
        if self.file_path.is_dir():
            raise StepwellError(f"file_path must be a file, got the folder {self.file_path}")
        self.name = f"file {self.file_path.name}"
        self._origin: dict[str, Any] = {}
        self._head = b""
        self._holds_batch = False
        self._begun = b""
        self._end = -1

    def open(self, source: Source) -> None:
        """Open the file; create it and its folders if needed."""
        self.path = path_of_rank(self.file_path, source.rank)
        self._origin = {
            "run": source.run,
            "attempt": source.attempt,
            "rank": source.rank,
            "process": source.process,
        }
        self._left = self._begun = b""
        self._holds_batch = False
        self._create_file()
        self._head = encode_line({"type": "source", **asdict(source)})

    def export(self, records: Sequence[Record]) -> None:
        """Append these records with one write."""
        if self._fd < 0:
            self._create_file()
        if not self._holds_batch:
            lines = [encode_line(line_of(record, self._origin)) for record in join_short(records)]
            self._left, self._head = self._left + self._head + b"".join(lines), b""
            self._holds_batch = True
        # Otherwise the same batch comes again after a full disk: write only the bytes that are left.
        self._write()
        self._holds_batch = False

    def flush(self) -> None:
        """Write the line about the source, even if there are no records."""
        if self._fd >= 0 and not self._holds_batch and (self._head or self._left):
            self._left, self._head = self._left + self._head, b""
            self._write()

    def close(self) -> None:
        self._close_file()

    def _create_file(self) -> None:
        self._close_file()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._open_file(os.O_RDWR | os.O_CREAT)
        self._end = -1

    def _write(self) -> None:
        """Append the bytes that are left; bytes that were written before a full disk are not repeated."""
        try:
            size = os.fstat(self._fd).st_size
            if size != self._end:
                # Just opened, or another process appends to it too: start on a new line.
                gap = b"" if self._ends_a_line(size) else b"\n"
                self._left, self._begun = gap + self._begun + self._left, b""
            while self._left:
                written = os.write(self._fd, self._left)
                done, self._left = self._left[:written], self._left[written:]
                self._begun = (self._begun + done).rpartition(b"\n")[2]
                self._end = os.fstat(self._fd).st_size
        except OSError as error:
            self._close_lost_file(error)
            raise

    def _ends_a_line(self, size: int) -> bool:
        if size == 0:
            return True
        # The position does not affect appending. Windows has no pread.
        os.lseek(self._fd, size - 1, os.SEEK_SET)
        return os.read(self._fd, 1) == b"\n"


def path_of_rank(path: Path, rank: int) -> Path:
    """Return the file of a rank; that of rank 0 has the plain name."""
    return path if rank == 0 else path.with_name(f"{path.stem}.rank-{rank}{path.suffix}")


def line_of(record: Record, origin: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a record's line; ``origin`` are those of its process."""
    line = {"type": record.type, **origin, "thread": record.thread}
    if isinstance(record, SpanRecord):
        line.update(id=record.id, parent=record.parent, name=record.name)
        line.update(category=record.category, status=record.status, start_ns=record.start_ns)
        if record.end_ns is not None:
            line.update(end_ns=record.end_ns, duration_ns=record.end_ns - record.start_ns)
    else:
        line.update(span=record.span, name=record.name, time_ns=record.time_ns)
    line["attributes"] = record.attributes
    return line


def encode_line(line: dict[str, Any]) -> bytes:
    """Return a line of strict JSON."""
    try:
        return fast_encoder()(line) + b"\n"
    except Exception:  # a lone surrogate, an integer past 64 bits
        return json.dumps(plain_mapping(line), allow_nan=False).encode() + b"\n"
