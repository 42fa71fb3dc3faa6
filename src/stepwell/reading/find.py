"""Finding a run by what a person types: a path, an id, the beginning of one, a name, or nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path

from stepwell.journal.errors import StepwellError
from stepwell.reading.remote import address_of
from stepwell.reading.run import RecordedRun, list_runs, open_run, runs_dir
from stepwell.reading.version import check_format

MOST_NAMED = 5


def find_run(
    text: str | None = None,
    dir: str | os.PathLike[str] | None = None,
    say: Callable[[str], None] | None = None,
) -> RecordedRun:
    """Return the run with this path, id, beginning of an id, or name; without one the newest run.

    Of several runs with that name it is the newest one, and ``say`` gets a sentence about it.
    """
    if text and (os.sep in text or address_of(text) or Path(text).is_dir()):
        return open_run(text)
    root = address_of(dir or os.environ.get("STEPWELL_DIR")) or runs_dir(dir)
    runs = list_runs(root)
    if not runs:
        raise StepwellError(no_runs(root))
    found = _matching(text, runs, root) if text else runs[:1]
    if len(found) > 1 and say is not None:
        say(f"{len(found)} runs are named {found[0].name!r}; this is the newest, {found[0].id}")
    check_format(found[0].id, found[0].about)
    return found[0]


def no_runs(root: str | os.PathLike[str]) -> str:
    """Return what to tell who looks for runs in a folder without any."""
    return (
        f"No runs in {_folder(root)}. Give the path of a run folder, use --dir, or set STEPWELL_DIR"
    )


def _matching(
    text: str, runs: list[RecordedRun], root: str | os.PathLike[str]
) -> list[RecordedRun]:
    """Return the run with this id, or all runs with this name, newest first."""
    found = [run for run in runs if run.id == text] or [run for run in runs if run.name == text]
    if found:
        return found
    found = [run for run in runs if run.id.startswith(text)]
    if len({run.name for run in found}) > 1:
        raise StepwellError(
            f"{len(found)} runs in {_folder(root)} begin with {text!r}: {_listed(found)}"
        )
    if found:
        return found
    near = _similar(text, runs)
    hint = f"Did you mean {near!r}?" if near else "`stepwell ls` lists the runs"
    raise StepwellError(f"No run named {text!r} in {_folder(root)}. {hint}")


def _similar(text: str, runs: list[RecordedRun]) -> str | None:
    """Return the name or id that looks most like this text."""
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
