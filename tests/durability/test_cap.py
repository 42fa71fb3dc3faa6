"""The size cap: what a process keeps is bounded, and what it drops is counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.durability.helpers import Child, count, main_process, numbers, only_run, values

SPANS = 150_000
CAP = 150 * 1024
TRAIN = """
def train(begin, count):
    for i in range(begin, begin + count):
        with span("item"):
            pass
        if i % 1000 == 0:
            with span("mark", i=i):
                log({"loss": float(i)}, step=i)
                event("tick", i=i)
            run.flush()
"""


def _record(tmp_path: Path, **variables: str) -> tuple[Any, list[str]]:
    with Child(tmp_path, **variables) as child:
        child.do(TRAIN + f"run = init('cap', dir='runs')\ntrain(0, {SPANS})\nrun.finish()")
        warnings = child.do("answer = warnings")
    return only_run(tmp_path / "runs"), warnings


def _size(run: Any) -> int:
    return sum(p.stat().st_size for p in run.path.glob("rank-*/*.zst"))


def _keeps_the_rest(run: Any) -> None:
    assert values(run, "loss") == [float(i) for i in range(0, SPANS, 1000)]
    assert run.events().filter(pl.col("name") == "tick").collect().height == SPANS // 1000


@pytest.mark.full
def test_no_cap(tmp_path: Path) -> None:
    """Without a cap this run is far larger than the caps below allow, and nothing is dropped."""
    run, warnings = _record(tmp_path)
    assert _size(run) > 2 * CAP
    assert count(run, "item") == SPANS
    assert main_process(run)["dropped"] == 0
    assert warnings == []


@pytest.mark.parametrize("drop", ["oldest", "newest"])
def test_cap(tmp_path: Path, drop: str) -> None:
    """With a cap the archives stay about that size, either end of the spans is kept, every span that
    is not is counted, and metrics and events are all there.
    """
    run, warnings = _record(tmp_path, STEPWELL_MAX_BYTES=str(CAP), STEPWELL_DROP=drop)
    assert _size(run) < CAP + 2 * 65_536
    marks = numbers(run, "mark")
    everything = list(range(0, SPANS, 1000))
    assert 10 < len(marks) < len(everything)
    assert marks == (everything[-len(marks) :] if drop == "oldest" else everything[: len(marks)])
    kept = count(run, "item") + count(run, "mark")
    dropped = SPANS + len(everything) - kept
    assert main_process(run)["dropped"] == dropped
    (warning,) = warnings
    assert f"the {drop} spans" in warning
    _keeps_the_rest(run)


@pytest.mark.full
def test_cap_and_open_span(tmp_path: Path) -> None:
    """A span that was entered before the oldest were dropped is still recorded, with its children."""
    with Child(tmp_path, STEPWELL_MAX_BYTES=str(CAP)) as child:
        child.do(TRAIN + "run = init('cap', dir='runs')\nouter = span('outer'); outer.__enter__()")
        child.do(f"train(0, {SPANS})\nouter.__exit__(None, None, None)\nrun.finish()")
    run = only_run(tmp_path / "runs")
    (outer,) = run.spans().filter(pl.col("name") == "outer").collect().to_dicts()
    assert outer["status"] == "ok"
    parents = run.spans().filter(pl.col("name") == "item").select(pl.col("parent").unique())
    assert parents.collect()["parent"].to_list() == [outer["id"]]
