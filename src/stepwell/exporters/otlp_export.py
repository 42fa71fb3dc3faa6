"""A recorded run as files of OTLP in JSON, a request a line, which collectors read (``otlpjsonfile``).

Spans and their events are what ``OTLPExporter`` sends, with the same ids: a receiver that gets both has them
once. A file holds one kind of data, so metrics are in a second one. OpenTelemetry is not needed.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from stepwell.exporters.otlp import resource_of, trace_id
from stepwell.exporters.otlp_spans import OutEvent, OutSpan, SpanBuilder, Value
from stepwell.exporters.trace_files import written
from stepwell.exporters.trace_run import Written, check_ranks, recorded
from stepwell.journal.follow import Follower
from stepwell.journal.records import EventRecord
from stepwell.telemetry.exporter import Source, source_of
from stepwell.telemetry.forwarding import recorded_processes
from stepwell.telemetry.version import VERSION

if TYPE_CHECKING:
    from stepwell.reading import RecordedRun
    from stepwell.reading.tables import ProcessTables

MOST_IN_A_LINE = 512
SCOPE = {"name": "stepwell", "version": VERSION}
INTERNAL = 1
OK, ERROR = 1, 2
SAMPLED = 1


def export_otlp(
    run: RecordedRun | str | os.PathLike[str],
    path: str | os.PathLike[str],
    ranks: Iterable[int] | None = None,
) -> Written:
    """Write the spans and events of a run to a file, and its metrics to one beside it.

    Args:
        run: the run or its folder.
        path: the file, packed when its name ends in ``.gz``; metrics go to ``….metrics.jsonl``.
        ranks: only these.

    What is open is there as a placeholder of no length, as ``OTLPExporter`` announces it.
    """
    found, target = recorded(run), Path(path)
    chosen = check_ranks(found, ranks)
    spans = events = 0
    with written(target) as file:
        for folder in recorded_processes(found.path):
            follower = Follower(folder)
            if chosen is None or follower.about.get("rank") in chosen:
                counts = _write_process(file, folder, follower)
                spans, events = spans + counts[0], events + counts[1]
    beside = _beside(target)
    metrics = _write_metrics(beside, found, chosen)
    files = [target, beside] if metrics else [target]
    return Written(files, spans, events, metrics)


def _write_process(file: TextIO, folder: Path, follower: Follower) -> tuple[int, int]:
    source = source_of(folder, follower.about)
    builder = SpanBuilder(f"{source.process}\0{source.started_ns}")
    spans = events = 0
    while records := follower.poll():
        found = builder.take(records)
        builder.keep()
        spans += sum("stepwell.event" not in span.attributes for span in found)
        events += sum(isinstance(r, EventRecord) and r.type != "attributes" for r in records)
        _write_spans(file, source, found)
    _write_spans(file, source, builder.overdue(time.time_ns()))
    return spans, events


def _write_spans(file: TextIO, source: Source, spans: Sequence[OutSpan]) -> None:
    trace = f"{trace_id(source):032x}"
    for at in range(0, len(spans), MOST_IN_A_LINE):
        some = [_span(trace, span) for span in spans[at : at + MOST_IN_A_LINE]]
        scoped = {"scope": SCOPE, "spans": some}
        _write(file, {"resourceSpans": [{"resource": _resource(source), "scopeSpans": [scoped]}]})


def _span(trace: str, span: OutSpan) -> dict[str, Any]:
    status = {"code": OK} if span.error is None else {"code": ERROR, "message": span.error}
    found = {
        "traceId": trace,
        "spanId": f"{span.id:016x}",
        "parentSpanId": "" if span.parent is None else f"{span.parent:016x}",
        "flags": SAMPLED,
        "name": span.name,
        "kind": INTERNAL,
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _attributes(span.attributes),
        "events": [_event(event) for event in span.events],
        "status": status,
    }
    return {key: value for key, value in found.items() if value not in ("", [])}


def _event(event: OutEvent) -> dict[str, Any]:
    return {
        "timeUnixNano": str(event.time_ns),
        "name": event.name,
        "attributes": _attributes(event.attributes),
    }


# Metrics


def _beside(target: Path) -> Path:
    stem, dot, ending = target.name.partition(".jsonl")
    return target.with_name(f"{stem}.metrics{dot}{ending}")


def _write_metrics(path: Path, run: RecordedRun, ranks: Any) -> int:
    """One gauge for each metric of a process, a point for each value; returns how many values."""
    count = 0
    with written(path) as file:
        for tables in run.by_process():
            if ranks is None or tables.process.about["rank"] in ranks:
                source = source_of(run.path / tables.process.name, tables.process.about)
                for name, points in _points(tables):
                    count += len(points)
                    gauge = {"name": name, "gauge": {"dataPoints": points}}
                    scoped = {"scope": SCOPE, "metrics": [gauge]}
                    about = {"resource": _resource(source), "scopeMetrics": [scoped]}
                    _write(file, {"resourceMetrics": [about]})
    if not count:
        path.unlink()
    return count


def _points(tables: ProcessTables) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for frame in tables.metrics({"name", "step", "epoch", "time_ns", "value"}):
        for (name,), part in frame.group_by("name", maintain_order=True):
            rows = part.select("time_ns", "value", "step", "epoch").rows()
            for at in range(0, len(rows), MOST_IN_A_LINE):
                yield str(name), [_point(*row) for row in rows[at : at + MOST_IN_A_LINE]]


def _point(time_ns: int, value: float, step: int | None, epoch: int | None) -> dict[str, Any]:
    place = {"stepwell.step": step, "stepwell.epoch": epoch}
    return {
        "attributes": _attributes({k: v for k, v in place.items() if v is not None}),
        "timeUnixNano": str(time_ns),
        "asDouble": value if math.isfinite(value) else _not_finite(value),
    }


# What both need


def _resource(source: Source) -> dict[str, Any]:
    return {"attributes": _attributes(resource_of(source))}


def _attributes(attributes: dict[str, Value]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _value(value: Value) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        # 64 bits are more than JSON's numbers are sure to hold.
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value if math.isfinite(value) else _not_finite(value)}
    return {"stringValue": value}


def _not_finite(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _write(file: TextIO, line: dict[str, Any]) -> None:
    file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":"), allow_nan=False) + "\n")
