"""The cost of recording: counted, estimated, and measured where measuring is free."""

from __future__ import annotations

import json
import time
from pathlib import Path

import stepwell
from stepwell.analysis.report import report
from tests.analysis.timeline.writing import Process, Thread, Written, write_run


def test_the_background_thread_tells_what_it_took(tmp_path: Path) -> None:
    """More than zero, and no more than the CPU time of the process; also while it runs."""
    before = time.process_time_ns()
    with stepwell.init("costly", dir=tmp_path) as run:
        for step in range(3000):
            run.set_step(step)
            with run.span("forward"):
                run.log({"loss": 1.0})
        deadline = time.monotonic() + 60
        running = None
        while not running and time.monotonic() < deadline:
            run.flush()
            running = report(stepwell.open_run(run.path)).cost.beside_ns
    cost = report(stepwell.open_run(run.path)).cost
    used = time.process_time_ns() - before
    assert (cost.spans, cost.metrics) == (3000, 3000)
    assert running is not None
    assert cost.beside_ns is not None
    assert 0 < running <= cost.beside_ns < used
    (document,) = run.path.glob("*/process.json")
    assert json.loads(document.read_text())["recorder_cpu_ns"] == cost.beside_ns


def test_older_runs_do_not_tell(tmp_path: Path) -> None:
    process = Process([Thread([Written("forward", 0, 10)])], 20)
    assert report(write_run(tmp_path, process)).cost.beside_ns is None
