"""Folding ended workers into the archives of their parent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepwell.journal.archive import Archive, read_blocks
from stepwell.journal.format import (
    EVENTS,
    HEADER_BYTES,
    METRIC_BYTES,
    NAMES,
    PROCESS,
    ROW,
    ROW_HEAD,
    STEP_BIAS,
    pack_header,
)
from stepwell.journal.workers import fold_workers

ENDED = {"pid": 2**31 - 2, "start": 1}


@pytest.fixture
def worker(tmp_path: Path) -> Path:
    """The folder of a worker that has ended, with one metric in a live segment."""
    folder = tmp_path / "workers" / "w0"
    folder.mkdir(parents=True)
    (folder / PROCESS).write_text(json.dumps(ENDED))
    (folder / NAMES).write_text('{"id": 3, "kind": "metric", "category": "", "name": "loss"}\n')
    (folder / EVENTS).write_text("")
    row = ROW.pack(ROW_HEAD.pack(1000, 7 + STEP_BIAS), 0.5, 3)
    header = pack_header({"kind": "metrics", "seq": 0, "lane": 0, "thread": "MainThread"})
    segment = header.ljust(HEADER_BYTES, b"\0") + row
    (folder / "metrics-00000.live").write_bytes(segment.ljust(METRIC_BYTES, b"\0"))
    return folder


def fold(parent: Path) -> tuple[int, list[str]]:
    """Fold the workers of a process; return the bytes added, and the kinds of all blocks."""
    archives = {kind: Archive(parent, kind) for kind in ("spans", "metrics", "workers")}
    added = fold_workers(parent, archives)
    paths = sorted(parent.glob("*.zst"))
    return added, [block.header["kind"] for path in paths for block in read_blocks(path)]


def test_an_ended_worker_is_folded_and_its_folder_removed(tmp_path: Path, worker: Path) -> None:
    """Its segment and its documents are blocks of the parent's archives."""
    added, kinds = fold(tmp_path)
    assert kinds == ["metrics", "worker"]
    assert added == sum(path.stat().st_size for path in tmp_path.glob("*.zst"))
    assert not worker.exists()


def test_an_unused_segment_is_removed(tmp_path: Path, worker: Path) -> None:
    """A segment that was prepared and never used has an empty header: there is nothing to keep."""
    (worker / "spans-00001.live").write_bytes(bytes(METRIC_BYTES))
    fold(tmp_path)
    assert not worker.exists()


@pytest.mark.parametrize("state", ["live", "full"])
def test_a_segment_with_a_damaged_header_is_kept(tmp_path: Path, worker: Path, state: str) -> None:
    """It cannot be read now, but perhaps repaired by hand. The rest is folded, and only once."""
    damaged = worker / f"spans-00001.{state}"
    content = b"\xff" * 64 + bytes(METRIC_BYTES)
    damaged.write_bytes(content)
    assert fold(tmp_path)[1] == ["metrics", "worker"]
    assert damaged.read_bytes() == content
    assert [path.name for path in worker.iterdir()] == [damaged.name]
    assert fold(tmp_path) == (0, ["metrics", "worker"])
    assert damaged.read_bytes() == content
