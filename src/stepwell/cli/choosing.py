"""The runs that a command is about, and the completion of their ids in a shell."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from stepwell.journal.errors import StepwellError

if TYPE_CHECKING:
    from stepwell.reading import RecordedRun


def choose_run(text: str | None, dir: Path | None) -> RecordedRun:
    """Return the run with this path, id or name, without one the newest; say which where several match."""
    from stepwell.cli.output import complain
    from stepwell.reading.find import find_run

    return find_run(text, dir, complain)


def choose_runs(
    texts: Sequence[str], dir: Path | None, last: int | None, everything: bool
) -> list[RecordedRun]:
    """The runs that are named; else the newest ones, or all; else the newest one."""
    from stepwell.reading.find import no_runs
    from stepwell.reading.run import list_runs, runs_dir
    from stepwell.reading.version import newer_format

    if sum(map(bool, (texts, last is not None, everything))) > 1:
        raise StepwellError("name runs, or write --last N, or --all: one of the three")
    if last is not None and last < 1:
        raise StepwellError(f"--last {last}: write how many of the newest runs, at least 1")
    if last is None and not everything:
        chosen = [choose_run(text, dir) for text in texts or (None,)]
        return list({run.path.resolve(): run for run in chosen}.values())
    found = [run for run in list_runs(dir) if newer_format(run.about) is None]
    if not found:
        raise StepwellError(no_runs(runs_dir(dir)))
    return found[:last]


def complete_run(context: typer.Context, incomplete: str) -> list[str]:
    """The ids of runs that begin so, newest first; the shell adds files by itself where there are none.

    Asked for at a press of a key: it imports nothing that takes time.
    """
    dir = context.params.get("dir")
    root = Path(dir or os.environ.get("STEPWELL_DIR") or "runs").expanduser()
    try:
        folders = [path for path in root.iterdir() if (path / "run.json").is_file()]
        folders.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        return []
    return [path.name for path in folders if path.name.startswith(incomplete)]
