"""Retention: select runs and remove them.

    for run in choose("runs", older_than_s=30 * 86400, statuses=["killed"]).goes:
        remove(run)

Running runs, folders that are not runs, and symbolic links are never touched. A run with records that a
tracker has not received, for example because it was down, stays unless ``undelivered`` is set.
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

from stepwell._core.checks import COUNT, one_of
from stepwell._core.errors import StepwellError
from stepwell._core.files import read_json
from stepwell._core.system import boot_id
from stepwell.analysis.recording_cost import disk_bytes
from stepwell.follower.log import registered_receivers
from stepwell.journal.document import ENDINGS, is_spool_of, status_of
from stepwell.journal.format import PROCESS
from stepwell.reading import RecordedRun, list_runs
from stepwell.reading.documents import newer_format
from stepwell.reading.process import process_folders
from stepwell.reading.run import RUN

STATUSES = (*ENDINGS, "empty")
PARTS = {"artifacts": ("artifacts/*",), "spans": ("*/spans-*.zst",)}
"""Parts of a run that can be removed separately, with patterns of their files."""
NOTES = "*.undelivered.json"
QUIET_S = 600.0
"""Seconds after which a run counts as ended that is silent on another machine, or has no process yet."""


@dataclass(frozen=True)
class RemovalCandidate:
    """A run that may be removed."""

    id: str
    name: str
    path: Path
    status: str
    ended_ns: int
    """Its last sign of life."""
    bytes: int
    """Bytes that removing it frees."""


@dataclass(frozen=True)
class Selection:
    """The runs to remove. ``stays`` counts the others; ``spared`` says why some of them must stay."""

    goes: list[RemovalCandidate]
    stays: int
    spared: dict[str, str] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Bytes that removing all of them frees."""
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
    """Return the runs below a folder that match all given conditions, the oldest first.

    Args:
        dir: the folder of the runs; default ``STEPWELL_DIR``, else ``./runs``.
        older_than_s: the last sign of life is older than this many seconds.
        keep: number of newest runs to keep, among those that match ``names``.
        statuses: the status is one of these: finished, failed, interrupted, killed or empty.
        larger_than: the run takes more bytes than this.
        names: the name or id matches one of these patterns.
        only: ``artifacts`` or ``spans``: remove only these and keep the rest of the run.
        undelivered: include runs with records that a tracker or collector has not received.
    """
    _check(statuses, only, keep)
    spared: dict[str, str] = {}
    runs = [run for run in list_runs(dir) if _is_named(run, names)]
    old_ones = runs[keep or 0 :]
    goes = []
    for run in reversed(old_ones):
        reason = _why_not(run)
        if reason is not None:
            spared[run.id] = reason
            continue
        candidate = _candidate(run, only)
        # A run without files of the given part needs no removal.
        is_it = (
            (older_than_s is None or time.time_ns() - candidate.ended_ns > older_than_s * 1e9)
            and (larger_than is None or candidate.bytes > larger_than)
            and (not statuses or candidate.status in statuses)
            and (only is None or candidate.bytes > 0)
        )
        owed = [] if not is_it or undelivered else undelivered_receivers(run.path)
        if owed:
            spared[run.id] = _owes(run, owed)
        elif is_it:
            goes.append(candidate)
    everything = len(runs) if not names else len(list_runs(dir))
    return Selection(goes, everything - len(goes), spared)


def remove(candidate: RemovalCandidate, only: str | None = None) -> None:
    """Remove a run, or a part of it. Raise StepwellError if it has been resumed in the meantime.

    run.json is removed last: after an interrupted removal the rest is still a run, and can be removed again.
    """
    run = RecordedRun(candidate.path)
    reason = _why_not(run)
    if reason is not None:
        raise StepwellError(f"{candidate.id} was not removed: {reason}")
    if only is not None:
        for path in _files(run.path, only):
            path.unlink()
        return
    for spool in _spools(run):
        shutil.rmtree(spool, ignore_errors=True)
        # The folder is not empty if other processes of the run have spools there.
        with contextlib.suppress(OSError):
            spool.parent.rmdir()
    for path in sorted(run.path.iterdir(), key=lambda path: path.name == RUN):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    run.path.rmdir()


def _check(statuses: Sequence[str], only: str | None, keep: int | None) -> None:
    kind = one_of(*STATUSES)
    if "running" in statuses:
        raise StepwellError(f"status must be {kind.wanted}: running runs are never removed")
    for status in statuses:
        kind.check("status", status)
    one_of(*PARTS).or_none("only", only)
    COUNT.or_none("keep", keep)


def _is_named(run: RecordedRun, names: Sequence[str]) -> bool:
    return not names or any(
        fnmatchcase(word, pattern) for pattern in names for word in (run.id, run.name)
    )


def _why_not(run: RecordedRun) -> str | None:
    """Return why a run must stay in any case; None if it may be removed."""
    if run.path.is_symlink():
        return "it is a link"
    if newer_format(run.document) is not None:
        return "a newer stepwell recorded it"
    if run.document.get("stepwell") is None and not process_folders(run.path):
        return "it is not a run folder"
    documents = run.documents()
    if any(status_of(document) == "running" for document in documents):
        return "it is running"
    quiet_s = (time.time_ns() - _last_sign(run)) / 1e9
    elsewhere = any(d["status"] == "running" and d["boot"] != boot_id() for d in documents)
    if quiet_s < QUIET_S and (elsewhere or not documents):
        return "it may be running: its last sign of life is only minutes old"
    return None


def _owes(run: RecordedRun, receivers: list[str]) -> str:
    return (
        f"part of it was not delivered to {', '.join(receivers)}. Send the rest with "
        f"`stepwell forward {run.id} --to {receivers[0]}`, or remove it with --undelivered"
    )


def _last_sign(run: RecordedRun) -> int:
    beats = [int(d.get("heartbeat") or 0) for d in run.documents()]
    if any(beats):
        return max(beats)
    with contextlib.suppress(OSError):
        return run.path.stat().st_mtime_ns
    return time.time_ns()


def _candidate(run: RecordedRun, only: str | None) -> RemovalCandidate:
    if only is None:
        freed = disk_bytes(run.path) + sum(map(disk_bytes, _spools(run)))
    else:
        freed = sum(path.lstat().st_blocks * 512 for path in _files(run.path, only))
    return RemovalCandidate(run.id, run.name, run.path, run.status, _last_sign(run), freed)


def _files(folder: Path, only: str) -> list[Path]:
    """Return the files of a part, without those behind links."""
    paths = [path for pattern in PARTS[only] for path in folder.glob(pattern)]
    return [p for p in paths if p.is_file() and not p.is_symlink() and not p.parent.is_symlink()]


def _spools(run: RecordedRun) -> list[Path]:
    """Return the spools that killed processes left on the local disk of this machine."""
    spools = []
    for folder in process_folders(run.path):
        document = read_json(folder / PROCESS) or {}
        spool = document.get("spool")
        if isinstance(spool, str) and document.get("boot") == boot_id():
            path = Path(spool)
            if is_spool_of(path, folder) and path.is_dir():
                spools.append(path)
    return spools


def undelivered_receivers(run: Path) -> list[str]:
    """Return the trackers and collectors that have not received all records of a run: ``["mlflow"]``.

    A completed delivery writes a state file (``delivery-<name>-<number>.json``); one that was given up leaves
    a note (``….undelivered.json``). A logger with neither was cut off, for example by a crash of its machine.
    """
    receivers: dict[str, None] = {}
    for folder in process_folders(run):
        for note in sorted(folder.glob(NOTES)):
            receivers[str((read_json(note) or {}).get("exporter") or note.name)] = None
        for number, to in registered_receivers(folder).items():
            if not _is_complete(folder, number):
                receivers[to] = None
    return list(receivers)


def _is_complete(folder: Path, number: int) -> bool:
    """Return whether the final status was delivered for this logger, which is always sent last."""
    kept = [read_json(path) or {} for path in folder.glob(f"delivery-*-{number}.json")]
    return any(state.get("status_delivered") is not None for state in kept)
