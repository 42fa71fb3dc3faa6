"""Synthetic runs: in the real format, with exactly the planted faults, and reproducible."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

import stepwell
from stepwell._core.errors import StepwellError
from stepwell.testing.simulate import (
    DataBound,
    HangFault,
    PlannedDurations,
    Restart,
    RunPlan,
    Stall,
    StragglerFault,
    make_plan,
    simulate,
)
from stepwell.testing.simulate.plan import MS, SECOND
from tests.harness import run_stepwell
from tests.nesting.tree import check_tree

STILL = PlannedDurations(jitter=0.0)


def test_a_small_run_worked_out_by_hand(tmp_path: Path) -> None:
    """Two ranks, two steps, every number known."""
    pace = PlannedDurations(
        data=1 * MS,
        zero=1 * MS,
        forward=10 * MS,
        backward=20 * MS,
        communication=5 * MS,
        optimizer=3 * MS,
        between=1 * MS,
        launch=1 * SECOND,
        initialisation=(1 * SECOND, 0, 0, 0),
        ending=1 * SECOND,
        jitter=0.0,
    )
    slow = StragglerFault(1, "forward", range(1, 2), 7 * MS)
    truth = simulate(tmp_path / "run", RunPlan(2, 2, (slow,), pace, began_ns=10 * SECOND))
    run = stepwell.open_run(tmp_path / "run")
    assert run.status == "finished"
    spans = run.spans().collect()
    check_tree(spans.filter(pl.col("rank") == 0))
    at = {
        (rank, step, name): ((start - 12 * SECOND) // MS, duration // MS)
        for rank, step, name, start, duration in spans.select(
            "rank", "step", "name", "start_ns", "duration_ns"
        ).iter_rows()
    }
    assert at[0, 0, "training_single_iteration"] == (1, 40)
    assert at[0, 0, "all_reduce"] == at[1, 0, "all_reduce"] == (33, 5)
    assert at[0, 1, "training_single_iteration"] == (42, 47)
    assert at[0, 1, "model_forward"] == (44, 10)
    assert at[1, 1, "model_forward"] == (44, 17)
    assert at[0, 1, "all_reduce"] == (74, 12)
    assert at[1, 1, "all_reduce"] == (81, 5)
    assert at[1, 1, "optimizer_update"] == (86, 3)
    assert truth["wall_ns"] == 2 * SECOND + 89 * MS + 1 * SECOND
    assert truth["stragglers"] == [
        {"rank": 1, "phase": "forward", "steps": [1], "ns_per_step": 7 * MS, "ns": 7 * MS}
    ]
    assert json.loads((tmp_path / "run" / "truth.json").read_text()) == truth


def test_many_segments(tmp_path: Path) -> None:
    """Spans that are longer than a segment continue in the next ones, and all rows are there."""
    simulate(tmp_path / "run", RunPlan(1, 6000, pace=STILL, checkpoint_every=500))
    run = stepwell.open_run(tmp_path / "run")
    spans = run.spans().collect()
    assert spans.height == 1 + 4 + 1 + 7 * 6000 + 12
    assert spans["id"].is_unique().all()
    assert set(spans["status"]) == {"ok"}
    loop = spans.row(by_predicate=pl.col("name") == "training_loop", named=True)
    iterations = spans.filter(pl.col("name") == "training_single_iteration").sort("start_ns")
    assert set(iterations["parent"]) == {loop["id"]}
    assert iterations["step"].to_list() == list(range(6000))
    assert iterations["epoch"].to_list() == [step // 1000 for step in range(6000)]
    assert set(iterations["depth"]) == {2}
    assert run.metrics().filter(pl.col("name") == "train/loss").collect().height == 6000


@pytest.mark.parametrize("failed", [False, True])
def test_a_restart(tmp_path: Path, failed: bool) -> None:
    """The job dies within a step and resumes from its last checkpoint."""
    plan = RunPlan(2, 60, (Restart(35, 9 * SECOND, failed),), STILL, checkpoint_every=20)
    truth = simulate(tmp_path / "run", plan)
    run = stepwell.open_run(tmp_path / "run")
    processes = run.processes().collect().sort("attempt", "rank")
    assert (
        processes["status"].to_list() == ["failed" if failed else "killed"] * 2 + ["finished"] * 2
    )
    steps = (
        run.spans()
        .filter((pl.col("name") == "training_single_iteration") & (pl.col("rank") == 0))
        .collect()
        .group_by("attempt")
        .agg(pl.col("step").min().alias("first"), pl.col("step").max().alias("last"))
        .sort("attempt")
    )
    assert steps.rows() == [(0, 0, 35), (1, 20, 59)]
    (restart,) = truth["restarts"]
    assert restart["redone_steps"] == 15
    assert restart["gap_ns"] == 9 * SECOND
    opened = run.open_spans().filter(pl.col("rank") == 0).sort("depth").collect()["name"].to_list()
    inside = [
        "application",
        "training_loop",
        "training_single_iteration",
        "model_backward",
        "all_reduce",
    ]
    assert opened == ([] if failed else inside)


def test_the_same_seed_gives_the_same_run(tmp_path: Path) -> None:
    """Another seed gives another run."""
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        simulate(tmp_path / name, make_plan(2, 100, seed=seed))
    tables = [stepwell.open_run(tmp_path / n).spans().drop("run").collect() for n in "abc"]
    assert tables[0].equals(tables[1])
    assert not tables[0].equals(tables[2])


@pytest.mark.parametrize(
    "fault",
    [
        StragglerFault(2, "forward", range(10), 1),
        StragglerFault(0, "forward", range(5, 200), 1),
        StragglerFault(0, "communication", range(10), 1),
        Stall(100, "data", 1),
        DataBound(range(0), 1),
        Restart(-1),
        HangFault(5, 3),
    ],
)
def test_what_cannot_be_planted_is_refused(fault: StragglerFault) -> None:
    """A rank, a step or a phase that the run does not have."""
    with pytest.raises(StepwellError):
        RunPlan(2, 100, (fault,))


def test_the_command(tmp_path: Path) -> None:
    """It lists the planted faults, and never writes into an existing folder."""
    done = run_stepwell("simulate", "--ranks", "3", "--steps", "200", "-o", "sim", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "straggler: rank 2, forward, steps 20 to 49, 450 ms in total" in done.stdout
    again = run_stepwell("simulate", "--ranks", "3", "--steps", "200", "-o", "sim", cwd=tmp_path)
    assert again.returncode == 2
    assert "exists already" in again.stderr
    shown = run_stepwell("show", "sim", cwd=tmp_path)
    assert "3 ranks, 2 attempts" in shown.stdout
    wrong = run_stepwell("simulate", "-o", "other", "--plant", "fire", cwd=tmp_path)
    assert wrong.returncode == 2
    assert not (tmp_path / "other").exists()
    shown = run_stepwell(
        "simulate",
        "--ranks",
        "1",
        "--steps",
        "50",
        "--plant",
        "nothing",
        "-o",
        "quiet",
        "--json",
        cwd=tmp_path,
    )
    assert json.loads(shown.stdout)["stragglers"] == []
