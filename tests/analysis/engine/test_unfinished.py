"""Runs that go on, hang or failed: what is asked of them comes from the parts as well, not from spans."""

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
from stepwell.analysis.engine.part import Part
from stepwell.analysis.engine.task import Task
from stepwell.analysis.ranks.habits import habits_of
from stepwell.analysis.report import Report, report
from stepwell.analysis.simulate import Hang, Plan, simulate
from stepwell.reading import RecordedRun
from stepwell.reading.segments import Segment
from stepwell.vocabulary import StandardTrainingJobSpanName

LOOP = StandardTrainingJobSpanName.TRAINING_LOOP.value


class _FarAway:
    """Elsewhere: what comes back was packed and sent, and no segment of spans can be unpacked here."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def map(self, do: Callable[[Task], Part], tasks: Sequence[Task]) -> Iterator[tuple[int, Part]]:
        for number, part in LocalEngine().map(do, tasks):
            yield number, pickle.loads(pickle.dumps(part))
        self._patch.setattr(Segment, "columns", property(_refuse))


def _refuse(segment: Segment) -> Any:
    raise AssertionError(
        f"{segment.kind} of {segment.process} were read by who asked for the report"
    )


def _away(run: RecordedRun) -> Report:
    with pytest.MonkeyPatch.context() as patch:
        return report(run, engine=_FarAway(patch))


def _told(made: Report) -> dict[str, Any]:
    """What recording cost is timed anew each time."""
    return {**dataclasses.asdict(made), "cost": None}


def test_a_hang(tmp_path: Path) -> None:
    simulate(tmp_path / "run", Plan(3, 50, (Hang(1, 40),)))
    run = stepwell.open_run(tmp_path / "run")
    away = _away(run)
    assert {"hang", "died"} <= {finding.rule for finding in away.findings}
    assert any("rank 1 never came" in finding.sentence for finding in away.findings)
    assert _told(away) == _told(report(run))


def test_a_failure(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="bad batch"):
        _fail(tmp_path)
    (run,) = stepwell.list_runs(tmp_path)
    (found,) = [finding for finding in _away(run).findings if finding.rule == "died"]
    assert "at step 25 inside train step › forward: ValueError: bad batch" in found.sentence


def _fail(folder: Path) -> None:
    with stepwell.init("fails", dir=folder) as started:
        for step in range(30):
            started.set_step(step)
            with started.span("train step"), started.span("forward"):
                if step == 25:
                    raise ValueError("bad batch")


def test_the_time_left(tmp_path: Path) -> None:
    """Told by the training loop that it is in, and by the latest one where there were several."""
    with stepwell.init("goes on", dir=tmp_path) as started:
        with started.span(LOOP, train_iterations_target=7):
            pass
        # More than a segment holds.
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


def test_habits_are_what_the_table_says(tmp_path: Path) -> None:
    """Counts and longest times by name, also of spans that went on over several segments."""
    simulate(tmp_path / "run", Plan(2, 4000, (Hang(1, 3900),)))
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
    found = {
        (habits.rank, *key): value
        for tables in run.by_process()
        for habits in [habits_of(tables)]
        for key, value in habits.done.items()
    }
    assert max(len(t.process.of_kind("spans")) for t in run.by_process()) > 1
    assert found == expected


def test_of_a_run_that_has_finished_nothing_of_it_is_read(tmp_path: Path) -> None:
    simulate(tmp_path / "run", Plan(2, 30, ()))
    away = stepwell.open_run(tmp_path / "run")
    made = [part for _, part in LocalEngine().map(*_work(away))]
    assert not any(part.habits or part.stacks for part in made)


def _work(run: RecordedRun) -> tuple[Callable[[Task], Part], list[Task]]:
    from stepwell.analysis.engine.part import do
    from stepwell.analysis.engine.task import make_tasks

    return do, make_tasks(run)[0]
