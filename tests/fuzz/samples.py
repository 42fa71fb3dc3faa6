"""The files that are damaged: run folders as training leaves them, and traces of other tools."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROGRAM = """
import os, signal, sys, threading
import stepwell
from stepwell.exporters.file import FileExporter

run = stepwell.init("fuzz", dir=sys.argv[1], config={"lr": 0.1, "layers": [1, {"a": None}]}, tags=["x"])
run.add_exporter(FileExporter(sys.argv[1] + "/spans.jsonl"))

def work():
    for i in range(40):
        with stepwell.span("side", i=i):
            pass

thread = threading.Thread(target=work)
thread.start()
thread.join()
for i in range(30):
    stepwell.set_step(i)
    with stepwell.span("step", i=i, text="x" * i):
        with stepwell.span("forward"):
            stepwell.log({"loss": 1 / (1 + i), "val/accuracy": i / 30}, step=i)
        stepwell.event("tick", i=i, note="\\u00e9")
stepwell.log({"table": stepwell.Table(columns=["a", "b"], data=[[1, "x"], [2, None]])})
stepwell.log({"note": stepwell.Text("words")})
run.summary["best"] = 0.5
if sys.argv[2] == "killed":
    stepwell.span("open", a=1).__enter__()
    os.kill(os.getpid(), signal.SIGKILL)
run.finish()
"""

T0 = 1794766663000000


def make_runs(folder: Path) -> list[Path]:
    """Two run folders: of a process that was killed, and of one that finished."""
    made = []
    for end, code in (("killed", -signal.SIGKILL), ("finished", 0)):
        runs = folder / end
        runs.mkdir()
        env = {**os.environ, "STEPWELL_QUIET": "1"}
        done = subprocess.run([sys.executable, "-c", PROGRAM, runs, end], env=env, check=False)
        assert done.returncode == code
        made += [path.parent for path in runs.glob("*/run.json")]
    return made


def make_traces(folder: Path) -> list[Path]:
    """A trace in each format that can be imported."""
    folder.mkdir()
    chrome = [
        {"ph": "X", "name": f"n{i}", "pid": 1, "tid": i % 2, "ts": i * 9, "dur": 20}
        for i in range(60)
    ]
    chrome += [
        {"ph": "B", "name": "b", "pid": 1, "tid": 3, "ts": 1},
        {"ph": "E", "pid": 1, "tid": 3, "ts": 5},
    ]
    chrome += [{"ph": "C", "name": "c", "pid": 1, "ts": 4, "args": {"x": 1.5}}]
    chrome += [{"ph": "i", "name": "i", "pid": 1, "tid": 1, "ts": 4, "s": "t"}]
    chrome += [{"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "main"}}]
    (folder / "trace.json").write_text(json.dumps({"traceEvents": chrome}))
    lines = "".join(json.dumps(line) + "\n" for line in _dftracer())
    (folder / "trace.pfw").write_text("[\n" + lines)
    (folder / "trace.pfw.gz").write_bytes(gzip.compress(("[\n" + lines).encode(), mtime=0))
    lines = "".join(json.dumps(line) + "\n" for line in _one_logger())
    (folder / "one_logger.json").write_text(lines)
    return sorted(folder.iterdir())


def _dftracer() -> Iterator[dict[str, Any]]:
    args = {"hhash": "6882804a826580cd", "name": "node-1", "value": "6882804a826580cd"}
    yield {"id": 0, "name": "HH", "cat": "dftracer", "pid": 1, "tid": 1, "ph": "M", "args": args}
    for i in range(60):
        times = {"ts": T0 + 10 * i, "dur": 25, "ph": "X"}
        event = {"id": i, "name": "read", "cat": "POSIX", "pid": 1, "tid": 1 + i % 2}
        yield {
            **event,
            **times,
            "args": {"hhash": args["hhash"], "step": i, "epoch": 0, "level": 1},
        }


def _one_logger() -> Iterator[dict[str, Any]]:
    def at(ms: int) -> dict[str, Any]:
        return {"name": "e", "attributes": {"timestamp_msec": T0 // 1000 + ms}}

    yield {
        "type": "start",
        "id": "a",
        "name": "application",
        "attributes": {},
        "start_event": at(0),
    } | {
        "count": 1,
        "pid": 7,
    }
    for i in range(40):
        span = {
            "id": f"s{i}",
            "name": "training_step",
            "attributes": {"d": i},
            "count": i + 2,
            "pid": 7,
        }
        yield {"type": "complete", **span, "start_event": at(3 * i), "stop_event": at(3 * i + 2)}
    yield {"type": "event", "span_id": "a", "event": at(99), "count": 99, "pid": 7}
    yield {
        "type": "stop",
        "id": "a",
        "name": "application",
        "attributes": {},
        "stop_event": at(200),
    } | {
        "count": 100,
        "pid": 7,
    }
