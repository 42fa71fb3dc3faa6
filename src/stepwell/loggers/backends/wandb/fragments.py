"""Reads W&B's files of a run, while they are written or after a crash, and uploads unfinished ones.

A ``.wandb`` file is a LevelDB log: blocks of 32 KiB with pieces of records. A header with checksum, length
and type is in front of each piece. After damage the rest of the block cannot be read. A full disk may leave a
gap: then no later block is where it should be, and none can be read.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from stepwell._core.files import read_json, write_json

HEADER = 7
"""Size of the header of the file, and of each piece, in bytes."""
BLOCK = 32768
NUMBER = "stepwell_number"
"""Key of the number in an artifact's metadata. The number of a row is W&B's step."""
DAMAGED, FULL, FIRST, MIDDLE, LAST = range(5)


class FragmentRecords:
    """Reads the records of a file that may grow: those that W&B's own reader finds.

    Attributes:
        is_damaged: whether something before the last record could not be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._at = HEADER
        self.is_damaged = False
        self._begun: bytes | None = None

    def new(self) -> Iterator[bytes]:
        """Yield the complete records since the last call."""
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
            begun = b"" if kind in (FULL, FIRST) else self._begun
            self._begun = None
            self.is_damaged |= kind == DAMAGED
            if kind == DAMAGED or begun is None:
                continue
            if kind in (FULL, LAST):
                yield begun + content
            else:
                self._begun = begun + content

    def _piece(self, data: bytes, offset: int) -> tuple[int, bytes, int] | None:
        """Return type, content and size in the file of the next piece; None if it is not complete.

        The rest of a block after damage is one piece.
        """
        left = BLOCK - self._at % BLOCK
        padding, left = (left, BLOCK) if left < HEADER else (0, left)
        begin = offset + padding + HEADER
        head = data[begin - HEADER : begin]
        length = int.from_bytes(head[4:6], "little")
        content = data[begin : begin + length]
        if len(head) == HEADER and len(content) == length <= left - HEADER:
            checksum = zlib.crc32(content, zlib.crc32(head[6:]))
            if FULL <= head[6] <= LAST and checksum == int.from_bytes(head[:4], "little"):
                return head[6], content, padding + HEADER + length
        # Once the next block has begun, this one is complete.
        is_complete = len(data) > offset + padding + left
        return (DAMAGED, b"", padding + left) if is_complete else None


class FragmentProgress:
    """The progress of a fragment on disk.

    Attributes:
        last: the number of the last row or artifact in the file; -1 if there is none. After damage it stays,
            because some may be missing.
        highest: the highest number in the file.
        ended: whether the file contains the end of the run.
    """

    def __init__(self, path: Path) -> None:
        self.last = self.highest = -1
        self.ended = False
        self._tail = FragmentRecords(path)
        self.look()

    def look(self) -> None:
        """Read the new records."""
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
            self._note(int(record.history.step.num))
        elif kind == "artifact":
            self._note(_number_in(record.artifact.metadata))
        elif kind == "exit":
            self.ended = True

    def _note(self, number: int) -> None:
        self.highest = max(self.highest, number)
        if not self._tail.is_damaged:
            self.last = self.highest


def _number_in(metadata: str) -> int:
    try:
        return int(json.loads(metadata)[NUMBER])
    except (ValueError, KeyError, TypeError):
        return -1


META = "stepwell.json"
"""The file beside a fragment with the owner and the numbers of its rows."""
UPLOADED = "uploaded"
LONGEST = 600.0
"""Seconds that ``wandb sync`` of one fragment may take."""


def mark_uploaded(fragment: Path) -> None:
    """Save that the whole fragment was uploaded."""
    write_json(fragment / META, {**(read_json(fragment / META) or {}), UPLOADED: True})


def upload_unfinished(folder: Path, run_id: str) -> None:
    """Upload earlier fragments of a run, oldest first, before a new fragment continues it.

    These are fragments of stepwell that were written offline, or whose process was killed, and that were not
    uploaded with ``wandb sync``.
    """
    for file in fragment_files(folder, run_id):
        meta = read_json(file.parent / META)
        if meta is None or meta.get(UPLOADED) or file.with_name(f"{file.name}.synced").exists():
            continue
        _sync(file.parent)
        mark_uploaded(file.parent)


def fragment_files(folder: Path, run_id: str) -> list[Path]:
    """Return the files of all fragments of a run, oldest first."""
    # This pattern does not match W&B's link to the latest fragment.
    files = folder.glob(f"*run-*-{run_id}/run-{run_id}.wandb")
    return sorted(files, key=lambda file: file.parent.name.partition("run-")[2])


def _sync(fragment: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "wandb", "sync", "--include-online", str(fragment)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST,
        env={**os.environ, "WANDB_SILENT": "true"},
    )
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise ConnectionError(f"wandb sync {fragment}: {lines[-1] if lines else done.returncode}")
