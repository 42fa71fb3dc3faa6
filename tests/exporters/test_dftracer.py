"""dftracer traces: the lines as its document prints them, and its own tools as judges."""

from __future__ import annotations

import gzip
import hashlib
import json
import socket
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell import Run, ai
from stepwell._core.errors import StepwellError
from stepwell.exporters import DFTracerExporter, EventRecord, Source, SpanRecord, export_dftracer
from stepwell.exporters.dftracer import file_name
from stepwell.testing import FakeClock
from tests.cli.cases import kill_a_run
from tests.exporters.dftracer_tools import counted_events, validated_lines
from tests.harness import run_stepwell

BEGIN = 1_700_000_000_000_000
HASH = hashlib.md5(socket.gethostname().encode()).hexdigest()[:16]


def lines_of(path: Path) -> list[dict[str, Any]]:
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    return [json.loads(line) for line in text.splitlines() if line not in "[]"]


def spans_of(path: Path) -> list[dict[str, Any]]:
    """The lines of spans and events, without the tracer's own and Python's garbage collector."""
    own = [line for line in lines_of(path) if line["cat"] != "dftracer" and line["name"] != "gc"]
    return [line for line in own if line["cat"] != "metric"]


def record(tmp_path: Path) -> Run:
    """Record the example of the documentation: an epoch, a checkpoint's init, metadata records."""
    with FakeClock() as clock:
        run = stepwell.init("doc", dir=tmp_path / "runs")
        for _ in ai.pipeline.epoch.iter(range(1)):
            clock.advance(0.5)
            with ai.compute.forward(args={"arg1": "value1", "f": 1.5, "flag": True, "level": 3}):
                clock.advance(0.000_001_999)
        with ai.checkpoint.init:
            clock.advance(0.1)
        ai.pipeline.epoch.start(metadata=True)
        clock.advance(1)
        ai.pipeline.epoch.stop(metadata=True)
        run.log({"loss": 0.5, "bad": float("nan")})
        run.event("note", nothing=None, deep=[1, {"a": 2}], x=float("inf"))
        run.finish()
    return run


def test_the_old_dialect(tmp_path: Path) -> None:
    """The fields of the document's examples, in its order: brackets, ph as a letter, p_idx, level."""
    run = record(tmp_path)
    done = export_dftracer(run.path, tmp_path / "out" / "t.pfw", dialect="old")
    [path] = done.files
    text = path.read_text().splitlines()
    assert (text[0], text[-1]) == ("[", "]")
    spans = spans_of(path)
    pid = spans[0]["pid"]
    assert path.name == f"t-{pid}-app.pfw"
    [epoch] = [line for line in text if '"epoch.block"' in line]
    assert epoch == (
        f'{{"id":{spans[1]["id"]},"name":"epoch.block","cat":"pipeline","pid":{pid},"tid":{pid},'
        f'"ts":{BEGIN},"dur":500001,"ph":"X","args":{{"hhash":"{HASH}","p_idx":1,"level":2,"count":1}}}}'
    )
    [forward] = [line for line in spans if line["name"] == "forward"]
    assert forward["args"] == {
        "hhash": HASH,
        "p_idx": spans[1]["id"],
        "level": 3,
        "arg1": "value1",
        "f": 1.5,
        "flag": 1,
        "args.level": 3,
    }
    assert (forward["ts"], forward["dur"]) == (BEGIN + 500_000, 1)
    [init] = [line for line in spans if line["name"] == "checkpoint.init"]
    assert (init["cat"], init["dur"], init["args"]["p_idx"], init["args"]["level"]) == (
        "checkpoint",
        100_000,
        1,
        2,
    )
    records = [line for line in text if '"name":"CM"' in line]
    assert records[1:] == [
        f'{{"id":1,"name":"CM","cat":"dftracer","pid":{pid},"tid":{pid},"ph":"M","args":'
        f'{{"hhash":"{HASH}","name":"epoch.{word}","value":"{BEGIN + time}"}}}}'
        for word, time in (("start", 600_001), ("end", 1_600_001))
    ]


def test_the_new_dialect(tmp_path: Path) -> None:
    """No brackets, numbers for ph, the layer as type, neither p_idx nor level."""
    run = record(tmp_path)
    [path] = export_dftracer(run.path, tmp_path / "t.pfw.gz").files
    lines = lines_of(path)
    assert gzip.decompress(path.read_bytes())[:1] == b"{"
    assert [(line["name"], line["ph"], line["type"]) for line in lines[:5]] == [
        ("HH", 4, 1),
        ("CM", 4, 1),
        ("PR", 4, 1),
        ("process_name", 4, 1),
        ("start", 1, 1),
    ]
    [forward] = [line for line in lines if line["name"] == "forward"]
    pid = forward["pid"]
    assert forward == {
        "id": forward["id"],
        "name": "forward",
        "cat": "compute",
        "type": 6,
        "pid": pid,
        "tid": pid,
        "ts": BEGIN + 500_000,
        "dur": 1,
        "ph": 1,
        "args": {
            "hhash": HASH,
            "arg1": "value1",
            "f": 1.5,
            "flag": 1,
            "args.level": 3,
        },
    }
    values = {line["name"]: line["args"]["value"] for line in lines if line["ph"] == 2}
    assert values == {"loss": 0.5, "bad": "nan"}
    [note] = [line for line in lines if line["name"] == "note"]
    assert note["args"] == {"hhash": HASH, "nothing": "None", "deep": '[1, {"a": 2}]', "x": "inf"}
    records = [line for line in lines if line["name"] == "CM"]
    assert [line["args"]["name"] for line in records] == ["time_metric", "epoch.start", "epoch.end"]
    ids = [line["id"] for line in lines if "id" in line]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("dialect", ["old", "new"])
def test_its_own_tools_take_it(tmp_path: Path, dialect: str) -> None:
    """``dftracer_validate`` finds no fault in any line, ``dftracer_event_count`` as many as there are."""
    run = stepwell.init("many", dir=tmp_path / "runs")
    with run.span("application", text='"quoted"\n\\ \ud800 ä', big=1 << 70, n=float("nan")):
        for i in range(20_000):
            with run.span("step", i=i):
                pass
        run.log({"loss": float("inf"), "lr": 0.1})
        run.event("saved", path="a\tb")
    run.finish()
    out = tmp_path / "out"
    done = export_dftracer(run.path, out / "t.pfw.gz", dialect=dialect)
    lines = lines_of(done.files[0])
    assert validated_lines(out) == len(lines)
    events = [line for line in lines if line["ph"] not in ("M", 4)]
    # Those of the run, and the tracer's own start and end.
    assert len(events) == done.spans + done.events + done.metrics + 2
    assert done.spans >= 20_001
    assert counted_events(out) == (len(events) if dialect == "old" else len(lines))


def test_a_broken_line_is_found(tmp_path: Path) -> None:
    """The judge is awake."""
    run = record(tmp_path)
    [path] = export_dftracer(run.path, tmp_path / "out" / "t.pfw").files
    path.write_text(path.read_text().replace('"forward"', '"forw\nard"'))
    with pytest.raises(AssertionError, match="1 failed"):
        validated_lines(tmp_path / "out")


def test_a_killed_run(tmp_path: Path) -> None:
    """Open spans last until the process last recorded, with the status "open"."""
    kill_a_run(tmp_path / "runs")
    done = run_stepwell(
        "export", "--to", "dftracer", "--dialect", "old", "-o", "t.pfw", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    [path] = tmp_path.glob("t-*-app.pfw")
    assert done.stdout.splitlines()[0] == path.name
    spans = {line["name"]: line for line in spans_of(path)}
    assert spans["epoch"]["args"]["status"] == spans["all-reduce"]["args"]["status"] == "open"
    epoch, step = spans["epoch"], spans["step"]
    assert epoch["ts"] + epoch["dur"] >= step["ts"] + step["dur"]
    assert (step["args"]["level"], step["args"]["p_idx"]) == (3, epoch["id"])
    assert validated_lines(tmp_path) == len(lines_of(path))


def test_a_window_with_nothing_in_it(recorded: Run, tmp_path: Path) -> None:
    """It is refused, and a trace of that name is unchanged."""
    with ai.data(step=3):
        pass
    recorded.finish()
    [path] = export_dftracer(recorded.path, tmp_path / "t.pfw", steps=(3, 4)).files
    before = path.read_bytes()
    assert b'"step":3' in before
    with pytest.raises(StepwellError, match="no spans in steps 7:8"):
        export_dftracer(recorded.path, tmp_path / "t.pfw", steps=(7, 8))
    assert path.read_bytes() == before


def test_names_of_files() -> None:
    """One a process; rank, kind and a number where that is needed."""
    assert file_name(Path("a/t.pfw.gz"), 0, 12).name == "t-12-app.pfw.gz"
    assert file_name(Path("a/t.pfw"), 3, 12, "fork", 2).name == "t.rank-3-12-2-fork.pfw"
    assert file_name(Path("a/t"), 0, 12).name == "t-12-app.pfw"


@pytest.mark.parametrize("name", ["t.pfw", "t.pfw.gz"])
@pytest.mark.parametrize("dialect", ["old", "new"])
def test_the_exporter(recorded: Run, tmp_path: Path, name: str, dialect: str) -> None:
    """Live, the trace has the spans of the exported one, with the same ids, parents and levels."""
    out = tmp_path / "live"
    recorded.add_exporter(DFTracerExporter(file_path=out / name, dialect=dialect))
    with recorded.span("application"):
        for i in range(30):
            with ai.compute.forward(args={"i": i}), recorded.span("inner"):
                pass
        recorded.flush()
        ai.pipeline.epoch.start(metadata=True)
    recorded.finish()
    [path] = out.iterdir()
    lines = lines_of(path)
    assert validated_lines(out) == len(lines)
    [whole] = export_dftracer(recorded.path, tmp_path / "t.pfw", dialect=dialect).files
    keys = ("id", "name", "cat", "dur", "args")
    found = sorted([line[key] for key in keys] for line in spans_of(path) if "id" in line)
    expected = sorted([line[key] for key in keys] for line in spans_of(whole))
    assert [row[:3] for row in found] == [row[:3] for row in expected]
    # The two know the wall clock by different notes, so microseconds may be cut off differently.
    assert all(abs(a[3] - b[3]) <= 1 for a, b in zip(found, expected, strict=True))
    assert [row[4] for row in found] == [row[4] for row in expected]
    assert [x["args"]["name"] for x in lines if x["name"] == "CM"] == ["time_metric", "epoch.start"]
    assert lines[-1]["name"] == "end"


def test_a_live_trace_without_an_end(tmp_path: Path) -> None:
    """After a kill, the file consists of complete lines, compressed or not."""
    exporter = DFTracerExporter(tmp_path / "t.pfw.gz")
    exporter.open(Source("r", 0, 2, 4, "p", "node", 5, "a"))
    span = SpanRecord(
        "complete", 9, 8, "fit", "cat", "MainThread", 10_000, 35_999, "error", {"x": 1}
    )
    exporter.export([span])
    exporter.export([EventRecord("event", "tick", None, "Other", 20_000, {})])
    assert exporter.path.name == "t.rank-2-5-app.pfw.gz"
    [fit, named, tick] = lines_of(exporter.path)[-3:]
    assert (fit["ts"], fit["dur"], fit["args"]["status"]) == (10, 25, "error")
    assert (named["name"], named["args"]["name"], named["tid"]) == ("thread_name", "Other", 6)
    assert (tick["name"], tick["ts"], tick["dur"], tick["tid"]) == ("tick", 20, 0, 6)
