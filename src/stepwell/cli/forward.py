"""``stepwell forward``: sends a recorded run to an exporter or a logger backend."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

import polars as pl

from stepwell._core.errors import StepwellError
from stepwell.cli.output import print_json
from stepwell.cli.progress import ProgressBar, waiting
from stepwell.cli.terminal import counted
from stepwell.loggers.delivery.forwarder import BACKENDS, ForwardedLog, forward_log, is_backend
from stepwell.reading import RecordedRun
from stepwell.telemetry.exporter import ExportFilter, ExportMode
from stepwell.telemetry.exporter_config import find_class
from stepwell.telemetry.forward import Forwarded, forward


def forward_run(
    run: RecordedRun,
    to: str,
    options: dict[str, Any],
    filter: ExportFilter,
    as_json: bool = False,
) -> None:
    """Send a run's spans to an exporter, or its log to a backend, and print what was sent."""
    if is_backend(run.path, to):
        if filter.to_json() != ExportFilter().to_json():
            raise StepwellError(
                f"--all, --only and --skip select spans, but {to} does not receive spans"
            )
        with waiting(f"{run.id} to {to}"):
            sent = forward_log(run.path, to, options)
        _print_log(run, to, sent) if not as_json else _print_json(run, to, sent)
    else:
        done = _forward_spans(run, to, options, filter)
        _print_spans(run, to, done) if not as_json else _print_json(run, to, done)


def _print_json(run: RecordedRun, to: str, done: Sequence[ForwardedLog | Forwarded]) -> None:
    print_json({"run": run.id, "to": to, "processes": list(done)})


def _print_log(run: RecordedRun, to: str, done: list[ForwardedLog]) -> None:
    for item in done:
        more = "; still running, forward the run again later for the rest" if item.running else ""
        print(f"{item.process}: {counted(item.records, 'record')}{more}")
    total = sum(item.records for item in done)
    text = f"{counted(total, 'record')} sent to {to}" if total else f"{to} already has all records"
    print(f"{run.id}: {text}")


def _forward_spans(
    run: RecordedRun, to: str, options: dict[str, Any], filter: ExportFilter
) -> list[Forwarded]:
    # The SDK logs its own retries; the error at the end is enough.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    with ProgressBar(f"{run.id} to {to}") as bar:
        bar.update(0, _count(run, filter))
        return forward(run.path, to, options, filter=filter, progress=bar.advance)


def _print_spans(run: RecordedRun, to: str, done: list[Forwarded]) -> None:
    for item in done:
        more = "; still running, forward the run again later for the rest" if item.running else ""
        spans, events = counted(item.spans, "span"), counted(item.events, "event")
        print(f"{item.process}: {spans}, {events}{more}")
    total = sum(item.spans for item in done)
    processes = "1 process" if len(done) == 1 else f"{len(done)} processes"
    print(f"{run.id}: {counted(total, 'span')} of {processes} sent to {to}")


def _count(run: RecordedRun, filter: ExportFilter) -> int | None:
    """Return the approximate number of spans to send, without those of workers."""
    try:
        processes = run.processes().filter(pl.col("role") == "main").select("process")
        spans = run.spans().join(processes, on="process", how="semi")
        counts = spans.group_by("name").len().collect()
    except (pl.exceptions.PolarsError, OSError):
        return None
    return sum(int(number) for name, number in counts.iter_rows() if filter.keeps(name))


def parse_receiver(to: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name in ``--to NAME`` or ``--to NAME=ADDRESS``, and the options with the address."""
    name, equals, address = to.partition("=")
    if not equals:
        return to, options
    key = getattr(find_class(BACKENDS.get(name, name), "forward", BACKENDS), "address_option", None)
    if key is None:
        raise StepwellError(f"{name} does not take an address: use --to {name}")
    if not address or options.get(key, address) != address:
        raise StepwellError(
            f"--to {name}= needs an address, such as --to {name}=http://localhost:5000"
            if not address
            else f"--to {name}=… and --option {key}=… give two addresses: use one of them"
        )
    return name, {**options, key: address}


def parse_options(texts: Sequence[str]) -> dict[str, Any]:
    """Return options given as ``name=value``. Values are parsed as JSON if possible."""
    options: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            # The value may be a secret: only the text before it is printed.
            raise StepwellError(
                "--option must be name=value, such as endpoint=http://localhost:4318, got "
                f"{name[:40]!r} without a value"
            )
        options[name.strip()] = _value(value)
    return options


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def parse_filter(all_spans: bool, only: Sequence[str], skip: Sequence[str]) -> ExportFilter:
    """Return the span filter that the options of the command describe."""
    if sum(map(bool, (all_spans, only, skip))) > 1:
        raise StepwellError("--all, --only and --skip exclude each other: use one of them")
    if all_spans:
        return ExportFilter(ExportMode.ALL_SPANS)
    if only:
        return ExportFilter(ExportMode.ALLOW_LIST, only)
    if skip:
        return ExportFilter(ExportMode.DENY_LIST, skip)
    return ExportFilter()
