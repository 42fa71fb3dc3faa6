"""Sidecars of exporters that a user wrote."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from stepwell import Run
from stepwell.telemetry import sidecar_process
from stepwell.telemetry.exporter import Exporter, ExportFilter
from tests.harness import COLD_SIDECARS, environment, run_script

MODULE = """
import json, os
from stepwell.exporters import Exporter

class Lines(Exporter):
    out_of_process = True
    name = "lines"

    def __init__(self, path, fault=""):
        self.path, self.fault = path, fault
        if fault == "constructor" and os.environ.get("STEPWELL_MODE") == "off":
            raise RuntimeError("no licence in this process")

    def description(self):
        return {"class": "mine.Lines", "options": {"path": self.path, "fault": self.fault}}

    def open(self, source):
        self.pid = source.pid

    def export(self, records):
        if self.fault == "death":
            os._exit(9)
        if self.fault == "print":
            print("View the run at http://127.0.0.1", flush=True)
            os.system("echo from a child process")
        with open(self.path, "a") as file:
            for record in records:
                entry = [record.type, record.name, self.pid, os.getpid()]
                file.write(json.dumps(entry) + "\\n")
"""
SCRIPT = """
import json, logging, os, sys
import stepwell
from mine import Lines

warnings = []
handler = logging.Handler(logging.WARNING)
handler.emit = lambda record: warnings.append(record.getMessage())
logging.getLogger("stepwell").addHandler(handler)

class InTheScript(Lines):
    def description(self):
        return {**super().description(), "class": "__main__.InTheScript"}

run = stepwell.init("t", dir="../runs")
refused = ""
try:
    run.add_exporter({made})
except stepwell.StepwellError as error:
    refused = str(error)
with stepwell.span("a"):
    stepwell.event("e")
flushed = run.flush(15)
run.finish()
print(json.dumps([flushed, os.getpid(), warnings, refused]))
"""


@dataclass
class Outcome:
    flushed: bool
    pid: int
    warnings: list[str]
    refused: str
    lines: list[list]


def train(tmp_path: Path, made: str, **variables: str) -> Outcome:
    """Run a training script in a folder with a file that shadows the standard library."""
    code, work, path = tmp_path / "code", tmp_path / "work", tmp_path / "lines"
    for folder in (code, work):
        folder.mkdir()
    (code / "mine.py").write_text(MODULE)
    (code / "train.py").write_text(SCRIPT.replace("{made}", made.replace("PATH", repr(str(path)))))
    (work / "json.py").write_text("raise RuntimeError('this is not the one')")
    done = run_script(code / "train.py", cwd=work, env=environment(**variables), check=True)
    lines = path.read_text().splitlines() if path.exists() else []
    return Outcome(*json.loads(done.stdout), lines=[json.loads(line) for line in lines])


def test_an_exporter_of_ones_own_may_run_in_a_process_of_its_own(tmp_path: Path) -> None:
    """It is imported from the same place as in the training script, whatever is in the working folder."""
    done = train(tmp_path, "Lines(PATH)", **COLD_SIDECARS)
    assert (done.flushed, done.warnings) == (True, [])
    assert [line[:2] for line in done.lines if line[0] == "event"] == [["event", "e"]]
    assert [line[1] for line in done.lines if line[0] in ("stop", "complete")] == ["a"]
    assert {line[2] for line in done.lines} == {done.pid}
    assert done.pid not in {line[3] for line in done.lines}


def test_what_an_exporter_prints_does_not_come_between_its_reports(tmp_path: Path) -> None:
    """Its standard output, and that of its children, lead nowhere."""
    done = train(tmp_path, "Lines(PATH, 'print')")
    assert (done.flushed, done.warnings) == (True, [])
    assert ["event", "e"] in [line[:2] for line in done.lines]


AT_EXIT = """
import os, threading
import stepwell
from mine import Lines

run = stepwell.init("t", dir="../runs")
run.add_exporter(Lines({path!r}))
with stepwell.span("a"):
    pass
if {again}:
    os.kill(run.exporters[0].process_id, 9)

def refuse(self):
    raise RuntimeError("can't create new thread at interpreter shutdown")

threading.Thread.start = refuse
"""


@pytest.mark.parametrize("again", [False, True], ids=["running", "killed"])
def test_the_exit_of_a_python_that_starts_no_threads_any_more_delivers(
    tmp_path: Path, again: bool
) -> None:
    """As 3.12 does not; also if a sidecar has to be started again."""
    path = tmp_path / "lines"
    (tmp_path / "mine.py").write_text(MODULE)
    script = tmp_path / "train.py"
    script.write_text(AT_EXIT.format(path=str(path), again=again))
    done = run_script(script, cwd=tmp_path, env=environment(STEPWELL_STRICT="1"), check=True)
    assert "problem" not in done.stderr
    assert "missing" not in done.stderr
    names = [json.loads(line)[:2] for line in path.read_text().splitlines()]
    assert ["complete", "a"] in names or ["stop", "a"] in names


def test_one_that_cannot_be_made_there_is_said_with_its_reason(tmp_path: Path) -> None:
    """There is one warning, training continues, and it is not retried endlessly."""
    done = train(tmp_path, "Lines(PATH, 'constructor')")
    assert (done.flushed, done.lines) == (False, [])
    (warning,) = done.warnings
    assert "Exporter lines cannot be started" in warning
    assert "no licence in this process" in warning


def test_one_that_dies_again_and_again_is_left_alone(tmp_path: Path) -> None:
    """A few starts, one warning."""
    done = train(tmp_path, "Lines(PATH, 'death')")
    assert (done.flushed, done.lines) == (False, [])
    (warning,) = done.warnings
    assert "it ended with code 9" in warning


def test_a_class_of_the_script_itself_is_refused(tmp_path: Path) -> None:
    """The script cannot be imported a second time."""
    done = train(tmp_path, "InTheScript(PATH)")
    assert "move its class into a module" in done.refused
    assert done.warnings == []


@pytest.mark.parametrize("name", ["a/b", "..", "x" * 100])
def test_the_name_of_an_exporter_makes_no_path(name: str, tmp_path: Path) -> None:
    """Whatever it is called, its notes are in the process folder."""
    from stepwell.telemetry.sidecar import Sidecar

    class Named:
        def description(self) -> dict:
            return {"class": "mine.Lines", "options": {}}

    exporter = Named()
    exporter.name = name  # type: ignore[attr-defined]
    first, second = (Sidecar(exporter, tmp_path, ExportFilter())._about["notes"] for _ in "ab")
    assert first != second
    assert (tmp_path / first).parent == tmp_path
    assert len(first) < 60


class Ticks(Exporter):
    """An exporter whose ``tick`` fails while ``failing`` is set."""

    out_of_process = True
    times: ClassVar[list[float]] = []
    failing: ClassVar[bool] = True

    def tick(self) -> None:
        Ticks.times.append(sidecar_process.time.monotonic())
        if Ticks.failing:
            raise ConnectionError("nobody there")


def test_what_fails_now_and_then_is_tried_less_and_less_often(
    recorded: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 1 s, 2 s, 4 s, up to half a minute; then every half second again."""
    now = 1000.0
    clock = SimpleNamespace(monotonic=lambda: now, strftime=time.strftime, sleep=time.sleep)
    monkeypatch.setattr(sidecar_process, "time", clock)
    monkeypatch.setattr(Ticks, "times", [])
    (folder,) = recorded.path.glob("rank-*")
    setup = {"folder": str(folder), "linger": 1, "class": f"{__name__}.Ticks", "options": {}}
    setup |= {"filter": ExportFilter().to_json(), "name": "ticks", "notes": "export-ticks"}
    notes = sidecar_process.SidecarLog(folder, "export-ticks")
    logging.getLogger("stepwell").removeHandler(notes)
    worker = sidecar_process.SidecarWorker(setup, notes)
    for _ in range(260):
        worker._tick()
        now += 0.5
    assert [time - 1000 for time in Ticks.times] == [0, 1, 3, 7, 15, 31, 61, 91, 121]
    monkeypatch.setattr(Ticks, "failing", False)
    now += 30
    for _ in range(4):
        worker._tick()
        now += 0.5
    assert [b - a for a, b in pairwise(Ticks.times[-4:])] == [0.5, 0.5, 0.5]
