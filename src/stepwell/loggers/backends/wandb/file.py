"""Reading what W&B has on disk of a run, while it is being written or after whatever happened to it.

A ``.wandb`` file is a LevelDB log: blocks of 32 KiB with pieces of records, each behind its checksum, length
and type.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

HEADER = 7
"""Bytes at the beginning of the file, and of each piece."""
BLOCK = 32768
NUMBER = "stepwell_number"
"""Where the number of an artifact is, in its metadata; that of a row is W&B's step."""
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


class Tail:
    """The records of a file, as they come."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._at = HEADER
        self._begun = b""

    def new(self) -> Iterator[bytes]:
        """Records that are complete and were not given out before."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._at)
                data = file.read()
        except FileNotFoundError:
            return
        start = self._at
        while (piece := self._piece(data, self._at - start)) is not None:
            kind, content, size = piece
            self._at += size
            whole = self._begun + content
            self._begun = whole if kind in (FIRST, MIDDLE) else b""
            if kind in (FULL, LAST):
                yield whole

    def _piece(self, data: bytes, offset: int) -> tuple[int, bytes, int] | None:
        """(type, content, bytes in the file) of the next piece, None where none is complete."""
        left = BLOCK - self._at % BLOCK
        padding = left if left < HEADER else 0
        head = data[offset + padding : offset + padding + HEADER]
        if len(head) < HEADER or not FULL <= head[6] <= LAST:
            return None
        begin = offset + padding + HEADER
        length = int.from_bytes(head[4:6], "little")
        if begin + length > len(data):
            return None
        return head[6], data[begin : begin + length], padding + HEADER + length


class Rows:
    """How far a file is.

    Attributes:
        last: the number of the last row, or artifact, that is in it; -1: none.
        ended: whether it says how the run ended.
    """

    def __init__(self, path: Path) -> None:
        self.last = -1
        self.ended = False
        self._tail = Tail(path)
        self.look()

    def look(self) -> None:
        """Read what is new."""
        messages: Any = import_module("wandb.proto.wandb_internal_pb2")
        for data in self._tail.new():
            record = messages.Record()
            try:
                record.ParseFromString(data)
            except Exception:  # damaged
                continue
            self._take(record, record.WhichOneof("record_type"))

    def _take(self, record: Any, kind: str | None) -> None:
        if kind == "history":
            self.last = max(self.last, int(record.history.step.num))
        elif kind == "artifact":
            self.last = max(self.last, _number_in(record.artifact.metadata))
        elif kind == "exit":
            self.ended = True


def _number_in(metadata: str) -> int:
    try:
        return int(json.loads(metadata)[NUMBER])
    except (ValueError, KeyError, TypeError):
        return -1
