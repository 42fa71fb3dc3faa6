"""Finding a run by what a person types: a path, an id, the beginning of one, or nothing."""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path

from stepwell.journal.errors import StepwellError
from stepwell.reading.remote import address_of
from stepwell.reading.run import RecordedRun, list_runs, open_run, runs_dir
from stepwell.reading.version import check_format

MOST_NAMED = 5


def find_run(text: str | None = None, dir: str | os.PathLike[str] | None = None) -> RecordedRun:
    """The run that is meant; the newest one when nothing is said."""
    if text and (os.sep in text or address_of(text) or Path(text).is_dir()):
        return open_run(text)
    root = address_of(dir or os.environ.get("STEPWELL_DIR")) or runs_dir(dir)
    runs = list_runs(root)
    if not runs:
        raise StepwellError(
            f"there are no runs in {str(root)!r}: give the path of a run folder, or --dir, "
            "or set STEPWELL_DIR"
        )
    found = _meant(text, runs) if text else runs[0]
    check_format(found.id, found.about)
    return found


def _meant(text: str, runs: list[RecordedRun]) -> RecordedRun:
    found = [run for run in runs if run.id == text] or [r for r in runs if r.id.startswith(text)]
    found = found or [run for run in runs if run.name == text]
    if len(found) == 1:
        return found[0]
    where = repr(str(runs[0].path.parent))
    if found:
        raise StepwellError(f"{text!r} means several runs in {where}: {_ids(found)}")
    near = _near(text, runs)
    hint = f"; did you mean {_ids(near)}?" if near else f"; there are: {_ids(runs)}"
    raise StepwellError(f"{text!r} is no run in {where}{hint}")


def _near(text: str, runs: list[RecordedRun]) -> list[RecordedRun]:
    """Those whose id or name, or the beginning of their id, looks like it."""
    words: dict[str, list[RecordedRun]] = {}
    for run in runs:
        for word in {run.id, run.name, run.id[: len(text)]}:
            words.setdefault(word.lower(), []).append(run)
    near = [run for word in get_close_matches(text.lower(), words, 3, 0.7) for run in words[word]]
    return [run for run in runs if run in near]


def _ids(runs: list[RecordedRun]) -> str:
    more = f" and {len(runs) - MOST_NAMED} more" if len(runs) > MOST_NAMED else ""
    return ", ".join(run.id for run in runs[:MOST_NAMED]) + more
