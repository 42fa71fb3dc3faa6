"""The runs of a folder, one line each: how long, how far, the last loss and the number of findings.

Lines of runs that have ended are kept in the reader's own cache, never in the run folder: a folder of a
thousand runs is listed at once the second time.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import polars as pl

from stepwell.analysis.overview import wall_seconds
from stepwell.journal.document import PROCESS, read_json
from stepwell.journal.errors import StepwellError
from stepwell.reading import RecordedRun, list_runs
from stepwell.reading.process import process_folders
from stepwell.reading.remote import cache_folder
from stepwell.reading.run import RUN, SYSTEM
from stepwell.reading.version import newer_format
from stepwell.vocabulary import loss_names

FORMAT = 3
"""Of a line in the cache: another number makes earlier ones void."""
NEVER = -1


@dataclass(frozen=True)
class RunLine:
    """One run of a list. ``step`` is the last one, ``findings`` is None when they were not asked for.

    Of a run on object storage only the first six are known.
    """

    id: str
    name: str
    status: str
    created_ns: int | None
    path: str
    tags: list[str]
    duration_s: float | None = None
    step: int | None = None
    loss_name: str | None = None
    loss: float | None = None
    findings: int | None = None


@dataclass(frozen=True)
class Wanted:
    """Which runs are listed: all conditions that are given hold.

    ``name`` is a pattern such as ``bert*``; ``tags`` are all there; ``since_ns`` is when a run began at the
    earliest; ``most`` bounds how many there are, newest first.
    """

    statuses: Sequence[str] = ()
    tags: Sequence[str] = ()
    name: str | None = None
    since_ns: int | None = None
    most: int | None = None


def run_lines(dir: str | os.PathLike[str], wanted: Wanted, findings: bool = False) -> list[RunLine]:
    """Return the runs below a folder, newest first.

    ``findings`` counts them too, which takes as long as a report of each run.
    """
    lines: list[RunLine] = []
    for run in list_runs(dir):
        if wanted.most is not None and len(lines) >= wanted.most:
            break
        if not _is_wanted(run, wanted):
            continue
        newer = newer_format(run.about)
        status = run.status if newer is None else f"format {newer}"
        if wanted.statuses and status not in wanted.statuses:
            continue
        line = RunLine(run.id, run.name, status, run.created_ns or None, run.place, run.tags)
        # Of a run on object storage they would have to be fetched first.
        is_bare = newer is not None or run.mirror is not None
        lines.append(line if is_bare else _with_details(line, run, findings))
    return lines


def _is_wanted(run: RecordedRun, wanted: Wanted) -> bool:
    if wanted.name is not None and not fnmatchcase(run.name, wanted.name):
        return False
    if wanted.since_ns is not None and run.created_ns < wanted.since_ns:
        return False
    return set(wanted.tags) <= set(run.tags)


def _with_details(line: RunLine, run: RecordedRun, findings: bool) -> RunLine:
    known = _cached(run) if line.status != "running" else {}
    try:
        if "duration_s" not in known:
            known |= _details(run)
        if findings and known.get("findings") is None:
            known["findings"] = _count_findings(run)
    except (StepwellError, OSError, pl.exceptions.PolarsError):
        # A damaged run is listed without them.
        return line
    if line.status != "running":
        _keep(run, known)
    shown = {key: known.get(key) for key in ("duration_s", "step", "loss_name", "loss")}
    return RunLine(**{**asdict(line), **shown, "findings": known["findings"] if findings else None})


def _details(run: RecordedRun) -> dict[str, Any]:
    processes = run.processes().collect().filter(pl.col("role") != "worker")
    latest = processes.filter(pl.col("attempt") == pl.col("attempt").max())
    metrics = (
        run.metrics()
        .filter(~pl.col("name").str.starts_with(SYSTEM))
        .select("name", "attempt", "rank", "step", "time_ns", "value")
        .collect()
    )
    name = next(iter(loss_names(metrics["name"].unique())), None)
    loss = metrics.filter(pl.col("name") == (name or "")).sort("step", "time_ns")
    # The mean of the ranks, as in the report: of those that logged it at the last step.
    last = loss.group_by("rank").last().filter(pl.col("step").eq_missing(pl.col("step").max()))
    return {
        # Heartbeats are seconds apart: of a killed run the last value may be later.
        "duration_s": wall_seconds(processes, metrics.select(pl.col("time_ns").max()).item()),
        "step": latest["step"].max(),
        "loss_name": name,
        "loss": last["value"].mean(),
    }


def _count_findings(run: RecordedRun) -> int:
    from stepwell.analysis.findings import Facts, findings

    return len(findings(Facts(run)))


# The cache


def _cached(run: RecordedRun) -> dict[str, Any]:
    found = read_json(_place(run)) or {}
    return dict(found["line"]) if found.get("stamp") == _stamp(run) else {}


def _keep(run: RecordedRun, line: dict[str, Any]) -> None:
    place = _place(run)
    content = json.dumps({"stamp": _stamp(run), "line": line})
    beside = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        if read_json(place) != json.loads(content):
            place.parent.mkdir(parents=True, exist_ok=True)
            beside.write_text(content)
            os.replace(beside, place)
    except OSError:
        return


def _place(run: RecordedRun) -> Path:
    digest = sha256(str(run.folder.absolute()).encode("utf-8", "replace")).hexdigest()[:32]
    return cache_folder("lists") / f"{digest}.json"


def _stamp(run: RecordedRun) -> list[Any]:
    """Return what changes when the run does: when its documents were last written."""
    paths = [run.folder / RUN, *(folder / PROCESS for folder in process_folders(run.folder))]
    return [FORMAT, _version(), *map(_changed_ns, paths)]


@cache
def _version() -> str:
    """Return the version of stepwell: other rules find other things."""
    return importlib.metadata.version("stepwell")


def _changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return NEVER
