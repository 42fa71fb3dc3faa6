"""dftracer's traces in both dialects."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.importing.reading_back import (
    depths_agree,
    events_of,
    imported,
    metrics_of,
    shape,
    spans_of,
    write_lines,
)

HOST = "6882804a826580cd"
T0 = 1794766663000000


def old(number: int, name: str, cat: str, ts: int, dur: int, **args: Any) -> dict[str, Any]:
    """A line as versions up to 2.0 write it."""
    return {
        **{"id": number, "name": name, "cat": cat, "pid": 31, "tid": 31, "ts": T0 + ts, "dur": dur},
        "ph": "X",
        "args": {"hhash": HOST, **args},
    }


def new(name: str, cat: str, ts: int, dur: int, pid: int = 31, **args: Any) -> dict[str, Any]:
    """A line as versions from 2.2 on write it."""
    return {
        **{"id": 1, "name": name, "cat": cat, "type": 6, "pid": pid, "tid": pid},
        **{"ts": T0 + ts, "dur": dur, "ph": 1, "args": {"hhash": HOST, **args}},
    }


def meta(kind: str, name: str, value: str, phase: Any = 4, pid: int = 31) -> dict[str, Any]:
    args = {"hhash": HOST, "name": name, "value": value}
    return {"name": kind, "cat": "dftracer", "type": 1, "pid": pid, "tid": pid, "ph": phase} | {
        "args": args
    }


def test_the_bracketed_dialect(tmp_path: Path) -> None:
    """No commas, children first, a level that is wrong: times decide, steps and epochs fill columns."""
    file = write_lines(
        tmp_path / "t.pfw",
        "[",
        meta("HH", "node-1", HOST, "M"),
        old(6, "start", "dftracer", 0, 0, p_idx=-1, level=1, ppid=30, version="2.0.0"),
        old(9, "forward", "compute", 110, 20, p_idx=8, level=3, epoch=0, step=2),
        old(11, "all_reduce", "comm", 140, 5, p_idx=10, level=4),
        old(10, "backward", "compute", 135, 20, p_idx=8, level=3, epoch=0, step=2),
        old(13, "fetch.block", "dataloader", 105, 60, p_idx=8, level=3, count=1),
        old(8, "train", "pipeline", 100, 100, p_idx=6, level=2),
        meta("CM", "epoch.start", str(T0 + 100), "M"),
        old(37, "end", "dftracer", 300, 0, p_idx=34, level=3, num_events=36),
        "]",
    )
    run, done = imported(tmp_path, file)
    assert shape(run, "name", "category", "in", "step", "epoch") == [
        ("train", "pipeline", None, None, None),
        ("fetch.block", "dataloader", "train", None, None),
        ("forward", "compute", "fetch.block", 2, 0),
        ("backward", "compute", "fetch.block", 2, 0),
        ("all_reduce", "comm", "backward", None, None),
    ]
    first = spans_of(run)[0]
    assert (first["start_ns"], first["duration_ns"]) == ((T0 + 100) * 1000, 100_000)
    assert first["attributes"] == {}
    assert [e["name"] for e in events_of(run)] == ["dftracer.start", "epoch.start", "dftracer.end"]
    assert events_of(run)[1]["time_ns"] == (T0 + 100) * 1000
    [process] = run.processes().collect().to_dicts()
    assert (process["host"], process["pid"], process["status"]) == ("node-1", 31, "finished")
    assert run.status == "finished"
    assert run.document["imported_from"]["tool_version"] == "2.0.0"
    assert done.taken == {"metadata": 1, "events": 3, "spans": 5}
    assert done.left_out == {}


def test_the_dialect_with_numbers(tmp_path: Path) -> None:
    """Hashes get their names back, also when these come later; counters become metrics."""
    file = write_lines(
        tmp_path / "t.pfw",
        meta("HH", "node-1", HOST),
        meta("CM", "time_metric", "US"),
        meta("FH", "/data/a.npz", "aaaa"),
        new("read", "POSIX", 12, 2, fhash="aaaa", ret=4096),
        new("open", "POSIX", 10, 1, fhash="bbbb"),
        new("item", "data", 9, 9, step=3),
        meta("FH", "/data/b.npz", "bbbb"),
        new("stat", "POSIX", 30, 1, fhash="cccc"),
        {**new("cpu", "sys", 15, 0, user=12.5), "ph": 2},
        {**new("read", "POSIX", 20, 0, dft_cnt=7), "ph": 3},
    )
    run, done = imported(tmp_path, file)
    found = {row["name"]: row["attributes"] for row in spans_of(run)}
    assert found == {
        "item": {"step": 3},
        "open": {"fname": "/data/b.npz"},
        "read": {"ret": 4096, "fname": "/data/a.npz"},
        "stat": {"fhash": "cccc"},
    }
    assert metrics_of(run) == [("cpu/user", (T0 + 15) * 1000, 12.5)]
    assert [(e["name"], e["attributes"]) for e in events_of(run)] == [("read", {"dft_cnt": 7})]
    assert done.left_out == {}


def test_where_times_coincide_the_file_decides(tmp_path: Path) -> None:
    """Spans are written when they end, inner ones first; so are those of no length at a boundary."""
    file = write_lines(
        tmp_path / "t.pfw",
        new("inner", "c", 10, 10),
        new("at the end", "c", 20, 0),
        new("outer", "c", 10, 10),
        new("behind", "c", 20, 0),
        new("next", "c", 20, 5),
    )
    run, _ = imported(tmp_path, file)
    assert dict(shape(run, "name", "in")) == {
        "outer": None,
        "inner": "outer",
        "at the end": "next",
        "behind": "next",
        "next": None,
    }
    without_next = write_lines(tmp_path / "u.pfw", *file.read_text().splitlines()[:4])
    run, _ = imported(tmp_path, without_next)
    assert dict(shape(run, "name", "in"))["at the end"] == "outer"
    assert dict(shape(run, "name", "in"))["behind"] is None


def test_units_of_time(tmp_path: Path) -> None:
    """A trace may count nanoseconds."""
    line = new("a", "c", 0, 7)
    line["ts"] = 1794766663000000123
    file = write_lines(tmp_path / "t.pfw", meta("CM", "time_metric", "NS"), line)
    run, _ = imported(tmp_path, file)
    assert shape(run, "start_ns", "duration_ns") == [(1794766663000000123, 7)]


def test_files_of_several_processes_become_one_run(tmp_path: Path) -> None:
    """A folder of traces: ranks as recorded, forked children as workers of their parent."""
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank, pid in ((1, 41), (0, 40)):
        lines = [
            meta("HH", "node-1", HOST, pid=pid),
            {"name": "PR", "ph": 4, "pid": pid, "tid": pid, "args": {"rank": rank}},
            new("train", "pipeline", rank, 50, pid),
        ]
        text = write_lines(folder / "plain", *lines).read_bytes()
        (folder / "plain").unlink()
        (folder / f"t-{pid}-app.pfw.gz").write_bytes(
            gzip.compress(text[:200]) + gzip.compress(text[200:])
        )
    child = {**new("start", "dftracer", 5, 0, 55, ppid=40)}
    write_lines(
        folder / "t-x-fork.pfw",
        meta("HH", "node-1", HOST, pid=55),
        child,
        new("item", "data", 6, 2, 55),
    )
    run, _ = imported(tmp_path, folder)
    assert run.document["imported_from"]["file_count"] == 3
    rows = run.processes().select("rank", "pid", "role", "parent", "world_size").collect()
    assert sorted(rows.rows()) == [
        (0, 40, "main", None, 2),
        (0, 55, "worker", "rank-00000.attempt-0.pid-40", 2),
        (1, 41, "main", None, 2),
    ]
    assert sorted(shape(run, "name", "rank")) == [("item", 0), ("train", 0), ("train", 1)]
    by_pattern, _ = imported(tmp_path, folder / "*.pfw.gz")
    assert by_pattern.ranks() == [0, 1]


def test_broken_lines_are_counted_and_passed_over(tmp_path: Path) -> None:
    """Unescaped texts, torn lines and NaN as words: readable records are imported, others are counted."""
    file = write_lines(
        tmp_path / "t.pfw",
        meta("HH", "node-1", HOST),
        new("a", "c", 1, 1),
        '{"id":2,"name":"say "hello"","cat":"c","pid":31,"tid":31,"ts":1,"dur":1,"ph":1,"args":{}}',
        '{"id":3,"name":"nan","cat":"c","pid":31,"tid":31,"ts":1794766663000003,"dur":1,"ph":1,'
        '"args":{"l":nan,"m":-inf}}',
        '{"id":4,"name":"torn","cat":"c","pid":31,"ti',
        new("b", "c", 5, 1),
        "garbage",
        new("c", "c", 7, 1),
        '{"id":5,"name":"cut',
    )
    run, done = imported(tmp_path, file)
    assert [row["name"] for row in spans_of(run)] == ["a", "nan", "b", "c"]
    assert spans_of(run)[1]["attributes"] == {
        "l": None,
        "m": None,
        "nonfinite": {"l": "nan", "m": "-inf"},
    }
    assert done.taken["spans"] == 4
    assert set(done.left_out) == {"invalid JSON"}
    assert done.left_out["invalid JSON"] == 4


PROGRAM = """
import sys
from dftracer.python import ai, dftracer
log = dftracer.initialize_log(sys.argv[1], None, -1)
for epoch in ai.pipeline.epoch.iter(range(2)):
    for step in ai.dataloader.fetch.iter(range(3)):
        ai.update(epoch=epoch, step=step)
        with ai.compute.forward:
            sum(range(20000))
        with ai.compute.backward:
            with ai.comm.all_reduce:
                sum(range(9000))
ai.checkpoint.capture.start(metadata=True)
log.finalize()
"""


@pytest.mark.full
def test_a_real_trace(tmp_path: Path) -> None:
    """A trace written by dftracer 2.2. DFTRACER_PYTHON is a Python that has it installed."""
    python = os.environ.get("DFTRACER_PYTHON", "")
    if not python and find_spec("dftracer"):
        python = sys.executable
    if not python or not Path(python).exists():
        pytest.skip("NOT TESTED with a real trace: set DFTRACER_PYTHON to a Python with dftracer")
    environ = {"PATH": os.environ["PATH"], "DFTRACER_ENABLE": "1", "DFTRACER_INC_METADATA": "1"}
    command = [python, "-c", PROGRAM, str(tmp_path / "t.pfw")]
    subprocess.run(command, env=environ, cwd=tmp_path, check=True, timeout=200)
    run, done = imported(tmp_path, tmp_path / "*.pfw.gz")
    assert done.left_out == {}
    assert depths_agree(run)
    counted = {(row["name"], row["in"]) for row in spans_of(run)}
    assert {
        ("epoch.block", None),
        ("fetch.block", "epoch.block"),
        ("forward", "fetch.block"),
        ("backward", "fetch.block"),
        ("all_reduce", "backward"),
    } <= counted
    forward = [(r["epoch"], r["step"]) for r in spans_of(run) if r["name"] == "forward"]
    assert forward == [(e, s) for e in range(2) for s in range(3)]
    names = [event["name"] for event in events_of(run)]
    assert names == ["dftracer.start", "capture.start", "dftracer.end"]
    assert events_of(run)[0]["attributes"]["cwd"] == str(tmp_path)
