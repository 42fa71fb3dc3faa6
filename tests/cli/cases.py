"""Runs of every kind, and every command, for the tests of the terminal."""

from __future__ import annotations

import json
import os
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

import stepwell
from stepwell.testing.simulate import make_plan, simulate
from tests.harness import environment, run_script

KILLED = """
import os, signal, stepwell
run = stepwell.init("killed")
with run.span("epoch"):
    for i in range(100):
        run.set_step(i)
        with run.span("step", number=i):
            run.log({"loss": 1.0 / (i + 1)})
    run.event("ready")
    with run.span("all-reduce"):
        os.kill(os.getpid(), signal.SIGKILL)
"""
KILLED_IN_TRAINING = """
import os, signal, stepwell
run = stepwell.init("killed", run_id="killed")
with run.span("training_loop"):
    for i in range(60):
        run.set_step(i)
        with run.span("train step", number=i), run.span("forward"):
            run.log({"train/loss": 1.0 / (i + 1)})
    run.event("ready")
    with run.span("all-reduce"):
        os.kill(os.getpid(), signal.SIGKILL)
"""


def kill_a_run(root: Path, script: str = KILLED, **variables: str) -> None:
    """Record a run that kills itself inside a span."""
    done = run_script(script, env=environment(STEPWELL_DIR=str(root), **variables))
    assert done.returncode == -signal.SIGKILL, done.stderr


@dataclass(frozen=True)
class Place:
    """A folder with ``runs`` in it: whole, many, killed; and files to import."""

    path: Path

    @property
    def runs(self) -> Path:
        return self.path / "runs"

    @property
    def trace(self) -> str:
        return "trace.json"


def make_place(path: Path) -> Place:
    """A finished run with names of all kinds, one of two ranks, and one that was killed."""
    place = Place(path)
    place.runs.mkdir(parents=True)
    long = "a-name-that-is-much-longer-than-any-column-of-a-table-could-ever-be-in-eighty"
    with stepwell.init("whole", dir=place.runs, run_id="whole", config={"lr": 0.1, long: 1}) as run:
        for i in range(40):
            run.set_step(i, epoch=i // 20)
            with run.span("train step"):
                with run.span("forward", number=i), run.span(long):
                    pass
                run.log({"train/loss": 2.0 - i / 40, "val/accuracy": i / 40, f"{long}/x": float(i)})
        run.log({"odd": 1.0}, step=38)
        run.log({"odd": float("nan")}, step=39)
        run.event("done", text="größer")
        run.artifact(b"weights", "model.pt")
    simulate(place.runs / "many", make_plan(2, 40, (), seed=1))
    kill_a_run(place.runs, KILLED_IN_TRAINING)
    events = [
        {"ph": "X", "name": "work", "ts": i * 10, "dur": 5, "pid": 1, "tid": 1} for i in range(9)
    ]
    (path / place.trace).write_text(json.dumps({"traceEvents": events}))
    return place


COMMANDS: dict[str, tuple[str, ...]] = {
    "ls": ("ls",),
    "show": ("show", "whole"),
    "report": ("report", "whole"),
    "stacks": ("stacks", "killed"),
    "watch": ("watch", "whole", "--once"),
    "alert": ("alert", "killed", "--once", "--least", "note"),
    "plot": ("plot", "whole"),
    "compare": ("compare", "whole", "killed"),
    "query": ("query", "SELECT * FROM spans", "whole"),
    "export": ("export", "whole", "--to", "chrome", "-o", "out"),
    "export tables": ("export", "whole", "--to", "parquet", "-o", "tables"),
    "export otlp": ("export", "whole", "--to", "otlp", "-o", "out"),
    "forward": ("forward", "whole", "--to", "file", "--option", "file_path=forwarded.json"),
    "import": ("import", "trace.json", "--dir", "imported"),
    "recover": ("recover", "whole"),
    "gc": ("gc", "--keep", "1"),
    "simulate": ("simulate", "-o", "made", "--ranks", "2", "--steps", "20"),
    "doctor": ("doctor",),
    "doctor of a run": ("doctor", "whole"),
}
"""Every command that prints something for people, on runs that ``make_place`` made."""

USUAL = ("ls", "show", "report", "watch", "compare", "doctor")
"""Those that the default suite tries in every way."""

CODES = {"watch killed": 1}
OF_A_RUN: dict[str, tuple[str, ...]] = {
    "show": ("show", "{}"),
    "report": ("report", "{}"),
    "stacks": ("stacks", "{}"),
    "watch": ("watch", "{}", "--once"),
    "alert": ("alert", "{}", "--once"),
    "plot": ("plot", "{}"),
    "compare": ("compare", "{}", "{}"),
    "query": ("query", "SELECT name, count(*) AS n FROM spans GROUP BY name", "{}"),
    "export": ("export", "{}", "--to", "chrome", "-o", "out"),
    "export tables": ("export", "{}", "--to", "jsonl", "-o", "tables"),
    "export otlp": ("export", "{}", "--to", "otlp", "-o", "out"),
    "forward": ("forward", "{}", "--to", "file", "--option", "file_path=forwarded.json"),
    "recover": ("recover", "{}"),
}
"""Every command that takes a run, with a place for it."""


def words(name: str, run: str) -> list[str]:
    """A command of ``OF_A_RUN`` about this run."""
    return [run if word == "{}" else word for word in OF_A_RUN[name]]


def cut_in_half(source: Path, target: Path) -> None:
    """A copy of a run in which every file but the documents was written only half."""
    shutil.copytree(source, target)
    for path in target.rglob("*"):
        if path.is_file() and path.name not in ("run.json", "process.json"):
            os.truncate(path, path.stat().st_size // 2)


def of_the_future(source: Path, target: Path) -> None:
    """A copy of a run that says that it is in the next format."""
    shutil.copytree(source, target)
    about = json.loads((target / "run.json").read_text())
    (target / "run.json").write_text(json.dumps({**about, "id": target.name, "stepwell": 2}))
