"""Finding a run by what a person types: a path, an id, the beginning of one, or nothing."""

from __future__ import annotations

import os
from pathlib import Path

from stepwell.journal.errors import StepwellError
from stepwell.reading.run import RecordedRun, list_runs, open_run, runs_dir


def find_run(text: str | None = None, dir: str | os.PathLike[str] | None = None) -> RecordedRun:
    """The run that is meant; the newest one when nothing is said."""
    root = runs_dir(dir)
    if text and (os.sep in text or Path(text).is_dir()):
        return open_run(text)
    runs = list_runs(root)
    if not runs:
        raise StepwellError(
            f"there are no runs in {str(root)!r}: give the path of a run folder, or --dir, "
            "or set STEPWELL_DIR"
        )
    if not text:
        return runs[0]
    found = [run for run in runs if run.id == text] or [r for r in runs if r.id.startswith(text)]
    found = found or [run for run in runs if run.name == text]
    if len(found) == 1:
        return found[0]
    ids = ", ".join(run.id for run in (found or runs)[:5])
    problem = "means several runs" if found else "is no run"
    raise StepwellError(f"{text!r} {problem} in {str(root)!r}; there are: {ids}")
