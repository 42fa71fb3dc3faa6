"""One aligned clock: hosts keep their own, and a wall clock that jumps moves nothing."""

from __future__ import annotations

import json
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from stepwell import open_run
from stepwell.journal.format import pack_header

HOUR = 3_600_000_000_000
EPOCH = 1_700_000_000_000_000_000


def write_process(
    run: Path, rank: int, host: str, boot: str, anchors: list[list[int]], clocks: list[int]
) -> None:
    """A process folder made by hand, which logged ``x`` at these readings of its clock."""
    name = f"rank-{rank:05d}.attempt-0.pid-{rank + 1}"
    folder = run / name
    folder.mkdir(parents=True)
    document: dict[str, Any] = {
        "process": name,
        "run": "r",
        "attempt": 0,
        "rank": rank,
        "host": host,
    }
    document |= {"boot": boot, "pid": 1, "start": 1, "status": "finished", "anchors": anchors}
    (folder / "process.json").write_text(json.dumps(document))
    (folder / "names.jsonl").write_text('{"id":1,"kind":"metric","category":"","name":"x"}\n')
    header = pack_header({"kind": "metrics", "seq": 0, "lane": 0, "thread": "main"})
    rows = [struct.pack("@QQdQ", clock, 1 << 62 | i, float(i), 1) for i, clock in enumerate(clocks)]
    (folder / "metrics-00000.live").write_bytes(header.ljust(4096, b"\0") + b"".join(rows))


def times(run: Path, rank: int) -> list[int]:
    table = open_run(run).metrics().collect().sort("rank", "time_ns")
    return [row["time_ns"] for row in table.to_dicts() if row["rank"] == rank]


def test_hosts_with_different_clocks_meet_on_the_wall_clock(tmp_path: Path) -> None:
    """Two hosts that booted at different times logged at the same moment: so it reads."""
    write_process(tmp_path, 0, "a", "boot-a", [[1000, EPOCH]], [1000, 6000])
    write_process(tmp_path, 1, "b", "boot-b", [[HOUR, EPOCH + 500]], [HOUR - 500, HOUR + 4500])
    assert times(tmp_path, 0) == [EPOCH, EPOCH + 5000]
    assert times(tmp_path, 1) == [EPOCH, EPOCH + 5000]


def test_a_stepped_wall_clock_does_not_move_the_timeline(tmp_path: Path) -> None:
    """An hour's jump in the middle, and back, leaves all times where they were."""
    right = [[i * 1000, EPOCH + i * 1000] for i in range(5)]
    jumped = [[i * 1000, EPOCH + i * 1000 + HOUR] for i in range(5, 8)]
    write_process(tmp_path, 0, "a", "boot-a", right + jumped, [0, 5000, 7000])
    assert times(tmp_path, 0) == [EPOCH, EPOCH + 5000, EPOCH + 7000]


def test_durations_never_come_from_the_wall_clock(tmp_path: Path) -> None:
    """However the wall clock was set, distances are those of the monotonic clock."""
    anchors = [[0, EPOCH], [1000, EPOCH - HOUR], [2000, EPOCH + HOUR], [3000, EPOCH + 99]]
    write_process(tmp_path, 0, "a", "boot-a", anchors, [10, 1010, 2010, 3010])
    starts = times(tmp_path, 0)
    assert [b - a for a, b in pairwise(starts)] == [1000, 1000, 1000]


def test_processes_of_one_boot_share_one_clock_exactly(tmp_path: Path) -> None:
    """Ranks of one host keep their order to the nanosecond, though their notes differ a little."""
    write_process(tmp_path, 0, "a", "boot", [[0, EPOCH], [10, EPOCH + 17]], [100, 102])
    write_process(tmp_path, 1, "a", "boot", [[0, EPOCH + 5]], [101])
    first, last = times(tmp_path, 0)
    assert times(tmp_path, 1) == [first + 1]
    assert last == first + 2


def test_a_process_without_notes_uses_those_of_its_host(tmp_path: Path) -> None:
    """A process that died before its first note is still in the right place."""
    write_process(tmp_path, 0, "a", "boot", [[0, EPOCH]], [5])
    write_process(tmp_path, 1, "a", "boot", [], [6])
    assert times(tmp_path, 1) == [EPOCH + 6]


@pytest.mark.parametrize(
    "anchors",
    [
        None,
        "x",
        5,
        {},
        [1],
        [[1]],
        [[1, 2, 3]],
        [["a", "b"]],
        [[0.5, 1.5]],
        [[2**70, -(2**70)]],
        [[[], {}]],
    ],
)
def test_notes_that_are_garbage_are_left_out(tmp_path: Path, anchors: Any) -> None:
    """Whatever the document contains, the other process of the host still provides the time."""
    write_process(tmp_path, 0, "a", "boot", [[0, EPOCH]], [5])
    write_process(tmp_path, 1, "a", "boot", anchors, [6])
    assert times(tmp_path, 0) == [EPOCH + 5]
    assert times(tmp_path, 1) == [EPOCH + 6]
