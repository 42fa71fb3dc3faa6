"""The steps by which rules judge."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import stepwell
from stepwell.analysis.timeline import steps, tables, timelines
from stepwell.analysis.timeline.tables import steady_steps
from stepwell.testing.simulate import make_plan, simulate


def test_steady_steps_are_the_same_by_slices_and_by_a_filter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the first three steps of each attempt, and without the last one of an unfinished attempt."""
    simulate(tmp_path / "run", make_plan(3, 40, ("restart",)))
    parts = timelines(stepwell.open_run(tmp_path / "run"))
    table = steps(parts)
    kept = []
    for part in parts:
        own = table.filter(rank=part.rank, attempt=part.attempt)
        kept.append(own[3 : own.height - (part.status != "finished")])
    assert {part.status for part in parts} == {"finished", "killed"}
    assert_frame_equal(steady_steps(table, parts), pl.concat(kept))
    monkeypatch.setattr(tables, "MANY", 0)
    assert_frame_equal(steady_steps(table, parts), pl.concat(kept))
