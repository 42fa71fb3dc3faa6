"""Runs that are running, hang or failed: their reports need only the results of tasks, not spans."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import stepwell
from stepwell.analysis.engine import LocalEngine
from stepwell.analysis.engine.tasks import Task, TaskResult
from stepwell.analysis.ranks.history import read_history
from stepwell.analysis.report import Report, report
from stepwell.reading import RecordedRun
from stepwell.reading.segments import RecordedSegment
from stepwell.testing.simulate import HangFault, RunPlan, simulate
from stepwell.vocabulary import StandardTrainingJobSpanName

LOOP = StandardTrainingJobSpanName.TRAINING_LOOP.value


class _FarAway:
    """Another machine: results are pickled and sent, and no segment of spans can be read here."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def map(
        self, read_task: Callable[[Task], TaskResult], tasks: Sequence[Task]
    ) -> Iterator[tuple[int, TaskResult]]:
        for number, part in LocalEngine().map(read_task, tasks):
            yield number, pickle.loads(pickle.dumps(part))
        self._patch.setattr(RecordedSegment, "columns", property(_refuse))


def _refuse(segment: RecordedSegment) -> Any:
    raise AssertionError(
        f"{segment.kind} of {segment.process} were read by who asked for the report"
    )


def _away(run: RecordedRun) -> Report:
    with pytest.MonkeyPatch.context() as patch:
        return report(run, engine=_FarAway(patch))


def _without_cost(made: Report) -> dict[str, Any]:
    """Return the report without the cost of recording, which is measured again each time."""
    return {**dataclasses.asdict(made), "cost": None}


def test_a_hang(tmp_path: Path) -> None:
    simulate(tmp_path / "run", RunPlan(3, 50, (HangFault(1, 40),)))
    run = stepwell.open_run(tmp_path / "run")
    away = _away(run)
    assert {"hang", "died"} <= {finding.rule for finding in away.findings}
    assert any("rank 1 never arrived" in finding.sentence for finding in away.findings)
    assert _without_cost(away) == _without_cost(report(run))


def test_a_failure(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="bad batch"):
        _fail(tmp_path)
    (run,) = stepwell.list_runs(tmp_path)
    (result,) = [finding for finding in _away(run).findings if finding.rule == "died"]
    assert "at step 25 inside train step › forward: ValueError: bad batch" in result.sentence


def _fail(folder: Path) -> None:
    with stepwell.init("fails", dir=folder) as started:
        for step in range(30):
            started.set_step(step)
            with started.span("train step"), started.span("forward"):
                if step == 25:
                    raise ValueError("bad batch")


def test_the_time_left(tmp_path: Path) -> None:
    """From the current training loop; the latest one if there were several."""
    with stepwell.init("goes on", dir=tmp_path) as started:
        with started.span(LOOP, train_iterations_target=7):
            pass
        # More spans than fit into a segment.
        for _ in range(17_000):
            with started.span("tick"):
                pass
        with started.span(LOOP, train_iterations_target=100):
            for step in range(30):
                started.set_step(step)
                with started.span("train step"):
                    pass
            left = _away(stepwell.open_run(started.path)).left
    assert left is not None
    assert (left.target, left.done) == (100, 30)


def test_history_is_what_the_table_says(tmp_path: Path) -> None:
    """Counts and longest durations by name, also of spans that continue over several segments."""
    simulate(tmp_path / "run", RunPlan(2, 4000, (HangFault(1, 3900),)))
    run = stepwell.open_run(tmp_path / "run")
    ended = pl.col("status").is_in(["ok", "error"])
    table = (
        run.spans()
        .group_by("rank", "name", "category")
        .agg(
            pl.len().alias("begun"),
            ended.sum().alias("ended"),
            pl.col("duration_ns").filter(ended).max().fill_null(0),
        )
        .collect()
    )
    expected = {(rank, name, category): tuple(rest) for rank, name, category, *rest in table.rows()}
    result = {
        (history.rank, *key): value
        for tables in run.by_process()
        for history in [read_history(tables)]
        for key, value in history.done.items()
    }
    assert max(len(t.process.of_kind("spans")) for t in run.by_process()) > 1
    assert result == expected


def test_of_a_run_that_has_finished_nothing_of_it_is_read(tmp_path: Path) -> None:
    simulate(tmp_path / "run", RunPlan(2, 30, ()))
    away = stepwell.open_run(tmp_path / "run")
    made = [part for _, part in LocalEngine().map(*_work(away))]
    assert not any(part.history or part.stacks for part in made)


def _work(run: RecordedRun) -> tuple[Callable[[Task], TaskResult], list[Task]]:
    from stepwell.analysis.engine.tasks import make_tasks, read_task

    return read_task, make_tasks(run)[0]
