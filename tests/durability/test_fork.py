"""A fork in the middle of a run, after segments were sealed."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tests.durability.helpers import Child, files_below, main_process, numbers, only_run
from tests.harness import wait_until

TRAIN = """
def train(who, count):
    for i in range(count):
        with span(who, i=i):
            pass
        log({f"loss {who}": float(i)}, step=i)
"""


@pytest.mark.full
def test_fork_after_sealing(tmp_path: Path) -> None:
    """After 45,000 spans and a fork, parent and child both record on, and all of it is read."""
    with Child(tmp_path) as child:
        child.do(TRAIN + "run = init('fork', dir='runs')\ntrain('before', 45_000)")
        wait_until(lambda: files_below(tmp_path / "runs", "spans-*.zst"))
        child.do(
            "outer = span('outer'); outer.__enter__()\n"
            "pid = os.fork()\n"
            "if pid == 0:\n"
            "    outer.__exit__(None, None, None)\n"
            "    train('child', 40_000)\n"
            "    event('child is done')\n"
            "    os._exit(7)\n"
            "train('after', 40_000)\n"
            "outer.__exit__(None, None, None)\n"
            "answer = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"
        )
        child.do("run.finish()")
        assert child.do("answer = warnings") == []
        assert child.end() == 0
    run = only_run(tmp_path / "runs")
    assert numbers(run, "before") == list(range(45_000))
    assert numbers(run, "after") == list(range(40_000))
    assert numbers(run, "child") == list(range(40_000))
    for who, count in (("before", 45_000), ("after", 40_000), ("child", 40_000)):
        logged = run.metrics().filter(pl.col("name") == f"loss {who}").sort("step").collect()
        assert logged["value"].to_list() == [float(i) for i in range(count)]
    assert run.events().collect()["name"].to_list() == ["child is done"]
    (outer,) = run.spans().filter(pl.col("name") == "outer").collect().to_dicts()
    parents = run.spans().filter(pl.col("name") == "after").collect()["parent"]
    assert set(parents) == {outer["id"]}
    processes = run.processes().sort("role").collect()
    assert processes["role"].to_list() == ["main", "worker"]
    assert processes["dropped"].to_list() == [0, 0]
    assert main_process(run)["status"] == "finished"
    # The child was folded in: it left no file of its own.
    assert files_below(tmp_path / "runs", "*.live") == []
    assert files_below(tmp_path / "runs", "*.full") == []


def test_killed_child(tmp_path: Path) -> None:
    """A killed forked child leaves all of its records and its open spans."""
    with Child(tmp_path) as child:
        child.do(TRAIN + "run = init('fork', dir='runs')\ntrain('before', 100)")
        child.do(
            "pid = os.fork()\n"
            "if pid == 0:\n"
            "    with span('stuck'):\n"
            "        train('child', 20_000)\n"
            "        os.kill(os.getpid(), signal.SIGKILL)\n"
            "os.waitpid(pid, 0)"
        )
        live = only_run(tmp_path / "runs")
        assert live.open_spans().collect()["name"].to_list() == ["stuck"]
        child.do("run.finish()")
    run = only_run(tmp_path / "runs")
    assert numbers(run, "child") == list(range(20_000))
    assert run.open_spans().collect()["name"].to_list() == ["stuck"]
    assert numbers(run, "before") == list(range(100))
