"""``stepwell ls``."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

from rich.table import Table

from stepwell.cli.drawing import console, plain
from stepwell.reading import list_runs


def show_list(root: Path, as_json: bool) -> None:
    """Print the runs below a folder."""
    runs = list_runs(root)
    if as_json:
        rows = [{"id": r.id, "name": r.name, "status": r.status, "path": str(r.path)} for r in runs]
        print(json.dumps(rows, indent=1))
        return
    if not runs:
        print(f"no runs in {root}: start one with stepwell.init(), or try `stepwell demo`")
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("started", "status", "run"):
        table.add_column(heading, no_wrap=True, overflow="fold")
    for run in runs:
        started = datetime.fromtimestamp(run.created_ns / 1e9) if run.created_ns else None
        when = f"{started:%Y-%m-%d %H:%M}" if started else "?"
        table.add_row(when, plain(run.status), plain(run.id))
    console().print(table)
