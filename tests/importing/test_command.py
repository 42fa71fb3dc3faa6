"""``stepwell import``, as a person would run it; and how much memory it needs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import stepwell
from stepwell.importing import import_trace
from tests.harness import run_stepwell
from tests.importing.reading_back import write_lines


def some(path: Path, count: int) -> Path:
    lines = [
        json.dumps({"ph": "X", "name": f"n{i % 5}", "pid": 3, "tid": 3, "ts": i * 10, "dur": 9})
        for i in range(count)
    ]
    return write_lines(path, *lines)


@pytest.mark.full
def test_import_then_everything_else(tmp_path: Path) -> None:
    """It prints the counts, and list, show, export and forward accept the run like any other."""
    write_lines(tmp_path / "a.json", some(tmp_path / "a", 20).read_text(), "{torn")
    done = run_stepwell("import", "a.json", "--name", "my trace", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first == "chrome: imported 20 spans"
    assert rest[:2] == ["left out 1 record:", "  1: invalid JSON"]
    assert rest[-1].startswith("run my-trace-")
    [run] = stepwell.list_runs(tmp_path / "runs")
    assert run.name == "my trace"
    listed = json.loads(run_stepwell("ls", "--json", cwd=tmp_path).stdout)
    assert listed[0]["name"] == "my trace"
    shown = run_stepwell("show", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "20 spans" in shown.stdout
    exported = run_stepwell("export", "--to", "parquet", "-o", "out", cwd=tmp_path)
    assert exported.returncode == 0, exported.stderr
    sent = run_stepwell(
        "forward", "--to", "file", "--all", "--option", "file_path=f.json", cwd=tmp_path
    )
    assert sent.returncode == 0, sent.stderr
    assert "20 spans" in sent.stdout
    assert run_stepwell("recover", cwd=tmp_path).stdout == "Nothing to recover.\n"


def test_what_is_wrong_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    for arguments in (["nowhere.pfw"], ["a.txt"], ["a.txt", "--kind", "perf"]):
        done = run_stepwell("import", *arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert done.stdout == ""
        assert len(done.stderr.splitlines()) == 1
        assert done.stderr.startswith("stepwell: ")


@pytest.mark.full
def test_several_files_and_progress(tmp_path: Path) -> None:
    """One run of all of them; progress goes up to the whole."""
    files = [some(tmp_path / f"{n}.json", 50_000) for n in range(2)]
    seen: list[tuple[str, int, int]] = []
    path = import_trace(files, tmp_path / "runs", progress=lambda *what: seen.append(what))
    run = stepwell.open_run(path)
    assert run.spans().collect().height == 100_000
    assert run.ranks() == [0, 1]
    reading = [done for what, done, _ in seen if what == "reading"]
    assert reading == sorted(reading)
    assert reading[-1] == sum(file.stat().st_size for file in files)
    assert {what for what, _, _ in seen} == {"reading", "writing"}


@pytest.mark.full
def test_memory_stays_flat(tmp_path: Path) -> None:
    """Three times the records, the same memory."""
    program = (
        "import sys; from stepwell.importing import import_trace\n"
        "import_trace(sys.argv[1], sys.argv[2])\n"
        "print([l.split()[1] for l in open('/proc/self/status') if l.startswith('VmHWM')][0])\n"
    )
    peaks = []
    for count in (60_000, 180_000):
        file = some(tmp_path / f"{count}.json", count)
        command = [sys.executable, "-c", program, str(file), str(tmp_path / "runs")]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=250)
        peaks.append(int(done.stdout) >> 10)
    assert peaks[1] < peaks[0] + 25
    assert peaks[1] < 200
