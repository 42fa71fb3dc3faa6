"""``stepwell show``: an overview as text."""

from __future__ import annotations

import math

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepwell.analysis.overview import OpenLine, Overview, SpanLine
from stepwell.cli.drawing import (
    console,
    curve,
    most_columns,
    number,
    plain,
    print_summary,
    seconds,
    size,
    table_console,
    wrapped,
)
from stepwell.cli.output import print_json

COLOURS = {
    "finished": "green",
    "running": "cyan",
    "failed": "red",
    "interrupted": "yellow",
    "killed": "red",
}


def show_overview(overview: Overview, as_json: bool = False) -> None:
    """Print an overview."""
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
    text = plain(overview.name)
    text.stylize("bold")
    text.append("  ")
    text.append(overview.status, COLOURS.get(overview.status, "yellow"))
    text.append(f" after {seconds(overview.wall_s)}")
    if overview.last_step is not None:
        text.append(f", step {overview.last_step}")
    return text


def _facts(overview: Overview) -> list[str]:
    ranks = "1 rank" if overview.ranks == 1 else f"{overview.ranks} ranks"
    workers = f", {overview.workers} worker processes" if overview.workers else ""
    attempts = f", {overview.attempts} attempts" if overview.attempts > 1 else ""
    facts = [
        f"{overview.path}",
        f"{ranks}{workers}{attempts} · {_counted(overview.span_count, 'span')} · "
        f"{_counted(overview.metric_count, 'number')} · {size(overview.disk_bytes)} on disk",
    ]
    if overview.throughput is not None:
        facts.append(f"{overview.throughput}")
    if overview.error:
        facts.append(f"ended with {overview.error}")
    if overview.dropped:
        facts.append(f"{overview.dropped:,} records were dropped (a full disk, or the size cap)")
    return facts


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _print_open(out: Console, overview: Overview) -> None:
    ended = overview.status != "running"
    out.print()
    out.print("[bold]inside of, when it ended[/]" if ended else "[bold]inside of, now[/]")
    for line in overview.open[:20]:
        out.print(Text(wrapped(_open_line(line), out.width, indent="    ")))


def _open_line(line: OpenLine) -> str:
    return f"  rank {line.rank} {line.thread}: {line.path} ({seconds(line.seconds)})"


def _print_spans(out: Console, overview: Overview) -> None:
    out.print()
    rows = [_span_cells(line, overview) for line in overview.spans]
    table_console().print(
        _table("spans", 32, ("count", "total", "of run", "p50", "p95", "max"), rows)
    )


def _table(
    title: str, widest: int, headings: tuple[str, ...], rows: list[list[str | Text]]
) -> Table:
    """A table in which names are cut where a terminal has no room, and numbers never."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(title, no_wrap=True, max_width=most_columns(widest))
    for number_of, heading in enumerate(headings, 1):
        width = max([len(heading), *(len(row[number_of]) for row in rows)])
        table.add_column(heading, justify="right", no_wrap=True, min_width=width)
    for row in rows:
        table.add_row(*row)
    return table


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
        "" if line.worker or math.isnan(share) else f"{share:.0%}",
        seconds(line.p50_s),
        seconds(line.p95_s),
        seconds(line.max_s),
    ]


def _print_metrics(out: Console, overview: Overview) -> None:
    out.print()
    rows: list[list[str | Text]] = [
        [
            plain(line.name),
            number(line.first),
            number(line.last),
            number(line.low),
            f"{line.low_step}",
            number(line.high),
            f"{line.high_step}",
            curve(line.curve),
        ]
        for line in overview.metrics
    ]
    title = "metrics" if overview.ranks == 1 else f"mean of {overview.ranks} ranks"
    table_console().print(
        _table(title, 20, ("first", "last", "lowest", "at", "highest", "at", ""), rows)
    )
