"""Find a run by a path, an id, the beginning of an id, a name, or nothing (the newest run)."""

from __future__ import annotations

import os
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path

from stepwell._core.errors import StepwellError
from stepwell.reading.documents import check_format
from stepwell.reading.remote import address_of
from stepwell.reading.run import RecordedRun, list_runs, open_run, runs_dir

MOST_NAMED = 5


def find_run(
    text: str | None = None,
    dir: str | os.PathLike[str] | None = None,
    warn: Callable[[str], None] | None = None,
) -> RecordedRun:
    """Return the run with this path, id, beginning of an id, or name; without a text the newest run.

    If several runs match, return the newest one and call ``warn`` with a message.
    """
    if text and (os.sep in text or address_of(text) or Path(text).is_dir()):
        return open_run(text)
    root = address_of(dir or os.environ.get("STEPWELL_DIR")) or runs_dir(dir)
    runs = list_runs(root)
    if not runs:
        raise StepwellError(no_runs(root))
    matches = _matching(text, runs, root) if text else runs[:1]
    newest = matches[0]
    if len(matches) > 1 and warn is not None:
        warn(f"{len(matches)} runs are named {newest.name!r}; this is the newest, {newest.id}")
    check_format(newest.id, newest.document)
    return newest


def no_runs(root: str | os.PathLike[str]) -> str:
    """Return the error message for a folder without runs."""
    return (
        f"No runs in {_folder(root)}. Give the path of a run folder, use --dir, or set STEPWELL_DIR"
    )


def _matching(
    text: str, runs: list[RecordedRun], root: str | os.PathLike[str]
) -> list[RecordedRun]:
    """Return the run with this id, or all runs with this name, newest first."""
    matches = [run for run in runs if run.id == text] or [run for run in runs if run.name == text]
    if matches:
        return matches
    matches = [run for run in runs if run.id.startswith(text)]
    if len({run.name for run in matches}) > 1:
        raise StepwellError(
            f"{len(matches)} runs in {_folder(root)} begin with {text!r}: {_listed(matches)}"
        )
    if matches:
        return matches
    near = _similar(text, runs)
    hint = f"Did you mean {near!r}?" if near else "`stepwell ls` lists the runs"
    raise StepwellError(f"No run named {text!r} in {_folder(root)}. {hint}")


def _similar(text: str, runs: list[RecordedRun]) -> str | None:
    """Return the most similar name or id; None if none is similar."""
    words: dict[str, str] = {}
    for run in reversed(runs):
        words |= {run.id[: len(text)].lower(): run.id, run.id.lower(): run.id}
    words |= {run.name.lower(): run.name for run in runs}
    near = get_close_matches(text.lower(), words, 1, 0.7)
    return words[near[0]] if near else None


def _folder(root: str | os.PathLike[str]) -> str:
    return f"{os.fspath(root).rstrip(os.sep)}{os.sep}"


def _listed(runs: list[RecordedRun]) -> str:
    more = f" and {len(runs) - MOST_NAMED} more" if len(runs) > MOST_NAMED else ""
    return ", ".join(run.id for run in runs[:MOST_NAMED]) + more
