"""Rank grids for one screen: the longest time of the ranks and steps in each cell."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import stepwell
from stepwell import Run, open_run
from stepwell.analysis.cache import memory
from stepwell.analysis.detail import grid as grid_module
from stepwell.analysis.detail import grid_at
from stepwell.analysis.ranks.grid import read_grids
from stepwell.journal.archive import Block
from stepwell.journal.process_writer import ProcessWriter
from stepwell.reading import RecordedRun
from stepwell.testing.simulate import make_plan, simulate
from tests.analysis.detail.runs import CLOCK, Written


@pytest.fixture
def run(tmp_path: Path) -> RecordedRun:
    simulate(tmp_path / "run", make_plan(6, 100, ("straggler",)))
    return open_run(tmp_path / "run")


def test_each_cell_is_the_time_of_a_rank_in_a_step(run: RecordedRun) -> None:
    (grid,) = read_grids(run)
    window = grid_at(run, "forward")
    assert (window.ranks, window.steps) == (grid.ranks, grid.steps.tolist())
    assert np.array_equal(window.values, grid.total("forward"))
    assert window.median_ns == int(np.median(grid.total("forward")))
    assert (window.attempt, window.attempts, window.phases) == (0, [0], grid.phases)
    assert (window.rank_count, window.step_count) == (6, 100)


@pytest.mark.parametrize("piece", [1, 3 * 8 * 100, 1 << 20])
def test_merged_cells_keep_the_longest_time(
    run: RecordedRun, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the grid is cut into pieces for the cache."""
    monkeypatch.setattr(grid_module, "PIECE_BYTES", piece)
    (grid,) = read_grids(run)
    total = grid.total("backward")
    window = grid_at(run, "backward", width=10, height=2)
    assert (window.ranks, window.steps) == ([0, 3], list(range(0, 100, 10)))
    for row in range(2):
        for column in range(10):
            cells = total[3 * row : 3 * row + 3, 10 * column : 10 * column + 10]
            assert window.values[row, column] == cells.max()
    part = grid_at(run, "backward", ranks=[1, 4], steps=(20, 29))
    assert (part.ranks, part.steps) == ([1, 4], list(range(20, 30)))
    assert np.array_equal(part.values, total[[1, 4], 20:30])


def test_an_unknown_phase_is_replaced_by_the_one_with_most_time(run: RecordedRun) -> None:
    (grid,) = read_grids(run)
    longest = max(grid.phases, key=lambda phase: grid.total(phase).sum())
    assert grid_at(run).phase == grid_at(run, "no such phase").phase == longest


def test_the_second_call_unpacks_no_segment(run: RecordedRun, unpacked: list[Block]) -> None:
    first = grid_at(run, "forward")
    unpacked.clear()
    memory.clear()
    assert np.array_equal(grid_at(run, "forward").values, first.values)
    grid_at(run, "data")
    assert unpacked == []


def test_a_damaged_cache_is_made_again(run: RecordedRun, cache: Path) -> None:
    expected = grid_at(run, "forward").values
    for path in cache.rglob("*.shelf"):
        data = bytearray(path.read_bytes())
        data[-2000:] = bytes(2000)
        path.write_bytes(data)
    memory.clear()
    for phase in ("data", "forward"):
        grid_at(run, phase)
    assert np.array_equal(grid_at(run, "forward").values, expected)


def test_the_latest_attempt_is_shown_unless_another_is_asked_for(tmp_path: Path) -> None:
    simulate(tmp_path / "run", make_plan(2, 60, ("restart",)))
    run = open_run(tmp_path / "run")
    grids = {grid.attempt: grid for grid in read_grids(run)}
    assert list(grids) == [0, 1]
    for attempt, window in ((1, grid_at(run, "forward")), (0, grid_at(run, "forward", attempt=0))):
        assert (window.attempt, window.attempts) == (attempt, [0, 1])
        assert window.steps == grids[attempt].steps.tolist()
        begun = grids[attempt].begin >= 0
        assert np.array_equal(np.isnan(window.values), ~begun)


def test_steps_that_a_rank_did_not_begin_have_no_value(tmp_path: Path) -> None:
    written = Written(tmp_path / "run", rows_a_segment=1000)
    for rank, count in ((0, 8), (1, 5)):

        def write(writer: ProcessWriter, count: int = count) -> None:
            for step in range(count):
                clock = CLOCK + step * 1000
                writer.context(clock, step, 0)
                outer = writer.span("train step", "", clock, clock + 900)
                writer.span("forward", "", clock, clock + 100 + step, outer)

        written.add(write, rank=rank)
    window = grid_at(written.open(), "forward")
    assert window.values[0].tolist() == [100 + step for step in range(8)]
    assert window.values[1, :5].tolist() == [100 + step for step in range(5)]
    assert np.isnan(window.values[1, 5:]).all()


def test_a_run_without_steps_has_an_empty_grid(recorded: Run) -> None:
    window = grid_at(stepwell.open_run(recorded.path), "forward")
    assert (window.ranks, window.steps, window.values.size) == ([], [], 0)


def test_a_live_grid_is_not_computed_again_at_once(
    recorded: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def counted(run: RecordedRun) -> list[object]:
        calls.append(run)
        return list(read_grids(run))

    monkeypatch.setattr(grid_module, "read_grids", counted)
    for step in range(3):
        recorded.set_step(step)
        with recorded.span("train step"), recorded.span("forward"):
            pass
    run = stepwell.open_run(recorded.path)
    for _ in range(3):
        assert grid_at(run, "forward").steps == [0, 1, 2]
    assert len(calls) == 1
