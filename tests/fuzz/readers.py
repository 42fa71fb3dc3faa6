"""Readers of possibly damaged files. Each may raise StepwellError, and nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from stepwell import StepwellError, list_runs, open_run
from stepwell.analysis.report import report
from stepwell.follower.log import LogFollower
from stepwell.follower.trace import Follower, everything
from stepwell.importing import import_trace
from stepwell.journal.recovery import recover_process
from stepwell.reading.process import process_folders
from tests.reading.strangers import read_everything

MOST_POLLS = 200


def tables(run: Path) -> None:
    """All tables, and the list of runs."""
    read_everything(run)
    for listed in list_runs(run.parent):
        assert listed.id


def summary(run: Path) -> None:
    """The report with its findings."""
    assert report(open_run(run)).path == run


def follow(run: Path) -> None:
    """The records that exporters and trackers would get."""
    for folder in process_folders(run):
        for follower in (Follower(folder, everything), LogFollower(folder)):
            for _ in range(MOST_POLLS):
                if follower.over:
                    break
                follower.poll()


def recover(run: Path) -> None:
    """On a copy: what could be read before can be read afterwards."""
    copy = run.parent.parent / "copy" / run.name
    shutil.rmtree(copy.parent, ignore_errors=True)
    shutil.copytree(run, copy, symlinks=True)
    before = after = None
    with suppress(StepwellError):
        before = read_everything(copy)
    try:
        for folder in process_folders(copy):
            recover_process(folder)
        after = read_everything(copy)
    except StepwellError:
        assert before is None, "what could be read before recovering can no longer be read"
    if before is not None and after is not None:
        lost = {name: (rows, after[name]) for name, rows in before.items() if after[name] < rows}
        assert not lost, f"rows before and after recovering: {lost}"


def load(trace: Path) -> None:
    """Import a trace, and read the run that it became."""
    runs = trace.parent.parent / "imported"
    shutil.rmtree(runs, ignore_errors=True)
    try:
        read_everything(import_trace(trace, runs))
    finally:
        left = [path for path in runs.glob("*") if not (path / "run.json").exists()]
        assert not left, f"left behind: {left}"


OF_RUNS: dict[str, Callable[[Path], None]] = {
    "tables": tables,
    "report": summary,
    "follow": follow,
    "recover": recover,
}
