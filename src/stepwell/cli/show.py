"""``stepwell show``: the summary of a run."""

from __future__ import annotations

import math

from rich.console import Console
from rich.text import Text

from stepwell._core.text import percent, size
from stepwell.analysis.overview import OpenLine, Overview, SpanLine
from stepwell.cli.output import print_json
from stepwell.cli.terminal import (
    console,
    counted,
    curve,
    headline,
    lasted,
    metric_value,
    plain,
    print_summary,
    seconds,
    table,
    table_console,
    wrapped,
)


def show_overview(overview: Overview, as_json: bool = False) -> None:
    """Print the summary of a run."""
    if as_json:
        print_json(overview)
        return
    out = console()
    out.print(_headline(overview))
    for line in _facts(overview):
        out.print(Text(wrapped(line, out.width)))
    for line in overview.lines:
        out.print(Text.assemble("  ", plain(line)), style="dim", soft_wrap=True)
    if overview.open:
        _print_open(out, overview)
    if overview.spans:
        _print_spans(out, overview)
    if overview.metrics:
        _print_metrics(out, overview)
    if overview.summary:
        out.print()
        print_summary(overview.summary)


def _headline(overview: Overview) -> Text:
    text = headline(overview.name, overview.status)
    text.append(f" {lasted(overview.status, overview.wall_s * 1e9)}")
    if overview.last_step is not None:
        text.append(f", step {overview.last_step}")
    return text


def _facts(overview: Overview) -> list[str]:
    ranks = "1 rank" if overview.ranks == 1 else f"{overview.ranks} ranks"
    workers = f", {overview.workers} worker processes" if overview.workers else ""
    attempts = f", {overview.attempts} attempts" if overview.attempts > 1 else ""
    facts = [
        f"{overview.path}",
        f"{ranks}{workers}{attempts} · {counted(overview.span_count, 'span')} · "
        f"{counted(overview.metric_count, 'number')} · {size(overview.disk_bytes)} on disk",
    ]
    if overview.throughput is not None:
        facts.append(f"{overview.throughput}")
    if overview.error:
        facts.append(f"ended with {overview.error}")
    if overview.dropped:
        facts.append(f"{overview.dropped:,} records were dropped (full disk or size limit)")
    return facts


def _print_open(out: Console, overview: Overview) -> None:
    ended = overview.status != "running"
    out.print()
    out.print("[bold]open spans when it ended[/]" if ended else "[bold]open spans[/]")
    for line in overview.open[:20]:
        out.print(Text(wrapped(_open_line(line), out.width, indent="    ")))


def _open_line(line: OpenLine) -> str:
    return f"  rank {line.rank} {line.thread}: {line.path} ({seconds(line.seconds)})"


def _print_spans(out: Console, overview: Overview) -> None:
    out.print()
    rows = [_span_cells(line, overview) for line in overview.spans]
    headings = ("count", "total", "of run", "p50", "p95", "max")
    table_console().print(table("spans", headings, rows))
    if note := _open_note(overview):
        out.print(Text(wrapped(note, out.width)))


def _open_note(overview: Overview) -> str:
    """Return which lines of the table count spans that never ended, and so have no time."""
    lines = [line for line in overview.spans if 0 < line.open < line.count]
    if not lines or overview.status == "running":
        return ""
    names = ", ".join(f"{line.name} ({line.open:,})" for line in lines)
    return f"Spans that never ended are counted, but their time is not included: {names}."


def _span_cells(line: SpanLine, overview: Overview) -> list[str | Text]:
    name = f"{line.name} (worker)" if line.worker else line.name
    share = line.total_s / (overview.wall_s * overview.ranks) if overview.wall_s else math.nan
    title = plain(f"{'  ' * min(line.depth, 4)}{name}")
    if line.open == line.count:
        return [title, f"{line.count:,}", "open", "", "", "", ""]
    return [
        title,
        f"{line.count:,}",
        seconds(line.total_s),
        "" if line.worker or math.isnan(share) else percent(share),
        seconds(line.p50_s),
        seconds(line.p95_s),
        seconds(line.max_s),
    ]


def _print_metrics(out: Console, overview: Overview) -> None:
    out.print()
    rows: list[list[str | Text]] = [
        [
            plain(line.name),
            metric_value(line.name, line.first),
            metric_value(line.name, line.last),
            metric_value(line.name, line.low),
            f"{line.low_step}",
            metric_value(line.name, line.high),
            f"{line.high_step}",
            curve(line.curve),
        ]
        for line in overview.metrics
    ]
    title = "metrics" if overview.ranks == 1 else f"mean of {overview.ranks} ranks"
    headings = ("first", "last", "lowest", "at", "highest", "at", "")
    table_console().print(table(title, headings, rows, gap=1))
