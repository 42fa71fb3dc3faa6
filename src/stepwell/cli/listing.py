"""``stepwell ls``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from rich.table import Table
from rich.text import Text

from stepwell.analysis.run_list import RunLine, Wanted, run_lines
from stepwell.cli.drawing import console, plain, seconds, table_console
from stepwell.cli.output import print_json
from stepwell.cli.removing import parse_age
from stepwell.cli.summary import COLOURS
from stepwell.cli.waiting import waiting
from stepwell.journal.errors import StepwellError
from stepwell.journal.text import number


def wanted_runs(
    statuses: Sequence[str],
    tags: Sequence[str],
    name: str | None,
    since: str | None,
    most: int | None,
) -> Wanted:
    """Return which runs to list, from the options of the command."""
    if most is not None and most < 1:
        raise StepwellError(f"-n must be at least 1, got {most}")
    words = [status for text in statuses for status in text.split(",")]
    return Wanted(tuple(words), tuple(tags), name, _since_ns(since), most)


def _since_ns(text: str | None) -> int | None:
    """Return the time that is meant by an age such as 2d, or by a date."""
    if text is None:
        return None
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1e9)
    except ValueError:
        pass
    try:
        return time.time_ns() - round((parse_age(text) or 0.0) * 1e9)
    except StepwellError:
        raise StepwellError(
            f"--since must be an age such as 12h or 2d, or a date such as 2026-11-16, got {text!r}"
        ) from None


def show_list(root: Path, wanted: Wanted, findings: bool, as_json: bool) -> None:
    """Print the runs below a folder."""
    with waiting(f"reading {root}"):
        lines = run_lines(root, wanted, findings)
    if as_json:
        print_json(lines)
        return
    if not lines:
        _print_none(root, wanted)
        return
    table_console().print(_table(lines, findings))


def _print_none(root: Path, wanted: Wanted) -> None:
    where = f"no runs in {root}" if root.is_dir() else f"there is no folder {root}"
    if root.is_dir() and wanted != Wanted(most=wanted.most):
        console().print(plain(f"no such runs in {root}"))
        return
    console().print(plain(f"{where}: start a run with stepwell.init(), or try `stepwell demo`"))


def _table(lines: Sequence[RunLine], findings: bool) -> Table:
    """Columns that no run has a value for are left out."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    columns: dict[str, list[Text]] = {
        "started": [plain(_when(line.created_ns)) for line in lines],
        "status": [_status(line.status) for line in lines],
        "duration": [_shown(line.duration_s, seconds) for line in lines],
        "step": [_shown(line.step, str) for line in lines],
        "loss": [_shown(line.loss, number) for line in lines],
        "findings": [_shown(line.findings, str) for line in lines] if findings else [],
        "tags": [plain(", ".join(line.tags)) for line in lines],
        "run": [plain(line.id) for line in lines],
    }
    kept = {name: cells for name, cells in columns.items() if any(cell.plain for cell in cells)}
    for name in kept:
        is_number = name in ("duration", "step", "loss", "findings")
        table.add_column(
            name, no_wrap=name != "tags", overflow="fold", justify="right" if is_number else "left"
        )
    for row in zip(*kept.values(), strict=True):
        table.add_row(*row)
    return table


def _status(status: str) -> Text:
    text = plain(status)
    text.stylize(COLOURS.get(status, "yellow"))
    return text


def _shown(value: float | None, form: object) -> Text:
    return Text("" if value is None or not callable(form) else str(form(value)))


def _when(created_ns: int | None) -> str:
    return f"{datetime.fromtimestamp(created_ns / 1e9):%Y-%m-%d %H:%M}" if created_ns else "?"
