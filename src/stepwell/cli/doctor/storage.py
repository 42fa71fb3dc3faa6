"""Checks of the folder for runs (permissions, file system, space) and of a recorded run."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from stepwell._core.system import file_system
from stepwell._core.text import size
from stepwell.analysis.retention import undelivered_receivers
from stepwell.cli.doctor.check import Check
from stepwell.cli.terminal import counted
from stepwell.journal.segment import Segment
from stepwell.journal.spool import choose_spool
from stepwell.reading import RecordedRun
from stepwell.reading.process import process_folders

LEAST_SPACE = 1 << 30
LEAST_FILES = 10_000
MOST_SKEW = 2.0
"""Largest difference between the clocks of machine and file system, in seconds."""


def check_folder(runs: Path, environ: Mapping[str, str]) -> Iterator[Check]:
    """Try every operation that recording needs, in a temporary folder."""
    place = runs.absolute()
    while not place.exists():
        place = place.parent
    name = "runs folder"
    try:
        trial = Path(tempfile.mkdtemp(prefix=".stepwell-doctor-", dir=place))
    except OSError as error:
        advice = "choose another folder with STEPWELL_DIR or init(dir=…)"
        yield Check(name, "problem", f"{place} is not writable: {error.strerror}", advice)
        return
    try:
        note = "" if place == runs.absolute() else "; the first run creates it"
        yield Check(name, "ok", f"{runs.absolute()} is writable{note}")
        yield from _check_file_system(trial, environ)
        yield _check_mapping(trial)
        yield _check_time(trial)
    finally:
        shutil.rmtree(trial, ignore_errors=True)
    yield from _check_space(place)
    yield from check_permissions(place, name)


def _check_file_system(folder: Path, environ: Mapping[str, str]) -> Iterator[Check]:
    kind = file_system(folder) or "unknown"
    spool = choose_spool(folder, environ)
    if spool is None:
        yield Check("file system", "ok", kind)
        return
    text = f"{kind}; live files are in {spool.parent} and copied every second"
    if kind in ("tmpfs", "ramfs") or file_system(spool.parent) in ("tmpfs", "ramfs"):
        advice = "live files are in memory: set STEPWELL_SPOOL to a folder on a local disk"
        yield Check("file system", "note", text, advice)
    else:
        yield Check("file system", "ok", text)


def _check_mapping(folder: Path) -> Check:
    """Allocate, map and write a segment, like every recording thread."""
    try:
        segment = Segment(folder, "spans", 0)
        segment.words[0] = 1
        segment.unmap()
        is_kept = segment.path.read_bytes().count(b"\x01") == 1
    except OSError as error:
        advice = "set STEPWELL_SPOOL to a folder on a local disk"
        return Check("mapped files", "problem", str(error), advice)
    if not is_kept:
        advice = (
            "set STEPWELL_SPOOL to a folder on a local disk: this file system loses mapped pages"
        )
        return Check("mapped files", "problem", "a mapped page was not written to its file", advice)
    return Check("mapped files", "ok", "work")


def _check_time(folder: Path) -> Check:
    """Compare clocks: with a wrong server clock, runs look older or newer than they are."""
    (folder / "time").write_bytes(b"")
    skew = (folder / "time").stat().st_mtime - time.time()
    if abs(skew) <= MOST_SKEW:
        return Check("clock of the file system", "ok", "agrees with this machine")
    text = f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} this machine"
    return Check("clock of the file system", "note", text, "synchronise both clocks (NTP)")


def _check_space(folder: Path) -> Iterator[Check]:
    free = shutil.disk_usage(folder).free
    is_enough = free >= LEAST_SPACE
    advice = (
        "" if is_enough else "free some space: on a full disk, records are dropped (and counted)"
    )
    yield Check("space", "ok" if is_enough else "problem", f"{size(free)} free", advice)
    files = os.statvfs(folder).f_favail if hasattr(os, "statvfs") else 0
    # 0 means that the file system does not limit or report it.
    if 0 < files < LEAST_FILES:
        yield Check(
            "files", "problem", f"room for {files:,} more files", "remove runs with `stepwell gc`"
        )


def check_permissions(folder: Path, name: str) -> Iterator[Check]:
    """Report folders that every user may write: others could change recorded runs."""
    mode = folder.stat().st_mode
    is_shared_safely = bool(mode & stat.S_ISVTX)
    if mode & stat.S_IWOTH and not is_shared_safely:
        advice = f"chmod o-w {folder}"
        yield Check(name, "problem", f"{folder} is writable by all users", advice)


LIVE = ("*.live", "*.full")


def check_run(run: RecordedRun) -> Iterator[Check]:
    """Check the folder of a run, without changing it."""
    yield Check("run", "ok", f"{run.path}: {run.status}")
    yield from _check_owner(run)
    yield from check_permissions(run.path, "permissions")
    yield from _check_processes(run)
    yield from _check_delivery(run)


def _check_owner(run: RecordedRun) -> Iterator[Check]:
    owner = run.path.stat().st_uid
    if hasattr(os, "geteuid") and owner != os.geteuid():
        text = f"the folder belongs to user {owner}"
        yield Check("owner", "note", text, "before forwarding it, copy it and review the copy")


def _check_processes(run: RecordedRun) -> Iterator[Check]:
    """Check for dropped records and for segments that killed processes did not seal."""
    rows = run.processes().collect().to_dicts()
    dropped = sum(int(row["dropped"] or 0) for row in rows)
    if dropped:
        advice = "see `stepwell show`: the disk was full, or a limit was reached"
        yield Check("records", "note", f"{dropped:,} were dropped", advice)
    if run.status == "running":
        return
    open_files = [path for folder in process_folders(run.path) for path in _live(folder)]
    if open_files:
        text = f"{counted(len(open_files), 'segment')} of ended processes not sealed"
        yield Check("segments", "note", text, f"stepwell recover {run.path}")
    else:
        yield Check("segments", "ok", "all sealed")


def _live(folder: Path) -> Iterator[Path]:
    for pattern in LIVE:
        yield from folder.glob(pattern)


def _check_delivery(run: RecordedRun) -> Iterator[Check]:
    if run.status == "running":
        return
    for to in undelivered_receivers(run.path):
        text = f"{to} has not received all records"
        yield Check("delivery", "problem", text, f"stepwell forward {run.path} --to {to}")
