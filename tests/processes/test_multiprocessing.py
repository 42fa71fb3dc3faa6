"""Children of multiprocessing record however they are started."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tests.harness.marks import others_in_full
from tests.nesting.tree import check_tree, edges
from tests.processes.programs import execute, files_of, only_run, write_program

METHODS = ["fork", "spawn", "forkserver"]


@pytest.mark.parametrize("method", others_in_full(METHODS, ["fork"]))
def test_children_record_as_workers(tmp_path: Path, method: str) -> None:
    """Processes and pools of each start method record with the step that the parent is in."""
    program = """
    import multiprocessing

    @stepwell.span("square")
    def square(x):
        stepwell.log({"x": x})
        return x * x

    def work(number):
        with stepwell.span("work", number=number):
            stepwell.event("ping", number=number)
            square(number)

    if __name__ == "__main__":
        context = multiprocessing.get_context(sys.argv[1])
        run = stepwell.init(dir=RUNS)
        for step in range(2):
            run.set_step(step, epoch=10 + step)
            children = [context.Process(target=work, args=(step,)) for _ in range(2)]
            for child in children:
                child.start()
            for child in children:
                child.join(60)
                assert child.exitcode == 0
        run.set_step(2)
        with context.Pool(2) as pool:
            assert pool.map(square, range(10)) == [x * x for x in range(10)]
            pool.close()
            pool.join()
        run.finish()
        assert stepwell.active_run() is None
        child = context.Process(target=work, args=(99,))
        child.start()
        child.join(60)
        assert child.exitcode == 0
    """
    execute(tmp_path, write_program(tmp_path, program), method)
    run = only_run(tmp_path)
    spans = run.spans().collect()
    check_tree(spans)
    assert edges(spans) == {("work", None): 4, ("square", "work"): 4, ("square", None): 10}
    work = spans.filter(pl.col("name") == "work").sort("start_ns")
    assert work.select("step", "epoch", "attributes").rows() == [
        (0, 10, '{"number":0}'),
        (0, 10, '{"number":0}'),
        (1, 11, '{"number":1}'),
        (1, 11, '{"number":1}'),
    ]
    pooled = spans.filter(pl.col("parent").is_null() & (pl.col("name") == "square"))
    assert set(pooled["step"]) == {2}
    assert sorted(run.metrics().filter(pl.col("step") == 2).collect()["value"]) == [*range(10)]
    assert run.events().collect().select("step").to_series().sort().to_list() == [0, 0, 1, 1]
    processes = run.processes().collect()
    assert processes.filter(pl.col("role") == "main").height == 1
    workers = processes.filter(pl.col("role") == "worker")
    assert 5 <= workers.height <= 6
    assert set(workers["rank"]) == {0}
    assert set(workers["worker"]) == {None}
    assert not any("workers/" in name for name in files_of(run))


@pytest.mark.parametrize("method", others_in_full(METHODS, ["fork", "spawn"]))
def test_a_worker_killed_with_9(tmp_path: Path, method: str) -> None:
    """Its records are complete, and its open spans are unfinished once they are folded in."""
    program = """
    import multiprocessing

    def work(ready):
        with stepwell.span("outer", a=1):
            for i in range(20_000):
                with stepwell.span("step"):
                    pass
            stepwell.log({"x": 2.0})
            stepwell.event("ping")
            with stepwell.span("inner"):
                ready.set()
                time.sleep(600)

    if __name__ == "__main__":
        context = multiprocessing.get_context(sys.argv[1])
        run = stepwell.init(dir=RUNS)
        ready = context.Event()
        child = context.Process(target=work, args=(ready,))
        child.start()
        assert ready.wait(60)
        opened = stepwell.open_run(run.path).open_spans().collect()
        assert opened["name"].to_list() == ["outer", "inner"], opened
        child.kill()
        child.join(60)
        run.flush()
        with run.span("parent"):
            pass
    """
    execute(tmp_path, write_program(tmp_path, program), method)
    run = only_run(tmp_path)
    spans = run.spans().collect()
    check_tree(spans)
    assert edges(spans) == {
        ("outer", None): 1,
        ("step", "outer"): 20_000,
        ("inner", "outer"): 1,
        ("parent", None): 1,
    }
    assert set(spans.filter(pl.col("name") == "step")["status"]) == {"ok"}
    unfinished = spans.filter(pl.col("name").is_in(["outer", "inner"]))
    assert set(unfinished["status"]) <= {"unfinished", "open"}
    assert unfinished.filter(pl.col("name") == "outer")["attributes"].to_list() == ['{"a":1}']
    assert run.metrics().collect()["value"].to_list() == [2.0]
    assert run.events().collect()["name"].to_list() == ["ping"]
    assert run.status == "finished"
    assert not any("workers/" in name for name in files_of(run))


def test_a_long_lived_worker_is_sealed_while_it_lives(tmp_path: Path) -> None:
    """Segments that a living worker has filled are taken over by its parent, with no span lost."""
    program = """
    import multiprocessing

    def work(filled, go):
        with stepwell.span("epoch", kept=True):
            for i in range(100_000):
                with stepwell.span("step"):
                    stepwell.log({"x": float(i)})
            filled.set()
            assert go.wait(60)

    if __name__ == "__main__":
        context = multiprocessing.get_context("fork")
        run = stepwell.init(dir=RUNS)
        filled, go = context.Event(), context.Event()
        child = context.Process(target=work, args=(filled, go))
        child.start()
        assert filled.wait(100)
        assert run.flush()
        live = sorted(path.name.split("-")[0] for path in run.path.glob("*/workers/*/*-*"))
        print(json.dumps(live))
        recorded = stepwell.open_run(run.path)
        assert recorded.spans().collect().height == 100_001
        assert recorded.metrics().collect().height == 100_000
        assert recorded.open_spans().collect()["name"].to_list() == ["epoch"]
        go.set()
        child.join(60)
        run.finish()
    """
    printed = execute(tmp_path, write_program(tmp_path, program))
    # Only what it writes into now: one segment of each kind.
    assert printed.strip() == '["attributes", "metrics", "spans"]'
    run = only_run(tmp_path)
    spans = run.spans().collect()
    check_tree(spans)
    assert edges(spans) == {("epoch", None): 1, ("step", "epoch"): 100_000}
    assert set(spans["status"]) == {"ok"}
    values = run.metrics().collect().sort("time_ns")["value"]
    assert values.to_list() == list(map(float, range(100_000)))
    assert not any("workers/" in name for name in files_of(run))
