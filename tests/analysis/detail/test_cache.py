"""Cached files: the size of their folder is limited, and those used last stay."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stepwell.analysis import cache as cache_module
from stepwell.analysis.cache import RecentValues, read_shelf, shelf_path, write_shelf


def test_the_least_recently_used_files_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "MAX_BYTES", 50_000)
    monkeypatch.setattr(cache_module, "TIDY_S", -1.0)
    paths = [shelf_path(tmp_path, str(number)) for number in range(8)]
    for number, path in enumerate(paths):
        write_shelf(path, {}, {"a": os.urandom(10_000)})
        os.utime(path, (number, number))
    left = [number for number, path in enumerate(paths) if path.exists()]
    assert 7 in left
    assert 0 not in left
    assert sum(path.stat().st_size for path in paths if path.exists()) <= 50_000


def test_a_shelf_returns_its_blobs_and_note(tmp_path: Path) -> None:
    path = shelf_path(tmp_path, "x")
    write_shelf(path, {"made": 1}, {"a": b"first", "b": b""})
    shelf = read_shelf(path)
    assert shelf is not None
    assert (shelf.note, shelf.get(["a", "b", "c"])) == ({"made": 1}, {"a": b"first", "b": b""})
    # Others are kept as they are when some are added.
    write_shelf(path, {"made": 2}, {"c": b"third"}, shelf.packed(["a"]))
    again = read_shelf(path)
    assert again is not None
    assert again.get(["a", "b", "c"]) == {"a": b"first", "c": b"third"}


def test_memory_is_limited() -> None:
    recent = RecentValues(100)
    for number in range(10):
        recent.put(number, str(number), 30)
        recent.get(0)
    assert [n for n in range(10) if recent.get(n) is not None] == [0, 8, 9]
