"""Reads the history of a run from its folder: attempts, phases, items, checkpoints and metrics.

Reading uses Polars, so it is imported only when a document is created.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.journal.document import status_of, worst_of
from stepwell.loggers.delivery.files import numbers_in
from stepwell.loggers.kinds import MEASURES
from stepwell.vocabulary import (
    WORDS,
    StandardTrainingJobEventName,
    StandardTrainingJobSpanName,
    word_of,
)

if TYPE_CHECKING:
    import polars as pl

    from stepwell.reading.run import RecordedRun
    from stepwell.reading.tables import ProcessTables

Ended = dict[str, tuple[str, int]]
"""Status and end time of processes, by name, that have ended but still run according to the run folder."""


@dataclass
class ProcessHistory:
    """A process of an attempt. ``end`` is None while it runs."""

    name: str
    attempt: int
    rank: int
    host: str
    pid: int
    status: str
    start: int
    end: int | None


@dataclass
class Phase:
    """A standard span of one process."""

    id: int
    process: str
    attempt: int
    rank: int
    name: str
    start: int
    end: int | None
    status: str
    attributes: dict[str, Any]


@dataclass
class LoggedItem:
    """A logged item other than a metric."""

    kind: str
    name: str
    process: str
    attempt: int
    rank: int
    time: int
    step: int | None
    epoch: int | None
    value: Any
    sha256: str | None
    size: int | None
    file: str | None
    media: str | None
    attributes: dict[str, Any]


@dataclass
class SavedCheckpoint:
    """A checkpoint that was saved, as recorded by one process."""

    process: str
    attempt: int
    rank: int
    span: int | None
    time: int
    attributes: dict[str, Any]


@dataclass
class Series:
    """Summary of a metric in an attempt. ``last`` and ``last_step`` are those of the first rank."""

    name: str
    attempt: int
    kind: str
    ranks: list[int]
    count: int
    first_step: int | None
    last_step: int | None
    last: float
    least: float
    most: float
    start: int
    end: int
    sha256: str


@dataclass
class RunHistory:
    """The history of a run. ``attempts`` are the entries of run.json, by number."""

    id: str
    name: str
    folder: Path
    tags: list[str]
    config: dict[str, Any]
    attempts: dict[int, dict[str, Any]]
    processes: list[ProcessHistory]
    """In attempts in ``decided``, processes that still run do not count for the status and the end."""
    decided: set[int] = field(default_factory=set)
    phases: list[Phase] = field(default_factory=list)
    items: list[LoggedItem] = field(default_factory=list)
    checkpoints: list[SavedCheckpoint] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)

    def deciding(self, attempt: int | None = None) -> list[ProcessHistory]:
        """Return the processes, of one attempt or of all, that determine the status and the end."""
        return [
            process
            for process in self.processes
            if (attempt is None or process.attempt == attempt)
            and (process.end is not None or process.attempt not in self.decided)
        ]

    @property
    def status(self) -> str:
        """The status of the run: that of its latest attempt."""
        latest = max((process.attempt for process in self.processes), default=0)
        return worst_of(process.status for process in self.deciding(latest))

    @property
    def ranks(self) -> int:
        """The number of ranks that recorded."""
        return len({process.rank for process in self.processes})


PHASES = tuple(
    word
    for word in WORDS
    if word.standard
    and not word.is_short
    and word.standard != StandardTrainingJobSpanName.APPLICATION
)
"""The standard spans that are phases of a run."""
SAVED = StandardTrainingJobEventName.SAVE_CHECKPOINT_SUCCESS.value


def read_history(folder: Path, ended: Ended | None = None) -> RunHistory:
    """Read the history of the run in this folder."""
    from stepwell.reading.run import open_run

    run = open_run(folder)
    processes = _processes(run, ended or {})
    history = RunHistory(
        id=run.id,
        name=run.name,
        folder=folder.absolute(),
        tags=[str(tag) for tag in _listed(run.document.get("tags"))],
        config=run.config,
        attempts=_attempts(run, processes),
        processes=processes,
    )
    ends = {process.name: process.end for process in processes}
    for tables in run.by_process():
        if tables.process.name in ends:
            _read_phases(history, tables, ends[tables.process.name])
            _read_lines(history, tables)
    history.items.sort(key=lambda item: item.time)
    history.checkpoints.sort(key=lambda checkpoint: checkpoint.time)
    history.series = [*_series(run, history.items)]
    return history


# Processes and attempts


def _processes(run: RecordedRun, ended: Ended) -> list[ProcessHistory]:
    processes = []
    for document in run.documents():
        if document["role"] == "worker":
            continue
        status = status_of(document)
        end = document["heartbeat"] or document["started"] or 0
        if status == "running" and document["process"] in ended:
            status, end = ended[document["process"]]
        processes.append(
            ProcessHistory(
                name=document["process"],
                attempt=document["attempt"],
                rank=document["rank"],
                host=document["host"],
                pid=document["pid"],
                status=status,
                start=document["started"] or 0,
                end=None if status == "running" else end,
            )
        )
    return sorted(processes, key=lambda process: (process.attempt, process.rank, process.start))


def _attempts(run: RecordedRun, processes: list[ProcessHistory]) -> dict[int, dict[str, Any]]:
    attempts: dict[int, dict[str, Any]] = {process.attempt: {} for process in processes}
    for entry in _listed(run.document.get("attempts")):
        if isinstance(entry, dict) and isinstance(entry.get("attempt"), int):
            attempts[entry["attempt"]] = entry
    return dict(sorted(attempts.items()))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


# Phases


def _read_phases(history: RunHistory, tables: ProcessTables, end: int | None) -> None:
    import polars as pl

    names = {word.name for word in PHASES} | {word.trace_name for word in PHASES}
    if names.isdisjoint(name for _, _, name in tables.process.names.values()):
        return
    wanted = {"attempt", "rank", "name", "category", "id", "start_ns", "duration_ns", "status"}
    for frame in tables.spans(wanted | {"attributes"}):
        for row in frame.filter(pl.col("name").is_in(list(names))).iter_rows(named=True):
            word = word_of(row["name"], row["category"] or "")
            if word is not None and word in PHASES:
                history.phases.append(_phase(row, word.name, tables.process.name, end))


def _phase(row: dict[str, Any], name: str, process: str, end: int | None) -> Phase:
    start, duration = row["start_ns"], row["duration_ns"]
    stop = end if duration is None else start + duration
    return Phase(
        id=row["id"],
        process=process,
        attempt=row["attempt"],
        rank=row["rank"],
        name=name,
        start=start,
        end=stop if stop is None else max(stop, start),
        status=row["status"],
        attributes=_object(row["attributes"]),
    )


def _object(text: str | None) -> dict[str, Any]:
    try:
        value = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        value = {}
    return value if isinstance(value, dict) else {}


# Items


def _read_lines(history: RunHistory, tables: ProcessTables) -> None:
    document = tables.process.document
    place = {
        "process": tables.process.name,
        "attempt": document["attempt"],
        "rank": document["rank"],
    }
    artifacts = []
    for line in tables.process.events():
        time, attributes = line["time"] + tables.offset, line["attributes"]
        if line.get("kind") == "item":
            history.items.append(_item(line["name"], time, attributes, place))
        elif line.get("kind") == "artifact":
            own = {"item": "artifact", "content": line["sha256"], "size": line["size"]}
            artifacts.append(_item(line["name"], time, {**attributes, **own}, place))
        elif line.get("kind") == "event" and line["name"] == SAVED:
            span = None if line["span"] is None else line["span"] + tables.base
            history.checkpoints.append(
                SavedCheckpoint(**place, span=span, time=time, attributes=attributes)
            )
    # The content of an item may be recorded as an artifact too.
    contents = {item.sha256 for item in history.items}
    history.items += [item for item in artifacts if item.sha256 not in contents]


_OWN = ("item", "audience", "step", "epoch", "value", "content", "size", "file", "media")


def _item(name: str, time: int, meta: dict[str, Any], place: dict[str, Any]) -> LoggedItem:
    content = meta.get("content")
    sha256 = content if isinstance(content, str) and re.fullmatch("[0-9a-f]{64}", content) else None
    return LoggedItem(
        kind=str(meta.get("item")),
        name=name,
        **place,
        time=time,
        step=_count(meta.get("step")),
        epoch=_count(meta.get("epoch")),
        value=meta.get("value"),
        sha256=sha256,
        size=_count(meta.get("size")),
        file=meta["file"] if isinstance(meta.get("file"), str) else None,
        media=meta["media"] if isinstance(meta.get("media"), str) else None,
        attributes={key: meta[key] for key in meta if key not in _OWN},
    )


def _count(value: Any) -> int | None:
    """Return an integer that fits into a column of 64 bits; None for anything else."""
    return value if type(value) is int and -(1 << 63) <= value < 1 << 63 else None


# Metrics


def _series(run: RecordedRun, items: list[LoggedItem]) -> Iterator[Series]:
    """Yield a summary of each metric, and of each name of the items that are numbers."""
    import polars as pl

    columns = ("attempt", "rank", "name", "step", "time_ns", "value")
    metrics = run.metrics(overwritten=True).select(*columns).collect()
    rows = [
        (item.kind, item.attempt, item.rank, name, item.step, item.time, value)
        for item in items
        if item.kind in MEASURES
        for name, value in numbers_in(item.name, item.value)
    ]
    kinds = pl.lit("metric").alias("kind")
    schema: dict[str, Any] = {"kind": pl.String, **metrics.schema}
    measures = pl.DataFrame(rows, schema, orient="row")
    for table in (metrics.select(kinds, *columns), measures):
        frame = table.sort("attempt", "name", "kind", "rank", "time_ns", maintain_order=True)
        for _, part in frame.group_by(["attempt", "name", "kind"], maintain_order=True):
            yield _summary(part)


def _summary(part: pl.DataFrame) -> Series:
    first = part.filter(part["rank"] == part["rank"][0])
    numbers = part["value"].drop_nans()
    values = numbers if numbers.len() else part["value"]
    return Series(
        name=part["name"][0],
        attempt=part["attempt"][0],
        kind=part["kind"][0],
        ranks=part["rank"].unique().sort().to_list(),
        count=part.height,
        first_step=part["step"].min(),  # type: ignore[arg-type]
        last_step=first["step"][-1],
        last=first["value"][-1],
        least=values.min(),  # type: ignore[arg-type]
        most=values.max(),  # type: ignore[arg-type]
        start=part["time_ns"].min(),  # type: ignore[arg-type]
        end=part["time_ns"].max(),  # type: ignore[arg-type]
        sha256=_sum(part["rank"].to_list(), part["step"].to_list(), part["value"].to_list()),
    )


def _sum(ranks: list[int], steps: list[int | None], values: list[float]) -> str:
    """Return the sha256 of the lines ``rank,step,value``, rank by rank, in the order of logging.

    Times are not included, so that two identical trainings have the same checksum.
    """
    digest = hashlib.sha256()
    for rank, step, value in zip(ranks, steps, values, strict=True):
        digest.update(f"{rank},{'' if step is None else step},{value!r}\n".encode())
    return digest.hexdigest()
