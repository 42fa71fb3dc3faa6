"""One run folder: complete, sealed, delivered?"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from stepwell.analysis.undelivered import undelivered
from stepwell.cli.doctor.check import Check
from stepwell.cli.doctor.folder import check_permissions
from stepwell.reading import RecordedRun
from stepwell.reading.process import process_folders

LIVE = ("*.live", "*.full")


def check_run(run: RecordedRun) -> Iterator[Check]:
    """What the folder of a run says; nothing in it is changed."""
    yield Check("run", "ok", f"{run.path}: {run.status}")
    yield from _check_owner(run)
    yield from check_permissions(run.path, "permissions")
    yield from _check_processes(run)
    yield from _check_delivery(run)


def _check_owner(run: RecordedRun) -> Iterator[Check]:
    owner = run.path.stat().st_uid
    if hasattr(os, "geteuid") and owner != os.geteuid():
        text = f"the folder belongs to user {owner}"
        yield Check("owner", "note", text, "forward a copy of your own, which you have looked at")


def _check_processes(run: RecordedRun) -> Iterator[Check]:
    """What was dropped, what went wrong inside, and what a killed process left open."""
    rows = run.processes().collect().to_dicts()
    dropped = sum(int(row["dropped"] or 0) for row in rows)
    if dropped:
        advice = "see `stepwell show`: the disk was full, or a limit was reached"
        yield Check("records", "note", f"{dropped:,} could not be kept", advice)
    if run.status == "running":
        return
    open_files = [path for folder in process_folders(run.path) for path in _live(folder)]
    if open_files:
        text = f"{len(open_files)} segments of processes that have ended are not sealed"
        yield Check("segments", "note", text, f"stepwell recover {run.path}")
    else:
        yield Check("segments", "ok", "all sealed")


def _live(folder: Path) -> Iterator[Path]:
    for pattern in LIVE:
        yield from folder.glob(pattern)


def _check_delivery(run: RecordedRun) -> Iterator[Check]:
    if run.status == "running":
        return
    for to in undelivered(run.path):
        text = f"{to} has not got everything"
        yield Check("delivery", "problem", text, f"stepwell forward {run.path} --to {to}")
