"""A window of a run: what overlaps with it, and nothing of other segments unpacked."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import stepwell
from stepwell import open_run
from stepwell.exporters import export_chrome
from stepwell.journal.archive import Block, archive_files, pack, read_blocks
from stepwell.reading import RecordedRun
from stepwell.reading.segments import RecordedSegment, spans_touched
from tests.exporters.test_chrome_export import drawn
from tests.processes.programs import environ

STEPS, INNER = 1200, 60
"""More than four segments of spans."""


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record steps of many spans within two long spans, one of which ends in the middle."""
    run = stepwell.init("long", dir=tmp_path_factory.mktemp("runs"))
    around, inside = ExitStack(), ExitStack()
    whole = around.enter_context(run.span("application", kind="whole"))
    inside.enter_context(run.span("first half"))
    for step in range(STEPS):
        if step == STEPS // 2:
            inside.close()
        run.set_step(step, epoch=step // 100)
        with run.span("step", number=step):
            for _ in range(INNER):
                with run.span("inner"):
                    pass
        for name in ("loss", "lr", *(f"m{i}" for i in range(28))):
            run.log({name: float(step)})
        if step % 100 == 50:
            run.event("note", at=step)
    whole.set(late=True)
    around.close()
    run.finish()
    return run.path


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """(kind, number) of each segment whose payload is unpacked."""
    found: list[tuple[str, int]] = []
    payload = Block.payload

    def noted(self: Block, *arguments: Any) -> bytes:
        if self.header.get("kind") in ("spans", "metrics", "attributes"):
            found.append((self.header["kind"], self.header["seq"]))
        return payload(self, *arguments)

    monkeypatch.setattr(Block, "payload", noted)
    return found


def expected(path: Path, first: int, end: int) -> list[tuple[str, int]]:
    """(name, duration) of all that overlaps with these steps, from the tables."""
    spans = open_run(path).spans().collect()
    steps = spans.filter(pl.col("name") == "step").sort("start_ns")
    begin = steps["start_ns"][first]
    # The next step begins a little before its span does: by then no other span is open.
    until = steps["start_ns"][end - 1] + steps["duration_ns"][end - 1]
    over = (pl.col("start_ns") < until) & (pl.col("start_ns") + pl.col("duration_ns") > begin)
    own = pl.col("name") != "gc"
    return sorted(spans.filter(over & own).select("name", "duration_ns").iter_rows())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("first", [0, 3, 262, 265, 599, 600, 1190])
def test_a_window_of_steps(first: int, long_run: Path, tmp_path: Path) -> None:
    """All spans that overlap, those that are around with their own ends; values and events too."""
    export_chrome(long_run, tmp_path / "t.json", steps=(first, first + 5))
    found = drawn(tmp_path / "t.json")
    spans = [(e["name"], round(e["dur"] * 1000)) for e in found if e["ph"] == "X"]
    assert sorted(spans) == expected(long_run, first, first + 5)
    names = [name for name, _ in spans]
    assert names.count("inner") == 5 * INNER
    assert names.count("application") == 1
    assert names.count("first half") == (first < STEPS // 2)
    losses = [e["args"]["value"] for e in found if e["ph"] == "C" and e["name"] == "loss"]
    assert losses == [float(step) for step in range(first, first + 5)]
    [application] = [e for e in found if e["name"] == "application"]
    assert application["args"] == {"kind": "whole", "late": True}


def run_segments(run: RecordedRun, kind: str) -> list[RecordedSegment]:
    return [segment for tables in run.by_process() for segment in tables.process.of_kind(kind)]


def test_other_segments_are_not_unpacked(
    long_run: Path, tmp_path: Path, unpacked: list[tuple[str, int]]
) -> None:
    """Of the spans, only the segment of the window and the one in which the span around it ends."""
    run = open_run(long_run)
    seqs = sorted(s.seq for s in run_segments(run, "spans") if s.thread == "MainThread")
    metrics = sorted(s.seq for s in run_segments(run, "metrics") if s.thread == "MainThread")
    assert len(seqs) >= 4
    unpacked.clear()
    export_chrome(run, tmp_path / "t.json", steps=(300, 302))
    spans = [seq for kind, seq in unpacked if kind == "spans"]
    # 61 spans a step: step 300 is in the second segment. The long spans end in the third and the last.
    assert set(spans) == {seqs[1], seqs[2], seqs[-1]}
    assert len(spans) == 3
    # 31 rows a step: it is in the first of three, which is looked at for the step and for the values.
    assert len(metrics) == 3
    assert {seq for kind, seq in unpacked if kind == "metrics"} == {metrics[0]}
    assert {seq for kind, seq in unpacked if kind == "attributes"} <= {seqs[1], seqs[2], seqs[-1]}


def test_a_window_at_the_end(
    long_run: Path, tmp_path: Path, unpacked: list[tuple[str, int]]
) -> None:
    """The last steps take the last segments alone."""
    export_chrome(long_run, tmp_path / "t.json", steps=(STEPS - 2, STEPS))
    assert len({seq for kind, seq in unpacked if kind == "spans"}) == 1


def test_segments_that_do_not_tell_when_they_end(long_run: Path, tmp_path: Path) -> None:
    """Runs whose segments lack the times: all are decompressed, and the result is the same."""
    before = export_chrome(long_run, tmp_path / "a.json", steps=(300, 302))
    copy = tmp_path / "copy"
    for source in long_run.rglob("*"):
        target = copy / source.relative_to(long_run)
        if source.is_dir():
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    [process] = copy.glob("rank-*")
    for path in [*archive_files(process, "spans"), *archive_files(process, "metrics")]:
        frames = []
        for frame in read_blocks(path):
            header = {k: v for k, v in frame.header.items() if k not in ("until", "context")}
            frames.append(pack(header, frame.payload()))
        path.write_bytes(b"".join(frames))
    after = export_chrome(copy, tmp_path / "b.json", steps=(300, 302))
    assert after.spans == before.spans
    assert drawn(tmp_path / "b.json") == drawn(tmp_path / "a.json")


def segment_of(time: list[int], until: int | None, open: int = 0) -> RecordedSegment:
    header = {"kind": "spans", "seq": 1, "lane": 0, "time": time, "until": until, "open": open}
    return RecordedSegment("p", header, Block(Path("x"), 0, 0, header))


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        ((12, 15), [0]),
        # Nothing began or ended here, but what was open then is known to the one before.
        ((32, 38), [0]),
        ((38, 45), [0, 1]),
        ((62, 65), [1]),
        # A span whose start was set back to 68 is in the last one.
        ((69, 72), [1, 2]),
        ((200, 210), []),
        ((0, 5), []),
    ],
)
def test_which_segments_a_window_touches(window: tuple[int, int], expected: list[int]) -> None:
    """Worked out on paper: three segments of a lane, from 10 to 30, 40 to 70 and 68 to 100."""
    segments = [segment_of([10, 25], 30), segment_of([40, 60], 70), segment_of([68, 90], 100)]
    assert [segments.index(s) for s in spans_touched(segments, window)] == expected
    assert spans_touched([segment_of([10, 25], 30, open=1)], (200, 210)) != []
    assert len(spans_touched([segment_of([10, 25], None)], (200, 210))) == 1


def test_steps_that_only_spans_know(recorded: stepwell.Run, tmp_path: Path) -> None:
    """If the run has no step context, spans with a step of their own are exported."""
    for step in range(10):
        with recorded.span("work", step=step), recorded.span("inside"):
            pass
    recorded.finish()
    export_chrome(recorded.path, tmp_path / "t.json", steps=(4, 6))
    found = drawn(tmp_path / "t.json")
    assert [(e["name"], e["args"]) for e in found] == [("work", {"step": 4}), ("work", {"step": 5})]


MEMORY = """
import resource, sys, stepwell
from pathlib import Path
from stepwell.exporters import export_chrome
run = stepwell.init("big", dir=sys.argv[1])
with run.span("application"):
    for i in range(int(sys.argv[2]) // 4):
        run.set_step(i)
        with run.span("step"):
            for _ in range(3):
                with run.span("inner"):
                    pass
run.finish()
export_chrome(run.path, Path(sys.argv[1]) / "warm.json", steps=(0, 2))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
done = export_chrome(run.path, Path(sys.argv[1]) / "t.json")
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(done.spans, (after - before) // 1024)
"""


@pytest.mark.full
def test_memory_stays_flat(tmp_path: Path) -> None:
    """Four hundred thousand spans (40 MB of JSON) take little more than the reader itself."""
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path), "400000"],
        env=environ(tmp_path),
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    spans, megabytes = map(int, done.stdout.split())
    # Collecting garbage may be among them.
    assert 400_001 <= spans < 400_100
    assert (tmp_path / "t.json").stat().st_size > 38_000_000
    assert megabytes < 38
    assert json.loads((tmp_path / "t.json").read_bytes())["traceEvents"]
