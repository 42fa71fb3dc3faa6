"""``stepwell ls``: a table of runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal, TypeVar

from rich.table import Table
from rich.text import Text

from stepwell._core.errors import StepwellError
from stepwell._core.text import number
from stepwell.analysis.run_list import RunFilter, RunLine, run_lines
from stepwell.cli.maintenance import parse_age
from stepwell.cli.output import print_json
from stepwell.cli.progress import waiting
from stepwell.cli.terminal import COLOURS, console, plain, seconds, table_console, wrapped

T = TypeVar("T", int, float)
GAP = 2


def wanted_runs(
    statuses: Sequence[str],
    tags: Sequence[str],
    name: str | None,
    since: str | None,
    most: int | None,
) -> RunFilter:
    """Return the filter that the options of the command describe."""
    if most is not None and most < 1:
        raise StepwellError(f"-n must be at least 1, got {most}")
    words = [status for text in statuses for status in text.split(",")]
    return RunFilter(tuple(words), tuple(tags), name, _since_ns(since), most)


def _since_ns(text: str | None) -> int | None:
    """Return the time given as an age such as 2d, or as a date."""
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


def show_list(root: Path, wanted: RunFilter, findings: bool, as_json: bool) -> None:
    """Print the runs in a folder."""
    with waiting(f"reading {root}"):
        lines = run_lines(root, wanted, findings)
    if as_json:
        print_json(lines)
        return
    if not lines:
        _print_none(root, wanted)
        return
    out = table_console()
    columns = _columns(lines, findings)
    # Only a terminal is too narrow: without tags, and without the year if it is this one, ids stay whole.
    if _width(columns) > out.width:
        columns.pop("tags", None)
    year = f"{datetime.now():%Y-}"
    if _width(columns) > out.width and all(c.plain.startswith(year) for c in columns["started"]):
        columns["started"] = [cell[len(year) :] for cell in columns["started"]]
    out.print(_table(columns))


def _print_none(root: Path, wanted: RunFilter) -> None:
    if root.is_dir() and wanted != RunFilter(most=wanted.most):
        text = f"No matching runs in {root}."
    else:
        where = f"No runs in {root}." if root.is_dir() else f"No folder {root}."
        text = f"{where} Start a run with stepwell.init(), or try `stepwell demo`."
    console().print(Text(wrapped(text, console().width)))


def _columns(lines: Sequence[RunLine], findings: bool) -> dict[str, list[Text]]:
    """Return the cells by column, without empty columns."""
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
    return {name: cells for name, cells in columns.items() if any(cell.plain for cell in cells)}


def _width(columns: dict[str, list[Text]]) -> int:
    widths = [max(len(name), *(cell.cell_len for cell in cells)) for name, cells in columns.items()]
    return sum(widths) + GAP * (len(widths) - 1)


def _table(columns: dict[str, list[Text]]) -> Table:
    table = Table.grid(padding=(0, GAP, 0, 0))
    for name in columns:
        is_number = name in ("duration", "step", "loss", "findings")
        justify: Literal["right", "left"] = "right" if is_number else "left"
        table.add_column(justify=justify, no_wrap=name not in ("tags", "run"), overflow="fold")
    table.add_row(*(Text(name, "bold") for name in columns))
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    return table


def _status(status: str) -> Text:
    text = plain(status)
    text.stylize(COLOURS.get(status, "yellow"))
    return text


def _shown(value: T | None, form: Callable[[T], str]) -> Text:
    return Text("" if value is None else form(value))


def _when(created_ns: int | None) -> str:
    return f"{datetime.fromtimestamp(created_ns / 1e9):%Y-%m-%d %H:%M}" if created_ns else "?"
