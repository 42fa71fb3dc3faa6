"""``stepwell ls``."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from rich.table import Table

from stepwell.cli.drawing import console, plain
from stepwell.cli.output import print_json
from stepwell.cli.summary import COLOURS
from stepwell.cli.waiting import waiting
from stepwell.reading import RecordedRun, list_runs
from stepwell.reading.version import newer_format


def show_list(root: Path, as_json: bool) -> None:
    """Print the runs below a folder."""
    with waiting(f"reading {root}"):
        rows = [_row(run) for run in list_runs(root)]
    if as_json:
        print_json(rows)
        return
    if not rows:
        where = f"no runs in {root}" if root.is_dir() else f"there is no folder {root}"
        out = console()
        out.print(plain(f"{where}: start a run with stepwell.init(), or try `stepwell demo`"))
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("started", "status", "run"):
        table.add_column(heading, no_wrap=True, overflow="fold")
    for row in rows:
        status = plain(row["status"])
        status.stylize(COLOURS.get(row["status"], "yellow"))
        table.add_row(_when(row["created_ns"]), status, plain(row["id"]))
    console().print(table)


def _row(run: RecordedRun) -> dict[str, Any]:
    newer = newer_format(run.about)
    return {
        "id": run.id,
        "name": run.name,
        "status": run.status if newer is None else f"format {newer}",
        "created_ns": run.created_ns or None,
        "path": run.path,
    }


def _when(created_ns: int | None) -> str:
    return f"{datetime.fromtimestamp(created_ns / 1e9):%Y-%m-%d %H:%M}" if created_ns else "?"
