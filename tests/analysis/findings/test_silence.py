"""A rank that records nothing any more, where no span says whether that is too long."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell._core.files import write_json
from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.findings.hang import find_hang
from stepwell.reading import RecordedRun
from tests.analysis.timeline.writing import WALL, Process, Thread, Written, write_run

S = 1_000_000_000
LINES = [
    {"file": "/home/me/train.py", "line": 30, "function": "<module>", "source": "train()"},
    {"file": "/home/me/train.py", "line": 12, "function": "train", "source": "queue.get()"},
    {"file": "/usr/lib/python3.11/queue.py", "line": 171, "function": "get", "source": "wait()"},
]


def quiet_run(folder: Path, quiet_s: float, *, in_loop: bool, step_s: float = 1.0) -> RecordedRun:
    """Ten steps, then nothing until the process was killed."""
    last = 10 * step_s
    steps = [(round(step * step_s * S), step, None) for step in range(10)]
    spans = [Written("training_loop", 0, None)] if in_loop else []
    spans += [Written("forward", time, time + S // 2, 0 if in_loop else None) for time, *_ in steps]
    end = round((last + quiet_s) * S)
    run = write_run(folder, Process([Thread(spans)], end, steps, status="killed"))
    (process,) = run.folder.glob("rank-*")
    threads = [{"thread": "MainThread", "lines": LINES}]
    about = {"time": WALL + end - 5 * S, "quiet_s": quiet_s - 5, "threads": threads}
    write_json(process / "stacks.json", about)
    return run


def found(run: RecordedRun) -> list[Finding]:
    return [finding for finding in find_hang(Facts(run)) if finding.rule == "hang"]


@pytest.mark.parametrize(("in_loop", "severity"), [(True, "warning"), (False, "note")])
def test_a_process_that_records_nothing(tmp_path: Path, in_loop: bool, severity: str) -> None:
    """The line of the user's code is named, and shown with those around it."""
    (finding,) = found(quiet_run(tmp_path, 90, in_loop=in_loop))
    assert finding.sentence == (
        "The process had recorded nothing for 1 min 30 s since step 9: it was at train.py:12 in train."
    )
    assert finding.severity == severity
    assert finding.lines == (
        "/home/me/train.py:30 in <module>",
        "    train()",
        "/home/me/train.py:12 in train",
        "    queue.get()",
        "/usr/lib/python3.11/queue.py:171 in get",
        "    wait()",
    )


@pytest.mark.parametrize(("quiet_s", "step_s"), [(25, 1.0), (90, 40.0)])
def test_a_pause_as_long_as_steps_are(tmp_path: Path, quiet_s: float, step_s: float) -> None:
    """Nothing is said of a short pause, nor where a step takes as long."""
    assert found(quiet_run(tmp_path, quiet_s, in_loop=True, step_s=step_s)) == []
