"""``stepwell gc``: removes runs; ``stepwell recover``: seals files of killed processes."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from stepwell._core.errors import StepwellError
from stepwell._core.text import size
from stepwell.analysis.retention import RemovalCandidate, Selection, choose, remove
from stepwell.cli.output import complain, print_json
from stepwell.cli.progress import ProgressBar, waiting
from stepwell.cli.terminal import console, counted, plain, table_console, wrapped
from stepwell.journal.recovery import Recovery, recover_process
from stepwell.reading import RecordedRun
from stepwell.reading.process import process_folders

UNITS_S = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
UNITS_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True)
class GcOptions:
    """The filters of ``stepwell gc`` as typed."""

    older_than: str | None
    keep: int | None
    status: list[str]
    larger_than: str | None
    name: list[str]
    only: str | None
    undelivered: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there is no filter."""
        filters = (self.older_than, self.larger_than, self.keep)
        return all(value is None for value in filters) and not self.status and not self.name


def clean_up(root: Path, options: GcOptions, yes: bool, as_json: bool) -> int:
    """List matching runs, and remove them if ``yes``. Return the exit code."""
    if options.is_empty:
        raise StepwellError(
            "give at least one filter: --older-than 30d, --keep 20, --status killed, --larger-than 10G "
            "or --name 'try-*'. Runs that match all filters are listed; --yes removes them"
        )
    with waiting("measuring runs"):
        selection = choose(
            root,
            older_than_s=parse_age(options.older_than),
            keep=options.keep,
            statuses=[s for text in options.status for s in text.split(",")],
            larger_than=parse_size(options.larger_than),
            names=options.name,
            only=options.only,
            undelivered=options.undelivered,
        )
    failed = _remove_all(selection, options.only) if yes else {}
    if as_json:
        print_json(_as_json(root, selection, yes, failed))
    else:
        _print(root, selection, options.only, yes, failed)
    for text in failed.values():
        complain(text)
    return int(bool(failed))


def _remove_all(selection: Selection, only: str | None) -> dict[str, str]:
    """Remove the selected runs. Return the runs that could not be removed, and why."""
    failed = {}
    with ProgressBar("removing") as bar:
        for number, candidate in enumerate(selection.goes):
            bar.update(number, len(selection.goes), candidate.id)
            try:
                remove(candidate, only)
            except (StepwellError, OSError) as error:
                failed[candidate.id] = str(error)
    return failed


def _print(
    root: Path, selection: Selection, only: str | None, yes: bool, failed: dict[str, str]
) -> None:
    out = console()
    goes = [candidate for candidate in selection.goes if candidate.id not in failed]
    if goes:
        table_console().print(_table(goes))
        out.print()
    what = counted(len(goes), "run")
    if only is not None and goes:
        what = f"the {only} of {what}"
    freed = size(sum(candidate.bytes for candidate in goes))
    if not goes:
        text = f"Nothing to remove in {root}."
    else:
        text = f"Removed {what} ({freed})." if yes else f"Would remove {what} ({freed})."
    text += f" {counted(selection.stays + len(failed), 'run')} kept."
    if goes and not yes:
        text += " To remove, add --yes."
    out.print(Text(wrapped(text, out.width)))
    for identity, why in selection.spared.items():
        out.print(Text(wrapped(f"{identity} is kept: {why}", out.width, indent="  ")))


def _table(goes: list[RemovalCandidate]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("last seen", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("run", overflow="fold")
    for run in goes:
        age = age_of((time.time_ns() - run.ended_ns) / 1e9)
        table.add_row(f"{age} ago", plain(run.status), size(run.bytes), plain(run.id))
    return table


def age_of(seconds: float) -> str:
    """Return an approximate age: 3 days, 5 h, 12 min."""
    for unit, word in (("d", "days"), ("h", "h"), ("min", "min")):
        if seconds >= 2 * UNITS_S[unit]:
            return f"{seconds / UNITS_S[unit]:.0f} {word}"
    return f"{max(0, seconds):.0f} s"


def _as_json(root: Path, selection: Selection, yes: bool, failed: dict[str, str]) -> dict[str, Any]:
    return {
        "dir": root,
        "removed": yes,
        "bytes": sum(run.bytes for run in selection.goes if run.id not in failed),
        "runs": [run for run in selection.goes if run.id not in failed],
        "stays": selection.stays + len(failed),
        "spared": selection.spared,
        "failed": failed,
    }


def parse_age(text: str | None) -> float | None:
    """Return the seconds of ``30d``, ``12h``, ``90min`` or ``2w``."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|h|d|w)", text.strip())
    if match is None:
        raise StepwellError(
            f"--older-than must be an age such as 30d, 12h, 90min or 2w, got {text!r}"
        )
    return float(match[1]) * UNITS_S[match[2]]


def parse_size(text: str | None) -> int | None:
    """Return the bytes of ``500M``, ``10G`` or a plain number."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise StepwellError(f"--larger-than must be a size such as 500M or 10G, got {text!r}")
    return int(float(match[1]) * UNITS_BYTES[match[2].upper()])


def recover_run(run: RecordedRun, as_json: bool = False) -> None:
    """Recover each process of a run, and print the results."""
    folders = process_folders(run.path)
    done = []
    with ProgressBar(f"recovering {run.id}") as bar:
        for number, folder in enumerate(folders):
            bar.update(number, len(folders))
            done.append(recover_process(folder))
    if as_json:
        print_json({"run": run.id, "processes": done})
        return
    for result in done:
        _print_recovery(run, result)
    if not any(result.outcome == "recovered" for result in done):
        print("Nothing to recover.")


def _print_recovery(run: RecordedRun, result: Recovery) -> None:
    if result.outcome == "recovered":
        print(f"{result.process}: sealed {counted(result.segments, 'segment')}")
    elif result.outcome == "alive":
        print(f"{result.process}: still running, not changed")
    elif result.outcome == "elsewhere":
        print(
            f"{result.process}: its spool is on {result.host}; "
            f"run `stepwell recover {run.path}` there"
        )
