"""Runs as Chrome traces: every event of small ones written out, large ones against the tables."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import stepwell
from stepwell import StepwellError, ai, open_run
from stepwell.exporters import export_chrome
from stepwell.exporters.trace.fields import format_micros, parse_ranks, parse_steps, time_base
from stepwell.testing import FakeClock
from tests.cli.cases import kill_a_run
from tests.exporters.reading_back import _parse_strictly
from tests.harness import run_stepwell
from tests.processes.programs import execute, only_run, write_program

BEGIN_US = (1_700_000_000_000_000_000 - time_base(1_700_000_000_000_000_000)) / 1000
"""When the fake clock begins, as a trace counts."""


def events_of(path: Path) -> list[dict[str, Any]]:
    """The events of a trace; it has to be strict JSON."""
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    return list(_parse_strictly(text)["traceEvents"])


def drawn(path: Path) -> list[dict[str, Any]]:
    """Return the drawn events, without those of Python's garbage collector."""
    return [e for e in events_of(path) if e["ph"] != "M" and e["name"] != "gc"]


def exported(run: stepwell.Run, tmp_path: Path, **options: Any) -> list[dict[str, Any]]:
    export_chrome(run.path, tmp_path / "trace.json", **options)
    return drawn(tmp_path / "trace.json")


def test_a_small_run_word_for_word(tmp_path: Path) -> None:
    """Processes, threads, spans, an error, events and values, with times to the nanosecond."""
    with FakeClock() as clock:
        run = stepwell.init("small", dir=tmp_path / "runs")
        with run.span("application", lr=0.5, text='say "ä"\n'):
            clock.advance(1.0)
            run.set_step(3, epoch=1)
            with ai.compute.forward:
                clock.advance(0.000_001_001)
            with run.span("model_backward"):
                clock.advance(0.000_002)
            run.log({"loss": 0.25, "grad": float("inf")})
            run.event("checked", ok=True)
            with pytest.raises(KeyError), run.span("fails"):
                raise KeyError("x")
        run.finish()
    trace = json.loads(_export(run, tmp_path).read_text())
    assert trace["displayTimeUnit"] == "ns"
    assert trace["otherData"]["run"] == run.id
    assert trace["otherData"]["base_ns"] == str(time_base(1_700_000_000_000_000_000))
    named = [event for event in trace["traceEvents"] if event["ph"] == "M"]
    assert [
        (e["name"], e["pid"], e["tid"], *e["args"].values())
        for e in named
        if "sort" not in e["name"]
    ] == [
        ("process_name", 1, 0, "rank 0"),
        ("process_labels", 1, 0, named[1]["args"]["labels"]),
        ("thread_name", 1, 1, "MainThread"),
    ]
    where = {"pid": 1, "tid": 1}
    context = {"step": 3, "epoch": 1}
    found = drawn(tmp_path / "trace.json")
    later = pytest.approx(BEGIN_US + 1_000_003.001, abs=1e-3)
    assert found == [
        {
            "ph": "X",
            "name": "application",
            "cat": "ai_root",
            **where,
            "ts": pytest.approx(BEGIN_US, abs=1e-3),
            "dur": 1_000_003.001,
            "args": {"lr": 0.5, "text": 'say "ä"\n'},
        },
        {
            "ph": "X",
            "name": "forward",
            "cat": "compute",
            **where,
            "ts": pytest.approx(BEGIN_US + 1_000_000, abs=1e-3),
            "dur": 1.001,
            "args": context,
        },
        {
            "ph": "X",
            "name": "model_backward",
            "cat": "compute",
            **where,
            "ts": pytest.approx(BEGIN_US + 1_000_001.001, abs=1e-3),
            "dur": 2,
            "args": context,
        },
        {
            "ph": "X",
            "name": "fails",
            **where,
            "ts": later,
            "dur": 0,
            "cname": "terrible",
            "args": {**context, "status": "error"},
        },
        {
            "ph": "C",
            "name": "loss",
            "cat": "metric",
            "pid": 1,
            "ts": later,
            "args": {"value": 0.25},
        },
        {
            "ph": "i",
            "name": "grad",
            "cat": "metric",
            "s": "t",
            **where,
            "ts": later,
            "args": {"value": "inf"},
        },
        {
            "ph": "i",
            "name": "checked",
            "cat": "event",
            "s": "t",
            **where,
            "ts": later,
            "args": {"ok": True, **context},
        },
        {
            "ph": "i",
            "name": "error",
            "cat": "error",
            "s": "t",
            **where,
            "ts": later,
            "cname": "terrible",
            "args": {"exception_type": "KeyError", "exception_message": "'x'", **context},
        },
    ]


def _export(run: stepwell.Run, tmp_path: Path) -> Path:
    done = export_chrome(run.path, tmp_path / "trace.json")
    assert (done.spans, done.events, done.metrics) == (4, 2, 2)
    return done.files[0]


def test_packed_or_not_it_is_the_same_trace(recorded: stepwell.Run, tmp_path: Path) -> None:
    """``.json.gz`` unpacks to what ``.json`` holds, and nothing else is left in the folder."""
    with recorded.span("a"):
        pass
    recorded.finish()
    out = tmp_path / "out"
    export_chrome(recorded.path, out / "t.json")
    export_chrome(open_run(recorded.path), out / "t.json.gz")
    assert gzip.decompress((out / "t.json.gz").read_bytes()) == (out / "t.json").read_bytes()
    assert sorted(path.name for path in out.iterdir()) == ["t.json", "t.json.gz"]


def test_values_that_json_has_no_word_for(recorded: stepwell.Run, tmp_path: Path) -> None:
    """Halves of characters, endless numbers and very long ones leave a trace that any parser reads."""
    values = {"nan": float("nan"), "half": "a\ud800b", "long": 1 << 80, "deep": {"x": [1, None]}}
    with recorded.span("odd \udfff name", **values):
        recorded.log({"odd \ud800 metric": 1.0})
    recorded.finish()
    span, value = exported(recorded, tmp_path)
    assert span["name"] == "odd \\udfff name"
    assert span["args"]["half"] == "a?b"
    assert span["args"]["nan"] is None
    assert span["args"]["nonfinite"] == {"nan": "nan"}
    assert span["args"]["deep"] == {"x": [1, None]}
    assert str(span["args"]["long"]).startswith("1208925819614629174706176")
    assert not isinstance(span["args"]["long"], int)
    assert value["name"] == "odd \\ud800 metric"


def test_tasks_that_overlap_are_drawn_apart(recorded: stepwell.Run, tmp_path: Path) -> None:
    """Tasks of one thread get a line each, and nested spans are on the line of their task."""

    async def task(number: int) -> None:
        with stepwell.span("task", number=number):
            await asyncio.sleep(0.01)
            with stepwell.span("inside", number=number):
                await asyncio.sleep(0.01 * number)

    async def main() -> None:
        with stepwell.span("all"):
            await asyncio.gather(*map(task, (1, 2, 3)))

    asyncio.run(main())
    recorded.finish()
    export_chrome(recorded.path, tmp_path / "t.json")
    found = drawn(tmp_path / "t.json")
    tids = {(e["name"], e["args"].get("number")): e["tid"] for e in found}
    assert tids[("all", None)] == tids[("task", 1)] == tids[("inside", 1)] == 1
    assert tids[("task", 2)] == tids[("inside", 2)] == 2
    assert tids[("task", 3)] == tids[("inside", 3)] == 3
    names = {
        e["tid"]: e["args"]["name"]
        for e in events_of(tmp_path / "t.json")
        if e["name"] == "thread_name"
    }
    assert names == {
        1: "MainThread",
        2: "MainThread (overlapping 1)",
        3: "MainThread (overlapping 2)",
    }
    assert_nothing_overlaps(found)


def assert_nothing_overlaps(events: list[dict[str, Any]]) -> None:
    """Two spans of a line are nested or do not overlap."""
    lines: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X":
            end = event["ts"] + event["dur"]
            lines.setdefault((event["pid"], event["tid"]), []).append((event["ts"], end))
    for spans in lines.values():
        around: list[float] = []
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while around and around[-1] <= start:
                around.pop()
            assert not around or end <= around[-1]
            around.append(end)


@pytest.mark.full
def test_many_threads_and_segments(recorded: stepwell.Run, tmp_path: Path) -> None:
    """Three threads with more spans than fit into a segment: as many, as long as the tables say."""

    def work(number: int) -> None:
        with stepwell.span("thread", number=number):
            for _ in range(9000):
                with stepwell.span("outer"), stepwell.span("inner"):
                    pass

    threads = [threading.Thread(target=work, args=(i,), name=f"W{i}") for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorded.finish()
    found = exported(recorded, tmp_path)
    assert len(found) == 3 * 18_001
    assert_nothing_overlaps(found)
    rows = open_run(recorded.path).spans().filter(pl.col("name") != "gc").collect()
    assert sorted((e["name"], round(e["dur"] * 1000)) for e in found) == sorted(
        rows.select("name", "duration_ns").iter_rows()
    )
    assert len({event["tid"] for event in found}) == 3


def test_a_killed_run(tmp_path: Path) -> None:
    """Open spans have a begin and no end; everything else is complete."""
    kill_a_run(tmp_path / "runs")
    done = run_stepwell("export", "--to", "chrome", "-o", "t.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "t.json\n102 spans, 1 event, 100 values in 1 file\n"
    found = drawn(tmp_path / "t.json")
    opened = [(e["name"], e["args"]) for e in found if e["ph"] == "B"]
    assert opened == [("epoch", {"status": "open"}), ("all-reduce", {"step": 99, "status": "open"})]
    assert [e["args"]["step"] for e in found if e["name"] == "step"] == list(range(100))


WORKERS = """
import torch
from torch.utils.data import DataLoader, Dataset
class Data(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i):
        with stepwell.span("item", i=i):
            return i
if __name__ == "__main__":
    run = stepwell.init("w", dir=RUNS, run_id="one")
    for batch in DataLoader(Data(), batch_size=2, num_workers=2, multiprocessing_context="fork"):
        with stepwell.span("train"):
            pass
    run.finish()
"""


@pytest.mark.torch
def test_ranks_and_workers_have_names(tmp_path: Path) -> None:
    """Two ranks with two workers each: numbered in order, whichever of them are written."""
    program = write_program(tmp_path, WORKERS)
    for rank in ("0", "1"):
        execute(tmp_path, program, RANK=rank, WORLD_SIZE="2")
    run = only_run(tmp_path)
    export_chrome(run, tmp_path / "all.json")
    names = {
        e["pid"]: e["args"]["name"]
        for e in events_of(tmp_path / "all.json")
        if e["name"] == "process_name"
    }
    assert names == {
        1: "rank 0",
        2: "rank 0 worker 0",
        3: "rank 0 worker 1",
        4: "rank 1",
        5: "rank 1 worker 0",
        6: "rank 1 worker 1",
    }
    export_chrome(run, tmp_path / "one.json", ranks=[1, 7])
    assert {e["pid"] for e in events_of(tmp_path / "one.json")} == {4, 5, 6}
    names = [event["name"] for event in drawn(tmp_path / "one.json")]
    assert (names.count("train"), names.count("item")) == (4, 8)
    with pytest.raises(StepwellError, match="none of these ranks, only 0, 1"):
        export_chrome(run, tmp_path / "none.json", ranks=[7])
    assert not (tmp_path / "none.json").exists()


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("1000:1010", (1000, 1010)),
        ("7", (7, 8)),
        (":3", (0, 3)),
        ("5:", (5, 1 << 62)),
        (None, None),
    ],
)
def test_steps(text: str | None, steps: tuple[int, int] | None) -> None:
    assert parse_steps(text) == steps


@pytest.mark.parametrize(("text", "ranks"), [("0-3,8", [0, 1, 2, 3, 8]), ("5", [5]), (None, None)])
def test_ranks(text: str | None, ranks: list[int] | None) -> None:
    assert parse_ranks(text) == ranks


@pytest.mark.parametrize("text", ["x", "1-2", "5:5", "9:3", "-1:3", "1:2:3"])
def test_steps_that_are_none(text: str) -> None:
    with pytest.raises(StepwellError, match="--steps must"):
        parse_steps(text)


@pytest.mark.parametrize("text", ["x", "3-1", "1:2", "-4", "1,", "0-99999999999"])
def test_ranks_that_are_none(text: str) -> None:
    with pytest.raises(StepwellError, match="--ranks must"):
        parse_ranks(text)


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [(0, "0"), (1, "0.001"), (1000, "1"), (1_234_567, "1234.567"), (-1500, "-1.500")],
)
def test_microseconds(nanoseconds: int, text: str) -> None:
    assert format_micros(nanoseconds) == text


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--to", "chrome", "-o", "t.txt"), "-o must end in .json or .json.gz, got 't.txt'"),
        (("--to", "chrome", "--dialect", "old"), "--dialect needs --to dftracer"),
        (("--to", "dftracer", "--dialect", "x"), "dialect must be 'new' or 'old', got 'x'"),
        (("--to", "csv", "--steps", "1"), "--steps needs --to chrome or dftracer"),
        (("--to", "chrome", "--steps", "7:9"), "no spans in steps 7:9"),
    ],
)
def test_what_is_wrong_is_said(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    """In one line, and nothing is written."""
    with stepwell.init("r", dir=tmp_path / "runs") as run, run.span("x"):
        pass
    done = run_stepwell("export", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


@pytest.mark.parametrize(
    ("to", "read"), [("csv", pl.scan_csv), ("jsonl", pl.scan_ndjson)], ids=["csv", "jsonl"]
)
def test_tables_as_text(to: str, read: Any, recorded: stepwell.Run, tmp_path: Path) -> None:
    """Another reader finds the same names and times in the files."""
    for number in range(5):
        with recorded.span("a", number=number):
            recorded.log({"loss": number})
    recorded.finish()
    done = run_stepwell("export", str(recorded.path), "--to", to, "-o", "out", cwd=tmp_path)
    assert done.stdout == "6 files in out\n"
    place = f"run={recorded.id}/rank=0/part.{to}"
    spans = read(tmp_path / "out" / "spans" / place).collect()
    expected = open_run(recorded.path).spans().collect()
    for column in ("name", "start_ns", "duration_ns", "attributes", "id"):
        assert spans[column].to_list() == expected[column].to_list()
    assert read(tmp_path / "out" / "metrics" / place).collect()["value"].to_list() == [
        0,
        1,
        2,
        3,
        4,
    ]
