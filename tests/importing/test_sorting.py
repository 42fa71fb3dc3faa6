"""Rows are sorted even if they do not fit into memory."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from stepwell.importing import rows as rows_module
from stepwell.importing.rows import RowSorter, TraceRow


@pytest.mark.parametrize(("count", "piece"), [(50, 1 << 20), (5000, 10_000), (20_000, 4000)])
def test_rows_come_back_sorted_whatever_fits_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, piece: int
) -> None:
    """In memory, in a few pieces, and in many pieces that are merged in stages."""
    monkeypatch.setattr(rows_module, "MOST_AT_ONCE", 8)
    random.seed(3)
    rows = [
        TraceRow(
            random.randrange(3),
            random.randrange(-5, 10**18),
            random.randrange(2),
            -random.randrange(2**61),
            random.randrange(-(2**62), 2**62),
            random.randrange(-1, 9),
            i,
            random.randrange(2**60),
            b"x" * random.randrange(9),
        )
        for i in range(count)
    ]
    sorter = RowSorter(tmp_path, piece)
    for row in rows:
        sorter.add(row)
    assert sorter.count == count
    assert list(sorter.sorted()) == sorted(rows)
    assert len(list(tmp_path.iterdir())) <= 30
