"""``stepwell forward``."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

import polars as pl

from stepwell.cli.output import print_json
from stepwell.cli.waiting import Bar, waiting
from stepwell.journal.errors import StepwellError
from stepwell.loggers.delivery.forwarding import BACKENDS, ForwardedLog, forward_log, is_backend
from stepwell.reading import RecordedRun
from stepwell.telemetry.export_filter import ExportCustomizationMode, ExportFilter
from stepwell.telemetry.exporter_loading import find_class
from stepwell.telemetry.forwarding import Forwarded, forward


def forward_run(
    run: RecordedRun,
    to: str,
    options: dict[str, Any],
    filter: ExportFilter,
    as_json: bool = False,
) -> None:
    """Send a run's spans to an exporter, or its log to a backend, and say what was sent."""
    if is_backend(run.path, to):
        if filter.to_json() != ExportFilter().to_json():
            raise StepwellError(f"--all, --only and --skip choose spans, and {to} gets none")
        with waiting(f"{run.id} to {to}"):
            sent = forward_log(run.path, to, options)
        _say_log(run, to, sent) if not as_json else _print_json(run, to, sent)
    else:
        done = _forward_spans(run, to, options, filter)
        _say(run, to, done) if not as_json else _print_json(run, to, done)


def _print_json(run: RecordedRun, to: str, done: Sequence[ForwardedLog | Forwarded]) -> None:
    print_json({"run": run.id, "to": to, "processes": list(done)})


def _say_log(run: RecordedRun, to: str, done: list[ForwardedLog]) -> None:
    for item in done:
        more = "; it still runs, send the run again later for the rest" if item.running else ""
        print(f"{item.process}: {item.records} records{more}")
    total = sum(item.records for item in done)
    what = f"{total} records" if total else "nothing that had not been delivered before"
    print(f"{run.id}: {what} sent to {to}")


def _forward_spans(
    run: RecordedRun, to: str, options: dict[str, Any], filter: ExportFilter
) -> list[Forwarded]:
    """With a progress bar."""
    # What it says of its own retries is summed up in one line at the end.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    with Bar(f"{run.id} to {to}") as bar:
        bar.update(0, _count(run, filter))
        return forward(run.path, to, options, filter=filter, progress=bar.advance)


def _say(run: RecordedRun, to: str, done: list[Forwarded]) -> None:
    for item in done:
        more = "; it still runs, send the run again later for the rest" if item.running else ""
        print(f"{item.process}: {item.spans} spans, {item.events} events{more}")
    total = sum(item.spans for item in done)
    processes = "1 process" if len(done) == 1 else f"{len(done)} processes"
    print(f"{run.id}: {total} spans of {processes} sent to {to}")


def _count(run: RecordedRun, filter: ExportFilter) -> int | None:
    """About how many spans there are to send; workers' spans are not sent."""
    try:
        processes = run.processes().filter(pl.col("role") == "main").select("process")
        spans = run.spans().join(processes, on="process", how="semi")
        counts = spans.group_by("name").len().collect()
    except (pl.exceptions.PolarsError, OSError):
        return None
    return sum(int(number) for name, number in counts.iter_rows() if filter.keeps(name))


def parse_receiver(to: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name in ``--to NAME`` or ``--to NAME=ADDRESS``, and the options with the address among them."""
    name, equals, address = to.partition("=")
    if not equals:
        return to, options
    key = getattr(find_class(BACKENDS.get(name, name), "forward", BACKENDS), "address_option", None)
    if key is None:
        raise StepwellError(f"{name} has no address: write --to {name}")
    if not address or options.get(key, address) != address:
        raise StepwellError(
            f"--to {name}= needs one address, such as --to {name}=http://localhost:5000"
            if not address
            else f"--to {name}=… and --option {key}=… name two addresses: write one of them"
        )
    return name, {**options, key: address}


def parse_options(texts: Sequence[str]) -> dict[str, Any]:
    """Options from ``name=value``; a value that reads as JSON is taken as such."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            # The value may be a secret: only what stands before it is shown.
            raise StepwellError(
                f"--option {name[:40]!r} has no value: write --option name=value, "
                "such as --option endpoint=http://localhost:4318"
            )
        found[name.strip()] = _value(value)
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def parse_filter(all_spans: bool, only: Sequence[str], skip: Sequence[str]) -> ExportFilter:
    """Which spans to send, from the options of the command."""
    if sum(map(bool, (all_spans, only, skip))) > 1:
        raise StepwellError("--all, --only and --skip exclude each other: write one of them")
    if all_spans:
        return ExportFilter(ExportCustomizationMode.EXPORT_ALL_SPANS)
    if only:
        return ExportFilter(ExportCustomizationMode.WHITELIST_SPANS, only)
    if skip:
        return ExportFilter(ExportCustomizationMode.BLACKLIST_SPANS, skip)
    return ExportFilter()
