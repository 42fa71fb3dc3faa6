"""Retention: which runs may go, and removing them.

    for run in choose("runs", older_than_s=30 * 86400, statuses=["killed"]).goes:
        remove(run)

Never a run that is running, never a folder that is no run, and no link is followed. What a
tracker has not got yet, because it was down say, stays unless it is said that it may go.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from stepwell.analysis.disk import disk_bytes
from stepwell.analysis.undelivered import undelivered as not_delivered
from stepwell.journal.document import PROCESS, read_json
from stepwell.journal.errors import StepwellError
from stepwell.journal.liveness import ENDINGS, status_of
from stepwell.journal.spool import is_spool_of
from stepwell.journal.system import boot_id
from stepwell.reading import RecordedRun, list_runs
from stepwell.reading.process import process_folders
from stepwell.reading.run import RUN
from stepwell.reading.version import newer_format

STATUSES = (*ENDINGS, "empty")
PARTS = {"artifacts": ("artifacts/*",), "spans": ("*/spans-*.zst",)}
"""What of a run can go while the rest stays, and which of its files that is."""
QUIET_S = 600.0
"""One that seems dead on another machine, or has not begun, may merely be slow for so long."""


@dataclass(frozen=True)
class Candidate:
    """A run, and what is known of it for this purpose."""

    id: str
    name: str
    path: Path
    status: str
    ended_ns: int
    """When it last gave a sign of life."""
    bytes: int
    """What would be freed."""


@dataclass(frozen=True)
class Selection:
    """What would go. ``stays`` counts the others, ``spared`` says why some of them must stay."""

    goes: list[Candidate]
    stays: int
    spared: dict[str, str] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """What would be freed in all."""
        return sum(candidate.bytes for candidate in self.goes)


def choose(
    dir: str | os.PathLike[str] | None = None,
    *,
    older_than_s: float | None = None,
    keep: int | None = None,
    statuses: Sequence[str] = (),
    larger_than: int | None = None,
    names: Sequence[str] = (),
    only: str | None = None,
    undelivered: bool = False,
) -> Selection:
    """The runs below a folder for which all that is said holds, the oldest first.

    Args:
        dir: where run folders are; else ``STEPWELL_DIR``, else ``./runs``.
        older_than_s: whose last sign of life is older than so many seconds.
        keep: all but the so many newest of those that ``names`` are about.
        statuses: that ended so: finished, failed, interrupted, killed or empty.
        larger_than: that take more bytes than this.
        names: whose name or id is one of these, or matches one as a pattern.
        only: artifacts or spans: only these would go, and the rest of the run stay.
        undelivered: also those that have something for a tracker or collector that never got it.
    """
    _check(statuses, only, keep)
    spared: dict[str, str] = {}
    runs = [run for run in list_runs(dir) if _is_named(run, names)]
    old_ones = runs[keep or 0 :]
    goes = []
    for run in reversed(old_ones):
        why = _why_not(run)
        if why is not None:
            spared[run.id] = why
            continue
        found = _candidate(run, only)
        # A run that has none of what shall go is done with already.
        is_it = (
            (older_than_s is None or time.time_ns() - found.ended_ns > older_than_s * 1e9)
            and (larger_than is None or found.bytes > larger_than)
            and (not statuses or found.status in statuses)
            and (only is None or found.bytes > 0)
        )
        owed = [] if not is_it or undelivered else not_delivered(run.path)
        if owed:
            spared[run.id] = _owes(run, owed)
        elif is_it:
            goes.append(found)
    everything = len(runs) if not names else len(list_runs(dir))
    return Selection(goes, everything - len(goes), spared)


def remove(candidate: Candidate, only: str | None = None) -> None:
    """Remove a run, or a part of it. One that has come to life meanwhile raises ``StepwellError``.

    run.json goes last: what is left of a removal that was interrupted is a run, and goes the next time.
    """
    run = RecordedRun(candidate.path)
    why = _why_not(run)
    if why is not None:
        raise StepwellError(f"{candidate.id} was left alone: {why}")
    if only is not None:
        for path in _files(run.path, only):
            path.unlink()
        return
    for spool in _spools(run):
        shutil.rmtree(spool, ignore_errors=True)
        with contextlib.suppress(OSError):  # Others of the run may have theirs beside it.
            spool.parent.rmdir()
    for path in sorted(run.path.iterdir(), key=lambda path: path.name == RUN):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    run.path.rmdir()


def _check(statuses: Sequence[str], only: str | None, keep: int | None) -> None:
    wrong = [status for status in statuses if status not in STATUSES]
    if wrong:
        hint = ": a run that is running never goes" if wrong == ["running"] else ""
        raise StepwellError(f"the status {wrong[0]!r}{hint}: write one of {', '.join(STATUSES)}")
    if only is not None and only not in PARTS:
        raise StepwellError(f"only {only!r}: write one of {', '.join(PARTS)}")
    if keep is not None and keep < 0:
        raise StepwellError(f"keep {keep}: write how many of the newest runs stay")


def _is_named(run: RecordedRun, names: Sequence[str]) -> bool:
    return not names or any(
        fnmatchcase(word, pattern) for pattern in names for word in (run.id, run.name)
    )


def _why_not(run: RecordedRun) -> str | None:
    """Why a run must stay whatever is asked for; None: it may go."""
    if run.path.is_symlink():
        return "it is a link"
    if newer_format(run.about) is not None:
        return "a newer stepwell recorded it"
    if run.about.get("stepwell") is None and not process_folders(run.path):
        return "it is no run folder"
    documents = run.documents()
    if any(status_of(document) == "running" for document in documents):
        return "it is running"
    quiet_s = (time.time_ns() - _last_sign(run)) / 1e9
    elsewhere = any(d["status"] == "running" and d["boot"] != boot_id() for d in documents)
    if quiet_s < QUIET_S and (elsewhere or not documents):
        return "it may be running: it gave a sign of life a few minutes ago"
    return None


def _owes(run: RecordedRun, receivers: list[str]) -> str:
    return (
        f"{', '.join(receivers)} never got all of it. Send the rest with stepwell forward {run.id} "
        f"--to {receivers[0]}, or let it go with --undelivered"
    )


def _last_sign(run: RecordedRun) -> int:
    beats = [int(d.get("heartbeat") or 0) for d in run.documents()]
    if any(beats):
        return max(beats)
    with contextlib.suppress(OSError):
        return run.path.stat().st_mtime_ns
    return time.time_ns()


def _candidate(run: RecordedRun, only: str | None) -> Candidate:
    if only is None:
        freed = disk_bytes(run.path) + sum(map(disk_bytes, _spools(run)))
    else:
        freed = sum(path.lstat().st_blocks * 512 for path in _files(run.path, only))
    return Candidate(run.id, run.name, run.path, run.status, _last_sign(run), freed)


def _files(folder: Path, only: str) -> list[Path]:
    """The files of a part; none that a link leads to."""
    found = [path for pattern in PARTS[only] for path in folder.glob(pattern)]
    return [p for p in found if p.is_file() and not p.is_symlink() and not p.parent.is_symlink()]


def _spools(run: RecordedRun) -> list[Path]:
    """What killed processes left on the local disk of this machine."""
    found = []
    for folder in process_folders(run.path):
        about = read_json(folder / PROCESS) or {}
        spool = about.get("spool")
        if isinstance(spool, str) and about.get("boot") == boot_id():
            path = Path(spool)
            if is_spool_of(path, folder) and path.is_dir():
                found.append(path)
    return found
