"""The folder that runs go to: can it be written, does its file system do what is needed, is there space?"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from stepwell.cli.doctor.check import Check
from stepwell.cli.drawing import size
from stepwell.journal.segment import Segment
from stepwell.journal.spool import choose_spool
from stepwell.journal.system import file_system

LEAST_SPACE = 1 << 30
LEAST_FILES = 10_000
MOST_SKEW = 2.0
"""Seconds between this machine's clock and that of the file system."""


def check_folder(runs: Path, environ: Mapping[str, str]) -> Iterator[Check]:
    """Try everything that recording does, in a folder of its own that is removed afterwards."""
    place = runs.absolute()
    while not place.exists():
        place = place.parent
    name = "runs folder"
    try:
        trial = Path(tempfile.mkdtemp(prefix=".stepwell-doctor-", dir=place))
    except OSError as error:
        advice = "say where runs may go: STEPWELL_DIR, or init(dir=…)"
        yield Check(name, "problem", f"{place} cannot be written: {error.strerror}", advice)
        return
    try:
        made = "" if place == runs.absolute() else ", made by the first run"
        yield Check(name, "ok", f"{runs.absolute()} can be written{made}")
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
        advice = "they are in memory: set STEPWELL_SPOOL to a folder on a local disk"
        yield Check("file system", "note", text, advice)
    else:
        yield Check("file system", "ok", text)


def _check_mapping(folder: Path) -> Check:
    """Allocate, map and write a segment, as each thread that records does."""
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
        return Check("mapped files", "problem", "a mapped page is not in its file", advice)
    return Check("mapped files", "ok", "work")


def _check_time(folder: Path) -> Check:
    """A server's clock that differs makes runs look older or newer than they are."""
    (folder / "time").write_bytes(b"")
    skew = (folder / "time").stat().st_mtime - time.time()
    if abs(skew) <= MOST_SKEW:
        return Check("clock of the file system", "ok", "agrees with this machine")
    text = f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} this machine"
    return Check("clock of the file system", "note", text, "synchronise both clocks (NTP)")


def _check_space(folder: Path) -> Iterator[Check]:
    free = shutil.disk_usage(folder).free
    is_enough = free >= LEAST_SPACE
    advice = "" if is_enough else "make room: what finds no room is dropped and counted"
    yield Check("space", "ok" if is_enough else "problem", f"{size(free)} free", advice)
    files = os.statvfs(folder).f_favail if hasattr(os, "statvfs") else 0
    # Some file systems have no such number, and say 0.
    if 0 < files < LEAST_FILES:
        yield Check(
            "files", "problem", f"{files:,} more can be made", "remove files: `stepwell gc`"
        )


def check_permissions(folder: Path, name: str) -> Iterator[Check]:
    """Who else may write here could change what a run says."""
    mode = folder.stat().st_mode
    is_shared_safely = bool(mode & stat.S_ISVTX)
    if mode & stat.S_IWOTH and not is_shared_safely:
        advice = f"chmod o-w {folder}"
        yield Check(name, "problem", f"{folder} can be written by everybody", advice)
