"""A recorded run as OTLP in JSON, one request per line, for collectors (``otlpjsonfile``).

Spans, events and ids are those that ``OTLPExporter`` sends: a receiver that gets both stores them once. A
file contains one kind of data, so metrics go to a second file. Does not need OpenTelemetry.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from stepwell._core.values import finite_or_text
from stepwell.exporters.otlp import resource_of, trace_id
from stepwell.exporters.otlp.spans import OutEvent, OutSpan, SpanBuilder, Value
from stepwell.exporters.trace.file import replaced_text_file
from stepwell.exporters.trace.run import Written, open_recorded, select_ranks
from stepwell.follower.records import EventRecord
from stepwell.follower.trace import Follower
from stepwell.telemetry import VERSION
from stepwell.telemetry.exporter import Source, read_source
from stepwell.telemetry.forward import recorded_processes

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
    """Write the spans and events of a run to one file and its metrics to another.

    Args:
        run: a run or its folder.
        path: the file to write, compressed if its name ends in ``.gz``. Metrics go to ``….metrics.jsonl``.
        ranks: the ranks to write. Default: all.

    Open spans are written as placeholders without duration, as ``OTLPExporter`` sends them.
    """
    recorded, target = open_recorded(run), Path(path)
    selected = select_ranks(recorded, ranks)
    spans = events = 0
    with replaced_text_file(target) as file:
        for folder in recorded_processes(recorded.path):
            follower = Follower(folder)
            if selected is None or follower.document.get("rank") in selected:
                counts = _write_process(file, folder, follower)
                spans, events = spans + counts[0], events + counts[1]
    metrics_target = _metrics_path(target)
    metrics = _write_metrics(metrics_target, recorded, selected)
    files = [target, metrics_target] if metrics else [target]
    return Written(files, spans, events, metrics)


def _write_process(file: TextIO, folder: Path, follower: Follower) -> tuple[int, int]:
    source = read_source(folder, follower.document)
    builder = SpanBuilder(f"{source.process}\0{source.started_ns}")
    spans = events = 0
    while records := follower.poll():
        out = builder.take(records)
        builder.keep()
        spans += sum("stepwell.event" not in span.attributes for span in out)
        events += sum(isinstance(r, EventRecord) and r.type != "attributes" for r in records)
        _write_spans(file, source, out)
    _write_spans(file, source, builder.overdue(time.time_ns()))
    return spans, events


def _write_spans(file: TextIO, source: Source, spans: Sequence[OutSpan]) -> None:
    trace = f"{trace_id(source):032x}"
    for at in range(0, len(spans), MOST_IN_A_LINE):
        batch = [_span(trace, span) for span in spans[at : at + MOST_IN_A_LINE]]
        scoped = {"scope": SCOPE, "spans": batch}
        _write(file, {"resourceSpans": [{"resource": _resource(source), "scopeSpans": [scoped]}]})


def _span(trace: str, span: OutSpan) -> dict[str, Any]:
    status = {"code": OK} if span.error is None else {"code": ERROR, "message": span.error}
    fields = {
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
    return {key: value for key, value in fields.items() if value not in ("", [])}


def _event(event: OutEvent) -> dict[str, Any]:
    return {
        "timeUnixNano": str(event.time_ns),
        "name": event.name,
        "attributes": _attributes(event.attributes),
    }


# Metrics


def _metrics_path(target: Path) -> Path:
    stem, dot, ending = target.name.partition(".jsonl")
    return target.with_name(f"{stem}.metrics{dot}{ending}")


def _write_metrics(path: Path, run: RecordedRun, ranks: Any) -> int:
    """Write one gauge per metric and process, a point per value; return the number of values."""
    count = 0
    with replaced_text_file(path) as file:
        for tables in run.by_process():
            if ranks is None or tables.process.document["rank"] in ranks:
                source = read_source(run.path / tables.process.name, tables.process.document)
                for name, points in _points(tables):
                    count += len(points)
                    gauge = {"name": name, "gauge": {"dataPoints": points}}
                    scoped = {"scope": SCOPE, "metrics": [gauge]}
                    metrics = {"resource": _resource(source), "scopeMetrics": [scoped]}
                    _write(file, {"resourceMetrics": [metrics]})
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
    context = {"stepwell.step": step, "stepwell.epoch": epoch}
    return {
        "attributes": _attributes({k: v for k, v in context.items() if v is not None}),
        "timeUnixNano": str(time_ns),
        "asDouble": finite_or_text(value),
    }


# Spans and metrics


def _resource(source: Source) -> dict[str, Any]:
    return {"attributes": _attributes(resource_of(source))}


def _attributes(attributes: dict[str, Value]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _value(value: Value) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        # JSON readers may not keep all 64 bits of a number.
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": finite_or_text(value)}
    return {"stringValue": value}


def _write(file: TextIO, line: dict[str, Any]) -> None:
    file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":"), allow_nan=False) + "\n")
