"""The report is the same with every engine: this process, or the workers of a cluster."""

from __future__ import annotations

import dataclasses
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell._core.errors import StepwellError
from stepwell.analysis.engine import (
    LocalEngine,
    Summary,
    choose_engine,
    engines,
    summarise,
    summarise_with_grids,
)
from stepwell.analysis.engine.tasks import Task, TaskResult, make_tasks, read_task
from stepwell.analysis.findings import Facts
from stepwell.analysis.goodput import goodput
from stepwell.analysis.ranks import Grid, Straggler, stragglers
from stepwell.analysis.report import report
from stepwell.analysis.timeline import ledger, steps
from stepwell.analysis.timeline.step_phases import Compact
from stepwell.reading import RecordedRun
from stepwell.testing.simulate import make_plan, simulate
from tests.analysis.engine.cluster import Cluster, cluster
from tests.harness import run_stepwell

pytest.importorskip("distributed")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    """Six ranks with a straggler, a stall, steps that wait for data and a restart."""
    folder = tmp_path_factory.mktemp("engine") / "run"
    simulate(folder, make_plan(6, 400))
    return stepwell.open_run(folder)


@pytest.fixture(scope="module")
def two_workers() -> Iterator[Cluster]:
    with cluster(2) as made:
        yield made


def report_of(run: RecordedRun, **how: Any) -> dict[str, Any]:
    """Return the report without the cost of recording, which is measured again each time."""
    return {**dataclasses.asdict(report(run, **how)), "cost": None}


def test_summary_says_what_the_run_says(run: RecordedRun) -> None:
    """One pass gives the same results as the separate tables and analyses."""
    summary = summarise(run)
    assert summary.processes.equals(run.processes().collect())
    logged = run.metrics().select(summary.metrics.columns).collect()
    assert summary.metrics.sort(summary.metrics.columns).equals(logged.sort(logged.columns))
    assert steps(summary.timelines).equals(steps(run))
    assert ledger(summary.timelines).equals(ledger(run))
    assert stragglers(summary.timelines) == stragglers(run)
    assert summary.spans[0] == run.spans().collect().height


def test_grids_are_made_once_and_dropped(run: RecordedRun) -> None:
    """Their functions give what the run gives; one that fails leaves the others alone."""

    def fail(summary: Summary, grids: list[Grid]) -> None:
        raise ValueError("no grid")

    def slow_ranks(summary: Summary, grids: list[Grid]) -> list[Straggler]:
        return stragglers(summary.timelines, grids)

    summary, (failed, slow) = summarise_with_grids(run, [fail, slow_ranks])
    assert slow.result() == stragglers(run)
    with pytest.raises(ValueError, match="no grid"):
        failed.result()
    assert all(timeline.phases_by_step is None for timeline in summary.timelines)
    assert Facts(run).goodput == goodput(run)


def test_every_process_is_in_one_task(run: RecordedRun) -> None:
    tasks, documents = make_tasks(run)
    folders = [folder for task in tasks for folder in task.folders]
    assert sorted(folders) == sorted(d["process"] for d in documents)
    assert len(tasks) == 12
    assert {task.is_latest for task in tasks[1::2]} == {True}


def test_order_of_the_parts_does_not_matter(run: RecordedRun) -> None:
    class Backwards:
        def map(
            self, read_task: Callable[[Task], TaskResult], tasks: Sequence[Task]
        ) -> Iterator[tuple[int, TaskResult]]:
            yield from reversed(list(LocalEngine().map(read_task, tasks)))

    assert report_of(run, engine=Backwards()) == report_of(run)


def test_two_threads_say_the_same(run: RecordedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = report_of(run)
    threads, mapped = set(), set()

    class NotingPool(futures.ThreadPoolExecutor):
        def map(self, do: Any, *items: Any, **options: Any) -> Any:
            mapped.add(getattr(do, "func", do).__qualname__.partition(".")[0])
            return super().map(do, *items, **options)

    def read_and_note(task: Task) -> TaskResult:
        threads.add(threading.get_ident())
        return read_task(task)

    monkeypatch.setattr(engines, "read_task", read_and_note)
    monkeypatch.setattr(engines, "LARGE", 0)
    monkeypatch.setattr(futures, "ThreadPoolExecutor", NotingPool)
    for module, limit in (
        ("ranks.grid", "LARGE"),
        ("timeline.patterns", "LARGE"),
        ("report", "MANY"),
    ):
        monkeypatch.setattr(sys.modules[f"stepwell.analysis.{module}"], limit, -1)
    assert report_of(run) == alone
    assert threads
    assert threading.get_ident() not in threads
    assert mapped == {"_arrivals", "delays", "step_losses", "_of_rank", "_time_in_step"}


def test_part_is_smaller_than_spans(run: RecordedRun) -> None:
    """A worker sends no arrays of spans: the longest array has one entry for each step."""
    tasks, _ = make_tasks(run)
    part = read_task(tasks[0])
    (timeline,) = part.timelines
    row = timeline.phases_by_step
    assert row is not None
    spans = part.folders[0][0].spans
    assert spans > 5 * len(row.steps)
    assert timeline.cells.shape[1] == len(row.steps) + 2
    assert all(len(pair[1].full) == len(row.steps) for pair in row.layers.values())


def test_part_that_was_sent_says_the_same(run: RecordedRun) -> None:
    """Redundant data is not sent, but the result is complete."""
    tasks, _ = make_tasks(run)
    part = read_task(tasks[0])
    packed = pickle.dumps(part)
    (before,), (after,) = part.timelines, pickle.loads(packed).timelines
    for name in ("steps", "epochs", "cells"):
        assert np.array_equal(getattr(after, name), getattr(before, name))
    assert before.iterations is not None
    assert after.iterations is not None
    for name in ("steps", "epochs", "starts", "ends", "begins"):
        assert np.array_equal(getattr(after.iterations, name), getattr(before.iterations, name))
    assert np.shares_memory(after.iterations.steps, after.steps)
    steps = len(before.steps)
    phases = int(before.cells.any(axis=1).sum())
    assert before.phases_by_step is not None
    layers = len(before.phases_by_step.layers) + len(before.phases_by_step.between)
    assert len(packed) < 8 * steps * (phases + 4) + 8 * steps * (layers + 3) + 40_000


@pytest.mark.parametrize("values", [[1, -2, 3], [1, 1 << 40, -(1 << 50)], []])
def test_compact_numbers_that_were_sent(values: list[int]) -> None:
    result = pickle.loads(pickle.dumps(Compact(np.array(values, np.int64))))
    assert result.full.tolist() == values


def test_dask_by_address(run: RecordedRun, two_workers: Cluster) -> None:
    assert report_of(run, engine="dask", scheduler=two_workers.address) == report_of(run)


@pytest.mark.full
def test_dask_from_the_command_line(run: RecordedRun, two_workers: Cluster, tmp_path: Path) -> None:
    command = ["report", str(run.folder)]
    local = run_stepwell(*command, cwd=tmp_path, check=True)
    more = ["--engine", "dask", "--scheduler", two_workers.address]
    there = run_stepwell(*command, *more, cwd=tmp_path, check=True)
    # The last line is the cost of recording, which is measured anew.
    assert there.stdout.partition("Recorded ")[0] == local.stdout.partition("Recorded ")[0]
    assert "Rank 3" in local.stdout


@pytest.mark.full
def test_killed_worker_changes_nothing(
    run: RecordedRun, two_workers: Cluster, tmp_path: Path
) -> None:
    """One of three workers is killed in the middle of a task; two remain."""
    two_workers.add_worker()
    engine = _Killing(two_workers, tmp_path / "busy")
    assert report_of(run, engine=engine) == report_of(run)
    assert engine.killed


class _Killing:
    """Dask, with a worker that is killed during its first task."""

    def __init__(self, made: Cluster, mark: Path) -> None:
        self._cluster, self._mark = made, mark
        self.killed = False

    def map(
        self, read_task: Callable[[Task], TaskResult], tasks: Sequence[Task]
    ) -> Iterator[tuple[int, TaskResult]]:
        from threading import Thread

        from stepwell.analysis.engine.engines import DaskEngine
        from tests.analysis.engine.slowly import Slowly

        killer = Thread(target=self._kill)
        killer.start()
        yield from DaskEngine(self._cluster.address).map(Slowly(self._mark), tasks)
        killer.join()

    def _kill(self) -> None:
        """Kill a worker as soon as it has started a task."""
        deadline = time.monotonic() + 60
        pids = {worker.pid for worker in self._cluster.workers}
        while time.monotonic() < deadline:
            text = self._mark.read_text() if self._mark.exists() else ""
            busy = pids & {int(pid) for pid in text.split()}
            if busy:
                os.kill(busy.pop(), signal.SIGKILL)
                self.killed = True
                return
            time.sleep(0.01)


@pytest.mark.full
def test_cluster_of_its_own(run: RecordedRun) -> None:
    """Without an address."""
    assert report_of(run, engine="dask") == report_of(run)


def test_no_scheduler_there(run: RecordedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.analysis.engine.engines.PATIENCE", 0.05)
    with pytest.raises(StepwellError, match=r"no Dask scheduler answers at 'tcp://127.0.0.1:9'"):
        report(run, engine="dask", scheduler="tcp://127.0.0.1:9")


def test_worker_that_does_not_see_the_run(run: RecordedRun) -> None:
    tasks, _ = make_tasks(run)
    with pytest.raises(StepwellError, match="Put the run where all workers can read it"):
        read_task(dataclasses.replace(tasks[0], run=Path("/nowhere/run")))


def test_unknown_engine() -> None:
    with pytest.raises(StepwellError, match="engine must be 'local' or 'dask', got 'spark'"):
        choose_engine("spark")


def test_scheduler_without_engine() -> None:
    with pytest.raises(StepwellError, match="--engine dask"):
        choose_engine(None, "tcp://127.0.0.1:8786")


def test_dask_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(StepwellError, match=r"pip install 'stepwell\[dask\]'"):
        choose_engine("dask")
