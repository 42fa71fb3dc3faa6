"""Read all tables of a run, and create segments that stepwell itself never writes."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import polars as pl
import zstandard

from stepwell import open_run
from stepwell.journal.archive import MAGIC
from stepwell.journal.format import HEADER_BYTES, SPAN_BYTES, SPAN_SLOTS, pack_header

OUTSIDE = b'"OUTSIDE"'
Read = Callable[[Path], dict[str, int]]
TABLES = ("spans", "metrics", "events", "open_spans", "processes", "artifacts")


def read_everything(folder: Path) -> dict[str, int]:
    """Return the number of rows of each table; fail if a row comes from outside of the run."""
    run = open_run(folder)
    assert run.status in ("running", "finished", "failed", "killed", "empty")
    assert isinstance(run.config, dict)
    counts = {}
    for table in TABLES:
        frame = getattr(run, table)().collect()
        assert "OUTSIDE" not in frame.write_json()
        counts[table] = frame.height
    assert "OUTSIDE" not in run.items().collect().write_json()
    assert isinstance(run.tags, list)
    assert isinstance(run.summary, dict)
    return counts


def decode_everything(folder: Path) -> dict[str, int]:
    """Return the same as ``read_everything``, with one reading of the files and without queries."""
    run = open_run(folder)
    assert run.status in ("running", "finished", "failed", "killed", "empty")
    assert isinstance(run.config, dict)
    counts = dict.fromkeys(TABLES, 0)
    for tables in run.by_process():
        for _, category, name in tables.process.names.values():
            assert "OUTSIDE" not in (category, name)
        for segment in tables.process.of_kind("attributes"):
            assert "OUTSIDE" not in "".join(segment.texts.values())
        assert not any("OUTSIDE" in line for line in tables.process.event_lines)
        counts["processes"] += 1
        counts["spans"] += _rows(tables.spans({"id"}))
        counts["open_spans"] += _rows(tables.spans({"id"}, only_open=True))
        counts["metrics"] += _rows(tables.metrics({"value"}))
        counts["events"] += _rows(tables.events({"time_ns"}))
        counts["artifacts"] += _rows(tables.events({"time_ns"}, artifacts=True))
    return counts


def _rows(frames: Iterable[pl.DataFrame]) -> int:
    return sum(frame.height for frame in frames)


class SampledReader:
    """Decodes a run each time it is called, and reads its tables too every tenth time."""

    def __init__(self) -> None:
        self._calls = 0

    def __call__(self, folder: Path) -> dict[str, int]:
        decoded = decode_everything(folder)
        if self._calls % 10 == 0:
            assert read_everything(folder) == decoded
        self._calls += 1
        return decoded


def spans_live(metas: list[int], starts: list[int], ends: list[int], seq: int = 0) -> bytes:
    """Return a live span segment of these words."""
    header = pack_header({"kind": "spans", "seq": seq, "lane": 0, "thread": "t"})
    columns = [
        struct.pack(f"{SPAN_SLOTS}Q", *c, *[0] * (SPAN_SLOTS - len(c)))
        for c in (metas, starts, ends)
    ]
    return (header.ljust(HEADER_BYTES, b"\0") + b"".join(columns)).ljust(SPAN_BYTES, b"\0")


def frame(header: bytes, payload: bytes, **options: Any) -> bytes:
    """Return an archive block with a correct checksum around any content."""
    packed = zstandard.ZstdCompressor(**options).compress(payload)
    sizes = struct.pack("<IIII", MAGIC, len(header), len(packed), zlib.crc32(header + packed))
    return sizes + header + packed


def put(path: Path, content: bytes | bytearray | str) -> None:
    """Replace a file by another one. Overwriting it in place is slow on some disks."""
    path.unlink()
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def process(folder: Path) -> Path:
    [found] = folder.glob("rank-*")
    return found


def place(folder: Path, name: str) -> Path:
    return folder / name if name == "run.json" else process(folder) / name


def segment_files(folder: Path) -> list[Path]:
    return sorted([*process(folder).glob("*.live"), *process(folder).glob("*.zst")])
