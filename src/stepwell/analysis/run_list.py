"""The list of runs in a folder, one line each: duration, last step, last loss, number of findings.

Lines of runs that have ended are cached in the reader's cache folder, never in the run folder. So a folder
with a thousand runs is listed quickly the second time.
"""

from __future__ import annotations

import contextlib
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

from stepwell._core.errors import StepwellError
from stepwell._core.files import read_json, replacing
from stepwell.analysis.timeline import run_wall_ns
from stepwell.reading import RecordedRun, list_runs
from stepwell.reading.documents import newer_format
from stepwell.reading.remote import cache_folder
from stepwell.reading.run import SYSTEM, stamp_of
from stepwell.vocabulary import loss_names

FORMAT = 3
"""Version of the cached lines: a new number invalidates older ones."""


@dataclass(frozen=True)
class RunLine:
    """One run of a list. ``step`` is the last one; ``findings`` is None if they were not requested.

    For a run on object storage only the first six fields are set.
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
class RunFilter:
    """Which runs are listed: those that match all given conditions.

    Attributes:
        statuses: the status is one of these.
        tags: the run has all of these tags.
        name: a pattern such as ``bert*``.
        since_ns: the run began at this time or later.
        most: the maximum number of runs, newest first.
    """

    statuses: Sequence[str] = ()
    tags: Sequence[str] = ()
    name: str | None = None
    since_ns: int | None = None
    most: int | None = None


def run_lines(
    dir: str | os.PathLike[str], wanted: RunFilter, findings: bool = False
) -> list[RunLine]:
    """Return the runs below a folder, newest first.

    With ``findings``, count the findings of each run, which takes as long as a report of each.
    """
    lines: list[RunLine] = []
    for run in list_runs(dir):
        if wanted.most is not None and len(lines) >= wanted.most:
            break
        if not _is_wanted(run, wanted):
            continue
        newer = newer_format(run.document)
        status = run.status if newer is None else f"format {newer}"
        if wanted.statuses and status not in wanted.statuses:
            continue
        line = RunLine(run.id, run.name, status, run.created_ns or None, run.place, run.tags)
        # The details of a run on object storage would have to be downloaded.
        is_bare = newer is not None or run.mirror is not None
        lines.append(line if is_bare else _with_details(line, run, findings))
    return lines


def _is_wanted(run: RecordedRun, wanted: RunFilter) -> bool:
    if wanted.name is not None and not fnmatchcase(run.name, wanted.name):
        return False
    if wanted.since_ns is not None and run.created_ns < wanted.since_ns:
        return False
    return set(wanted.tags) <= set(run.tags)


def _with_details(line: RunLine, run: RecordedRun, findings: bool) -> RunLine:
    details = cached_details(run) if line.status != "running" else {}
    try:
        if "duration_s" not in details:
            details |= run_details(run)
        if findings and details.get("findings") is None:
            details["findings"] = _count_findings(run)
    except (StepwellError, OSError, pl.exceptions.PolarsError):
        # A damaged run is listed without details.
        return line
    if line.status != "running":
        keep_details(run, details)
    shown = {key: details.get(key) for key in ("duration_s", "step", "loss_name", "loss")}
    return RunLine(
        **{**asdict(line), **shown, "findings": details["findings"] if findings else None}
    )


def run_details(run: RecordedRun) -> dict[str, Any]:
    """Return duration, last step and last loss of a run."""
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
    # The mean of the ranks that logged it at the last step, as in the report.
    last = loss.group_by("rank").last().filter(pl.col("step").eq_missing(pl.col("step").max()))
    wall = run_wall_ns(run)
    return {
        "duration_s": None if wall is None else wall / 1e9,
        "step": latest["step"].max(),
        "loss_name": name,
        "loss": last["value"].mean(),
    }


def _count_findings(run: RecordedRun) -> int:
    from stepwell.analysis.findings import Facts, findings

    return len(findings(Facts(run)))


# The cache


def cached_details(run: RecordedRun) -> dict[str, Any]:
    """Return the cached details of a run; {} if there are none, or the run has changed since."""
    entry = read_json(_place(run)) or {}
    details = entry.get("line")
    if not isinstance(details, dict) or entry.get("stamp") != _stamp(run):
        return {}
    return details


def keep_details(run: RecordedRun, details: dict[str, Any]) -> None:
    """Cache the details of a run that has ended."""
    place = _place(run)
    content = json.dumps({"stamp": _stamp(run), "line": details})
    # The list is complete without its cache: an unwritable cache folder is not an error.
    with contextlib.suppress(OSError):
        if read_json(place) != json.loads(content):
            place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with replacing(place) as beside:
                beside.touch(mode=0o600)
                beside.write_text(content)


def _place(run: RecordedRun) -> Path:
    digest = sha256(str(run.folder.absolute()).encode("utf-8", "replace")).hexdigest()[:32]
    return cache_folder("lists") / f"{digest}.json"


def _stamp(run: RecordedRun) -> list[Any]:
    return [FORMAT, _version(), *stamp_of(run)]


@cache
def _version() -> str:
    """Return the version of stepwell: another version may have other rules."""
    return importlib.metadata.version("stepwell")
