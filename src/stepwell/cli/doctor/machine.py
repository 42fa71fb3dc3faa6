"""What the system allows a training process, and its clock."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from stepwell.cli.doctor.check import Check
from stepwell.cli.drawing import size
from stepwell.journal.format import SIZES

LEAST_DESCRIPTORS = 256
LEAST_PROCESSES = 64
SHARED = Path("/dev/shm")
LEAST_SHARED = 1 << 30
EARLIEST = 1_700_000_000
"""Seconds since the epoch: a clock that says less is wrong."""


def check_machine() -> Iterator[Check]:
    """Limits, shared memory and the clock."""
    if sys.platform != "win32":
        yield from _check_limits()
    if SHARED.is_dir():
        yield _check_shared_memory()
    yield check_clock(time.time())


def _check_limits() -> Iterator[Check]:
    import resource

    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    yield check_limit(
        "open files",
        files,
        LEAST_DESCRIPTORS,
        "raise it with `ulimit -n 4096`: data loaders need many",
    )
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    yield check_limit(
        "processes", processes, LEAST_PROCESSES, "raise it with `ulimit -u`: threads count too"
    )
    largest = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    need = max(SIZES.values())
    yield check_limit(
        "file size",
        largest,
        need,
        f"raise it with `ulimit -f`: recording needs files of {size(need)}",
    )


def check_limit(name: str, limit: int, least: int, advice: str) -> Check:
    """Whether a limit of the process is high enough; negative: there is none."""
    if limit < 0:
        return Check(name, "ok", "no limit")
    if limit >= least:
        return Check(name, "ok", f"limit {limit:,}")
    return Check(name, "problem", f"limit {limit:,}", advice)


def _check_shared_memory() -> Check:
    total = shutil.disk_usage(SHARED).total
    text = f"{size(total)} in {SHARED}"
    if total >= LEAST_SHARED:
        return Check("shared memory", "ok", text)
    advice = "DataLoader workers may die of a bus error: start the container with --shm-size=8g"
    return Check("shared memory", "note", text, advice)


def check_clock(now: float) -> Check:
    """Whether a time can be right, in seconds since the epoch."""
    text = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < EARLIEST:
        return Check("clock", "problem", text, "set the clock: the times of runs would be wrong")
    return Check("clock", "ok", text)
