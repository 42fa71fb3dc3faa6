"""Reading a run folder for its provenance; with Polars, so only where a document is made."""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.journal.liveness import status_of
from stepwell.loggers.prov.facts import (
    MEASURES,
    Checkpoint,
    Ended,
    Facts,
    Item,
    Phase,
    ProcessFacts,
    Series,
)
from stepwell.vocabulary import (
    WORDS,
    StandardTrainingJobEventName,
    StandardTrainingJobSpanName,
    word_of,
)

if TYPE_CHECKING:
    from stepwell.reading.run import RecordedRun
    from stepwell.reading.tables import ProcessTables

PHASES = tuple(
    word
    for word in WORDS
    if word.standard
    and not word.is_short
    and word.standard != StandardTrainingJobSpanName.APPLICATION
)
"""The standard spans that are phases of a run."""
SAVED = StandardTrainingJobEventName.SAVE_CHECKPOINT_SUCCESS.value


def facts_of(folder: Path, ended: Ended | None = None) -> Facts:
    """Read the run in this folder."""
    from stepwell.reading.run import open_run

    run = open_run(folder)
    processes = _processes(run, ended or {})
    facts = Facts(
        id=run.id,
        name=run.name,
        folder=folder.absolute(),
        tags=[str(tag) for tag in _listed(run.about.get("tags"))],
        config=run.config,
        attempts=_attempts(run, processes),
        processes=processes,
    )
    ends = {process.name: process.end for process in processes}
    for tables in run.by_process():
        if tables.process.name in ends:
            _read_phases(facts, tables, ends[tables.process.name])
            _read_lines(facts, tables)
    facts.items.sort(key=lambda item: item.time)
    facts.checkpoints.sort(key=lambda checkpoint: checkpoint.time)
    facts.series = [*_metrics(run), *_measures(facts)]
    return facts


# Processes and attempts


def _processes(run: RecordedRun, ended: Ended) -> list[ProcessFacts]:
    found = []
    for about in run.documents():
        if about["role"] == "worker":
            continue
        status, end = status_of(about), about["heartbeat"] or about["started"] or 0
        if status == "running" and about["process"] in ended:
            status, end = ended[about["process"]]
        found.append(
            ProcessFacts(
                name=about["process"],
                attempt=about["attempt"],
                rank=about["rank"],
                host=about["host"],
                pid=about["pid"],
                status=status,
                start=about["started"] or 0,
                end=None if status == "running" else end,
            )
        )
    return sorted(found, key=lambda process: (process.attempt, process.rank, process.start))


def _attempts(run: RecordedRun, processes: list[ProcessFacts]) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {process.attempt: {} for process in processes}
    for about in _listed(run.about.get("attempts")):
        if isinstance(about, dict) and isinstance(about.get("attempt"), int):
            found[about["attempt"]] = about
    return dict(sorted(found.items()))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


# Phases


def _read_phases(facts: Facts, tables: ProcessTables, end: int | None) -> None:
    import polars as pl

    names = {word.name for word in PHASES} | {word.trace_name for word in PHASES}
    wanted = {"attempt", "rank", "name", "category", "id", "start_ns", "duration_ns", "status"}
    for frame in tables.spans(wanted | {"attributes"}):
        for row in frame.filter(pl.col("name").is_in(list(names))).iter_rows(named=True):
            word = word_of(row["name"], row["category"] or "")
            if word is not None and word in PHASES:
                facts.phases.append(_phase(row, word.name, tables.process.name, end))


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


# What was logged


def _read_lines(facts: Facts, tables: ProcessTables) -> None:
    about = tables.process.about
    place = {
        "process": tables.process.name,
        "attempt": about["attempt"],
        "rank": about["rank"],
    }
    kept = []
    for line in tables.process.events():
        time, attributes = line["time"] + tables.offset, line["attributes"]
        if line.get("kind") == "item":
            facts.items.append(_item(line["name"], time, attributes, place))
        elif line.get("kind") == "artifact":
            about = {"item": "artifact", "content": line["sha256"], "size": line["size"]}
            kept.append(_item(line["name"], time, {**attributes, **about}, place))
        elif line.get("kind") == "event" and line["name"] == SAVED:
            span = None if line["span"] is None else line["span"] + tables.base
            facts.checkpoints.append(
                Checkpoint(**place, span=span, time=time, attributes=attributes)
            )
    # The content of an item may be noted as an artifact too.
    known = {item.sha256 for item in facts.items}
    facts.items += [item for item in kept if item.sha256 not in known]


_OWN = ("item", "audience", "step", "epoch", "value", "content", "size", "file", "media")


def _item(name: str, time: int, about: dict[str, Any], place: dict[str, Any]) -> Item:
    content = about.get("content")
    sha256 = content if isinstance(content, str) and re.fullmatch("[0-9a-f]{64}", content) else None
    return Item(
        kind=str(about.get("item")),
        name=name,
        **place,
        time=time,
        step=_count(about.get("step")),
        epoch=_count(about.get("epoch")),
        value=about.get("value"),
        sha256=sha256,
        size=_count(about.get("size")),
        file=about["file"] if isinstance(about.get("file"), str) else None,
        media=about["media"] if isinstance(about.get("media"), str) else None,
        attributes={key: about[key] for key in about if key not in _OWN},
    )


def _count(value: Any) -> int | None:
    return value if type(value) is int else None


# Numbers


def _metrics(run: RecordedRun) -> Iterator[Series]:
    import polars as pl

    table = run.metrics(overwritten=True).select(
        "attempt", "rank", "name", "step", "time_ns", "value"
    )
    frame = table.sort("attempt", "name", "rank", "time_ns", maintain_order=True).collect()
    for _, part in frame.group_by(["attempt", "name"], maintain_order=True):
        first = part.filter(pl.col("rank") == part["rank"][0])
        known = part["value"].drop_nans()
        values = known if known.len() else part["value"]
        yield Series(
            name=part["name"][0],
            attempt=part["attempt"][0],
            kind="metric",
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


def _measures(facts: Facts) -> Iterator[Series]:
    """Items that are numbers, one series for each name."""
    found: dict[tuple[int, str, str], list[tuple[Item, float]]] = defaultdict(list)
    for item in facts.items:
        if item.kind in MEASURES:
            parts = item.value if isinstance(item.value, dict) else {"": item.value}
            for key, value in parts.items():
                if isinstance(value, int | float):
                    name = f"{item.name}/{key}" if key else item.name
                    found[item.attempt, name, item.kind].append((item, float(value)))
    for (attempt, name, kind), points in found.items():
        points.sort(key=lambda point: (point[0].rank, point[0].time))
        items, values = [point[0] for point in points], [point[1] for point in points]
        first = [point for point in points if point[0].rank == items[0].rank][-1]
        steps = [item.step for item in items]
        yield Series(
            name=name,
            attempt=attempt,
            kind=kind,
            ranks=sorted({item.rank for item in items}),
            count=len(points),
            first_step=min((step for step in steps if step is not None), default=None),
            last_step=first[0].step,
            last=first[1],
            least=min(values),
            most=max(values),
            start=min(item.time for item in items),
            end=max(item.time for item in items),
            sha256=_sum([item.rank for item in items], steps, values),
        )


def _sum(ranks: list[int], steps: list[int | None], values: list[float]) -> str:
    """The sha256 of a line ``rank,step,value`` for each value, rank by rank, in the order of logging.

    Without the times: two runs that learned exactly alike have the same.
    """
    digest = hashlib.sha256()
    for rank, step, value in zip(ranks, steps, values, strict=True):
        digest.update(f"{rank},{'' if step is None else step},{value!r}\n".encode())
    return digest.hexdigest()
