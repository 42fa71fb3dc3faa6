"""Compares what a tortured job left, in the run folder and in its trackers, with the book that it kept."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl

from stepwell.journal.document import ENDINGS
from stepwell.reading import RecordedRun
from tests.durability.helpers import only_run
from tests.harness import run_stepwell, wait_until
from tests.torture.faults import Fault
from tests.torture.job import WORLD, Job

MOST_SECONDS = 2.0
"""All calls of a step together take no longer, however busy this machine is."""
STOPPED = 1.0
"""Seconds that a rank may be stopped for in the midst of them."""


def check_training(job: Job, fault: Fault, weights: str | None) -> str | None:
    """Training was not affected and has the same weights; returns these."""
    codes = job.wait()
    if fault.kills:
        assert any(codes)
        return None
    assert codes == [0] * WORLD, [job.stderr(rank) for rank in range(WORLD)]
    return check_steps(job, weights)


def check_steps(job: Job, weights: str | None) -> str:
    """All ranks have done all steps, none was held up, and the weights are these; returns them."""
    found = set()
    for rank in range(WORLD):
        assert [entry["step"] for entry in job.steps_of(rank)] == list(range(job.steps))
        slowest = max(entry["took"] for entry in job.steps_of(rank))
        assert slowest < MOST_SECONDS + STOPPED, f"a step was held up for {slowest:.1f} s"
        found.add(job.book(rank)[-1]["weights"])
    (made,) = found
    assert weights in (None, made)
    return str(made)


def check_run(job: Job, fault: Fault) -> int:
    """Every record whose call had returned is there, once, or counted; returns how many were looked at."""
    if fault.loses_folder:
        return 0
    run = only_run(job.runs)
    before = _tables(run)
    looked = sum(_check_rank(job, run, before, rank, fault) for rank in range(WORLD))
    run_stepwell("recover", str(run.path), cwd=job.folder, check=True)
    after = _tables(only_run(job.runs))
    for name, table in before.items():
        assert after[name].equals(table), f"recover changes {name}"
    run_stepwell("report", str(run.path), cwd=job.folder, check=True)
    return looked


def _tables(run: RecordedRun) -> dict[str, pl.DataFrame]:
    spans = run.spans().sort("process", "id").collect()
    assert not spans.select("process", "id").is_duplicated().any()
    parents = spans.select("process", pl.col("id").alias("parent"))
    children = spans.filter(pl.col("parent").is_not_null())
    orphans = children.join(parents, on=["process", "parent"], how="anti")
    assert orphans.is_empty(), orphans
    return {
        "spans": spans,
        "metrics": run.metrics(overwritten=True).sort("process", "time_ns", "name").collect(),
        "events": run.events().sort("process", "time_ns", "name").collect(),
    }


def _check_rank(
    job: Job, run: RecordedRun, tables: dict[str, pl.DataFrame], rank: int, fault: Fault
) -> int:
    rows = run.processes().filter(pl.col("role") == "main", pl.col("rank") == rank).collect()
    looked = 0
    for row in rows.to_dicts():
        assert row["status"] in ENDINGS, row["status"]
        written = job.steps_of(rank, row["attempt"])
        mine = {name: table.filter(process=row["process"]) for name, table in tables.items()}
        may_miss = fault.may_drop and row["dropped"] > 0
        steps = mine["spans"].filter(name="step")["attributes"].to_list()
        _check(
            [json.loads(text)["i"] for text in steps if text],
            [entry["step"] for entry in written],
            may_miss,
        )
        losses = mine["metrics"].filter(name="loss").select("step", "value").rows()
        _check(losses, [(entry["step"], entry["loss"]) for entry in written], may_miss)
        ticks = mine["events"].filter(name="tick")["attributes"].to_list()
        _check(
            [json.loads(text)["i"] for text in ticks],
            [entry["step"] for entry in written],
            may_miss,
        )
        looked += 3 * len(written)
    assert rows.height == job.attempt + 1
    return looked


def _check(found: list[Any], written: list[Any], may_miss: bool) -> None:
    """All that was written down was recorded, once; the last one may not have been written down yet."""
    count = Counter(found)
    assert set(count.values()) <= {1}, "a record is there twice"
    more = count.keys() - set(written)
    assert len(more) <= 1, f"{len(more)} records are there that nobody wrote down"
    missing = set(written) - count.keys()
    assert may_miss or not missing, f"{len(missing)} of {len(written)} records are missing"


def check_trackers(job: Job, fault: Fault) -> None:
    """Each tracker has each record once, after what is missing was forwarded."""
    if fault.loses_folder:
        return
    wait_until(lambda: not job.all_sidecars(), 150)
    run = only_run(job.runs)
    for to in ("tensorboard", *([f"mlflow={job.proxy.url}"] if job.proxy else [])):
        run_stepwell("forward", str(run.path), "--to", to, cwd=job.folder, check=True, timeout=240)
    metrics = run.metrics(overwritten=True).filter(pl.col("name") == "count").collect()
    expected = Counter(metrics.select("step", "value").iter_rows())
    _compare("TensorBoard", _tensorboard(job.folder / "files"), expected)
    if job.proxy is not None:
        _compare("MLflow", _mlflow(job), expected)


def _compare(
    name: str, found: Counter[tuple[int, float]], expected: Counter[tuple[int, float]]
) -> None:
    more, less = found - expected, expected - found
    assert not more, f"{name} has {more.total()} records too many: {sorted(more)[:5]}"
    assert not less, f"{name} is missing {less.total()} records: {sorted(less)[:5]}"


def _tensorboard(folder: Path) -> Counter[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    found: Counter[tuple[int, float]] = Counter()
    for path in folder.rglob("*tfevents*"):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.tag == "count":
                    found[event.step, value.tensor.float_val[0]] += 1
    return found


def _mlflow(job: Job) -> Counter[tuple[int, float]]:
    from mlflow import MlflowClient

    assert job.proxy is not None
    client = MlflowClient(tracking_uri=job.proxy.url)
    experiment = client.get_experiment_by_name(job.experiment)
    assert experiment is not None
    found: Counter[tuple[int, float]] = Counter()
    for run in client.search_runs([experiment.experiment_id]):
        history = client.get_metric_history(run.info.run_id, "count")
        found.update((point.step, point.value) for point in history)
    return found
