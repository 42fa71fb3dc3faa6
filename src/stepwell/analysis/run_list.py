"""The runs of a folder: a line of each for ``stepwell ls``, and an entry with all that the dashboard shows.

Entries of runs that have ended are cached in the reader's cache folder, never in the run folder. So a folder
with a thousand runs is listed quickly the second time. What only new entries need is imported when needed.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stepwell._core.errors import StepwellError
from stepwell._core.files import open_file
from stepwell.analysis.cache import memory, shelf_path, store_json, stored_json
from stepwell.analysis.timeline import run_wall_ns
from stepwell.journal.format import EVENTS, NAMES, PROCESS
from stepwell.reading import RecordedRun, list_runs
from stepwell.reading.documents import clean, newer_format
from stepwell.reading.process import process_folders, read_document
from stepwell.reading.run import SYSTEM, joint_status, stamp_of
from stepwell.reading.segments import LIVE
from stepwell.vocabulary import loss_names

if TYPE_CHECKING:
    from stepwell.analysis.findings import Facts, Finding

FORMAT = 5
"""Version of cached entries: a new number invalidates older ones."""
TEXTS = (PROCESS, EVENTS, NAMES)
RECORDS = ("zst", *LIVE)
"""Names and endings of the files with the records of a process."""
MAX_KEYS = 200
"""Settings, tags and metrics of one run."""
MAX_TEXT = 200
MAX_SENTENCE = 2000
MAX_DEPTH = 20
"""Nesting of settings; deeper ones are texts."""
MAX_WHOLE = 1 << 53
"""From here on, integers are texts: JavaScript would round them."""
CURVE_POINTS = 32
SMALL_BYTES = 1 << 20
"""Runs with smaller files are summed up while the list is made."""
LIVE_AGE_NS = 30_000_000_000
ENTRY_COST = 20_000
RETRY_S = 300.0
"""Seconds after which a run is summed up again of which something could not be read."""
log = logging.getLogger("stepwell.analysis")
Scalar = str | int | float | bool | None


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
        # The figures of a run on object storage would have to be downloaded.
        if newer is None and run.mirror is None:
            line = _with_figures(line, compute_summary(run, findings))
        lines.append(line)
    return lines


def _is_wanted(run: RecordedRun, wanted: RunFilter) -> bool:
    if wanted.name is not None and not fnmatchcase(run.name, wanted.name):
        return False
    if wanted.since_ns is not None and run.created_ns < wanted.since_ns:
        return False
    return set(wanted.tags) <= set(run.tags)


def _with_figures(line: RunLine, entry: RunEntry) -> RunLine:
    # A damaged run has none.
    has_figures = entry.duration_ns is not None
    return replace(
        line,
        duration_s=None if entry.duration_ns is None else entry.duration_ns / 1e9,
        step=entry.step,
        loss_name=None if entry.loss is None else entry.loss.name,
        loss=None if entry.loss is None else entry.loss.last,
        findings=sum(entry.findings.values()) if entry.findings and has_figures else None,
    )


@dataclass(frozen=True)
class LossSummary:
    """The training loss. ``curve`` has at most 32 finite values."""

    name: str
    last: float | None
    best: float | None
    curve: list[float]


@dataclass(frozen=True)
class RunEntry:
    """One run of a list. ``goodput``, ``findings`` and ``headline`` are None if not computed yet.

    Attributes:
        status_text: the status, with the place if the run died: "killed inside backward".
        config: the settings, with nested keys joined by dots.
        metrics: the last value of each metric.
        findings: the number of findings by severity.
        headline: the sentence of the most important finding.
    """

    id: str
    name: str
    status: str
    status_text: str
    created_ms: int | None
    duration_ns: int | None = None
    step: int | None = None
    tags: list[str] = field(default_factory=list)
    ranks: int | None = None
    attempts: int | None = None
    goodput: float | None = None
    findings: dict[str, int] | None = None
    headline: str | None = None
    loss: LossSummary | None = None
    config: dict[str, Scalar] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


STORED = (
    *("status", "status_text", "duration_ns", "step", "ranks", "attempts", "goodput", "findings"),
    *("headline", "loss", "metrics"),
)
"""Fields of an entry that are cached; the others are in run.json."""


def summaries_of(
    runs: Iterable[tuple[str, RecordedRun]], *, budget_s: float = 0.5
) -> tuple[list[RunEntry], list[str]]:
    """Return the entries of these runs, each with the given id, and the ids of those that are incomplete.

    Entries of ended runs are cached. Small runs are summed up until the time is up; call ``compute_summary``
    for the others. Running runs are incomplete again after 30 s. Runs that cannot be read stay incomplete,
    and are tried again after a while.
    """
    until = time.monotonic() + budget_s
    entries, pending = [], []
    for run_id, run in runs:
        entry, is_complete = _known(run)
        has_time = not is_complete and time.monotonic() < until
        if has_time and not _failed_recently(run) and _size(run) < SMALL_BYTES:
            entry = compute_summary(run)
            is_complete = entry.findings is not None
        if not is_complete:
            pending.append(run_id)
        entries.append(replace(entry, id=run_id))
    return entries, pending


def compute_summary(run: RecordedRun, has_findings: bool = True) -> RunEntry:
    """Return the complete entry of a run, and cache it. This may take as long as a report of the run.

    Without findings, goodput and headline are missing, too. If the run cannot be read, the entry has no
    findings and is not cached: the next call tries again.
    """
    bare = bare_entry(run)
    if newer_format(run.document) is not None:
        return bare
    entry = _stored(run)
    if entry is None or (has_findings and entry.findings is None):
        entry, is_complete = _computed(run, bare, entry, has_findings)
        if not is_complete:
            memory.put(_failure_key(run), time.monotonic(), ENTRY_COST)
        elif entry.status != "running":
            values = asdict(entry)
            store_json(_path(run), _made_from(run), {key: values[key] for key in STORED})
        elif has_findings:
            memory.put(_memory_key(run), (entry, time.monotonic()), ENTRY_COST)
    return entry if has_findings else replace(entry, findings=None)


def _computed(
    run: RecordedRun, bare: RunEntry, known: RunEntry | None, has_findings: bool
) -> tuple[RunEntry, bool]:
    """Return the entry of a run, and whether all of it could be computed."""
    entry = known or bare
    try:
        _check_readable(run)
        if known is None:
            entry = _with_metrics(run, bare)
        return (_with_findings(run, entry) if has_findings else entry), True
    except Exception:
        # A damaged run is listed without details, and hides no other run.
        log.debug("%s cannot be summed up", run.id, exc_info=True)
        return entry, False


def _check_readable(run: RecordedRun) -> None:
    """Raise OSError if a file of records cannot be opened. Readers ignore it, and return fewer records."""
    with os.scandir(run.folder) as entries:
        folders = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    for folder in folders:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
        for name in names if PROCESS in names else ():
            if name in TEXTS or name.rpartition(".")[2] in RECORDS:
                # A live file may be sealed meanwhile.
                with contextlib.suppress(FileNotFoundError):
                    os.close(open_file(folder / name))


def _known(run: RecordedRun) -> tuple[RunEntry, bool]:
    """Return the entry of a run without reading its records, and whether it is complete."""
    if newer_format(run.document) is not None or run.mirror is not None:
        # The records of a run on object storage would have to be downloaded.
        return bare_entry(run), True
    entry = _stored(run)
    if entry is not None:
        return entry, entry.findings is not None
    bare = bare_entry(run)
    recent: tuple[RunEntry, float] | None = memory.get(_memory_key(run))
    if bare.status != "running" or recent is None:
        return bare, False
    entry, at = recent
    age_ns = int(1e9 * (time.monotonic() - at))
    duration = None if entry.duration_ns is None else entry.duration_ns + age_ns
    entry = replace(entry, duration_ns=duration, ranks=bare.ranks, attempts=bare.attempts)
    return entry, age_ns < LIVE_AGE_NS


def _stored(run: RecordedRun) -> RunEntry | None:
    """Return the cached entry of an ended run; None if there is none, or it is damaged."""
    stored = stored_json(_path(run), _made_from(run))
    try:
        values = {key: stored[key] for key in STORED}
        loss = values.pop("loss")
        entry = RunEntry(**_described(run), **values)
        return replace(entry, loss=None if loss is None else LossSummary(**loss))
    except (KeyError, TypeError):
        return None


def _path(run: RecordedRun) -> Path:
    return shelf_path(run.folder, "summary")


def _made_from(run: RecordedRun) -> list[Any]:
    return [FORMAT, _version(), *stamp_of(run)]


@cache
def _version() -> str:
    """Return the version of stepwell: another version may have other rules."""
    return importlib.metadata.version("stepwell")


def _memory_key(run: RecordedRun) -> tuple[str, str]:
    return "summary", str(run.folder)


def _failure_key(run: RecordedRun) -> tuple[str, str]:
    return "failed summary", str(run.folder)


def _failed_recently(run: RecordedRun) -> bool:
    at: float | None = memory.get(_failure_key(run))
    return at is not None and time.monotonic() - at < RETRY_S


def _size(run: RecordedRun) -> int:
    """Return the size of the files of a run in bytes."""
    total = 0
    for folder in process_folders(run.folder):
        with contextlib.suppress(OSError), os.scandir(folder) as files:
            total += sum(file.stat(follow_symlinks=False).st_size for file in files)
    return total


# Parts of an entry


def _described(run: RecordedRun) -> dict[str, Any]:
    """Return the fields that are in run.json."""
    return {
        "id": run.id,
        "name": run.name[:MAX_TEXT],
        "created_ms": run.created_ns // 1_000_000 or None,
        "tags": [tag[:MAX_TEXT] for tag in run.tags[:MAX_KEYS]],
        "config": flat_config(run.config),
    }


def bare_entry(run: RecordedRun) -> RunEntry:
    """Return the entry of a run without anything that must be computed from its records."""
    newer = newer_format(run.document)
    every = map(read_document, process_folders(run.folder)) if newer is None else ()
    documents = [document for document in every if document is not None]
    status = joint_status(documents) if newer is None else f"format {newer}"
    latest = max((d["attempt"] for d in documents), default=0)
    return RunEntry(
        **_described(run),
        status=status,
        status_text=status,
        ranks=len({d["rank"] for d in documents if d["attempt"] == latest}) or None,
        attempts=len({d["attempt"] for d in documents}) or None,
    )


def flat_config(config: Mapping[str, Any]) -> dict[str, Scalar]:
    """Return settings with nested keys joined by dots: at most 200, with texts of at most 200 characters."""
    flat: dict[str, Scalar] = {}
    for key, value in _flattened(config, "", 0):
        if len(flat) >= MAX_KEYS:
            break
        flat[clean(key[:MAX_TEXT])] = clean(value) if isinstance(value, str) else value
    return flat


def _flattened(value: Mapping[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, Scalar]]:
    for key, inner in value.items():
        name = f"{prefix}{key}"
        if isinstance(inner, dict) and inner and depth < MAX_DEPTH:
            yield from _flattened(inner, f"{name}.", depth + 1)
        elif inner is None or isinstance(inner, bool | float):
            yield name, inner
        elif isinstance(inner, int):
            yield name, inner if abs(inner) < MAX_WHOLE else str(inner)[:MAX_TEXT]
        else:
            yield name, str(inner)[:MAX_TEXT]


def _with_metrics(run: RecordedRun, entry: RunEntry) -> RunEntry:
    from stepwell.analysis.detail.series import RunMetrics
    from stepwell.analysis.findings.curves import goal_of

    # Columns of all runs would fill the cache folder.
    metrics = RunMetrics(run, is_cached=False)
    names = sorted(name for name in metrics.counts if not name.startswith(SYSTEM))
    loss = next(iter(loss_names(names)), None)
    names.sort(key=lambda name: (name != loss, goal_of(name) is None, name))
    curves = {name: metrics.curve(name) for name in names[:MAX_KEYS]}
    mains = [c.source for c in metrics.columns if not c.source.is_worker]
    latest = max((main.attempt for main in mains), default=0)
    steps = [main.tables.context.latest()[0] for main in mains if main.attempt == latest]
    return replace(
        entry,
        duration_ns=run_wall_ns(run),
        # Without steps of the run itself, those of the logged values count.
        step=max((step for step in steps if step is not None), default=_last_step(curves.values())),
        loss=None if loss is None else _loss(loss, curves[loss].values),
        metrics={
            clean(name[:MAX_TEXT]): float(curve.values[-1])
            for name, curve in curves.items()
            if len(curve.values)
        },
    )


def _last_step(curves: Iterable[Any]) -> int | None:
    return max((int(curve.steps[-1]) for curve in curves if len(curve.steps)), default=None)


def _loss(name: str, values: NDArray[np.float64]) -> LossSummary:
    finite = values[np.isfinite(values)]
    size = max(1, -(-len(finite) // CURVE_POINTS))
    return LossSummary(
        name[:MAX_TEXT],
        float(values[-1]) if len(values) else None,
        float(finite.min()) if len(finite) else None,
        [float(finite[i : i + size].mean()) for i in range(0, len(finite), size)],
    )


def _with_findings(run: RecordedRun, entry: RunEntry) -> RunEntry:
    from stepwell.analysis.findings import SEVERITIES, Facts, findings

    facts = Facts(run)
    all_findings = findings(facts)
    counts = Counter(finding.severity for finding in all_findings)
    died = next((finding for finding in all_findings if finding.rule == "died"), None)
    most = died or (all_findings[0] if all_findings else None)
    return replace(
        entry,
        status_text=status_text(entry.status, all_findings),
        goodput=_goodput(facts),
        findings={severity: counts[severity] for severity in SEVERITIES},
        headline=None if most is None else most.sentence[:MAX_SENTENCE],
    )


def status_text(status: str, findings: Iterable[Finding]) -> str:
    """Return the status of a run, with the innermost span if it died: killed inside backward."""
    died = next((finding for finding in findings if finding.rule == "died"), None)
    inside = None if died is None else died.evidence.get("inside")
    return f"{status} inside {str(inside).rpartition(' › ')[2][:MAX_TEXT]}" if inside else status


def _goodput(facts: Facts) -> float | None:
    try:
        return facts.goodput.share if facts.steps.height else None
    except StepwellError:
        # Attempts that ran at the same time have no common timeline.
        return None
