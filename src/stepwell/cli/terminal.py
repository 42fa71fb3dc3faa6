"""Text for a terminal or a pipe: tables, wrapped sentences, sparklines."""

from __future__ import annotations

import json
import math
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepwell._core.text import duration, number, size

UNLIMITED = 10_000
"""Width of tables in piped output, in columns."""
COLOURS = {
    "finished": "green",
    "running": "cyan",
    "failed": "red",
    "interrupted": "yellow",
    "killed": "red",
}
"""Colours of run statuses."""
MARKS = {"critical": ("!!", "red"), "warning": ("! ", "yellow"), "note": ("· ", "cyan")}
"""Mark and colour of a finding by severity."""
BARS = "▁▂▃▄▅▆▇█"
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:[µm]?s|min|h|[kMGT]?B)\b|%)")
"""The space between a number and its unit."""
_BETWEEN_UNITS = re.compile(r"(?<=\d\xa0min) (?=\d)|(?<=\d\xa0h) (?=\d)")
"""The middle space of "2 min 03 s", after the others were replaced."""


def console() -> Console:
    """Return a console as wide as the terminal; 80 columns if the output is piped."""
    return Console(width=None if sys.stdout.isatty() else 80, highlight=False)


def table_console() -> Console:
    """Return a console for tables. Piped output is as wide as necessary, so that nothing is cut."""
    return console() if sys.stdout.isatty() else Console(width=UNLIMITED, highlight=False)


def plain(text: str) -> Text:
    """Return a text without markup and without control characters."""
    return Text("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text))


def headline(name: str, status: str) -> Text:
    """Return the name of a run in bold, and its status in colour."""
    text = plain(name)
    text.stylize("bold")
    return text.append(f"  {status}", COLOURS.get(status, "yellow"))


def print_summary(summary: Mapping[str, Any]) -> None:
    """Print the values of ``run.summary``."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("summary", no_wrap=True, max_width=max(36, table_console().width // 2))
    table.add_column("value", overflow="fold")
    for key, value in summary.items():
        is_number = isinstance(value, float) and math.isfinite(value)
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        table.add_row(plain(key), number(value) if is_number else plain(text))
    table_console().print(table)


def wrapped(text: str, width: int, indent: str = "") -> str:
    """Return a text wrapped between words, but not between a number and its unit.

    Lines after the first are indented. Line breaks of the text are kept, and the lines after them are
    indented further.
    """
    first, *others = text.expandtabs(4).splitlines() or [""]
    lines = _broken(first, width, "", indent)
    for line in others:
        lines += _broken(line, width, f"{indent}    ", f"{indent}    ")
    return "\n".join(lines)


def _broken(line: str, width: int, first: str, others: str) -> list[str]:
    text = plain(line).plain
    for space in (_BEFORE_UNIT, _BETWEEN_UNITS):
        text = space.sub("\N{NO-BREAK SPACE}", text)
    lines = textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=others, break_on_hyphens=False
    )
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def seconds(value: float) -> str:
    """Return a duration in seconds as text: 1.23 s, 45.6 ms, 2 h 03 min."""
    return duration(value * 1e9)


def lasted(status: str, ns: float) -> str:
    """Return how long a run has been running, or after which time it ended: for 12.3 s, after 2 h 03 min."""
    return f"{'for' if status == 'running' else 'after'} {duration(ns)}"


def metric_value(name: str, value: float) -> str:
    """Return a value of a metric as text; numbers of bytes as sizes: 0.123, 32.3 MB."""
    return size(value) if name.endswith("_bytes") and value >= 0 else number(value)


def counted(count: int, what: str) -> str:
    """Return a count with its noun: 1 span, 1,024 spans."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def table(
    title: str, headings: Sequence[str], rows: Sequence[Sequence[str | Text]], gap: int = 2
) -> Table:
    """Return a table of names and right-aligned numbers.

    If the terminal is too narrow, names are cut, never numbers.
    """
    grid = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0))
    widths = [
        max([len(heading), *(len(row[column]) for row in rows)])
        for column, heading in enumerate(headings, 1)
    ]
    room = table_console().width - sum(widths) - gap * (len(widths) + 1)
    grid.add_column(title, no_wrap=True, max_width=max(10, room))
    for heading, width in zip(headings, widths, strict=True):
        grid.add_column(heading, justify="right", no_wrap=True, min_width=width)
    for row in rows:
        grid.add_row(*row)
    return grid


def curve(values: list[float], widest: int = 8) -> str:
    """Return a sparkline of at most ``widest`` characters; more values are averaged."""
    finite = [v for v in values if math.isfinite(v)]
    if not finite:
        return ""
    size = -(-len(finite) // widest)
    parts = [finite[i : i + size] for i in range(0, len(finite), size)]
    finite = [sum(part) / len(part) for part in parts]
    low, high = min(finite), max(finite)
    if high == low:
        return BARS[0] * len(finite)
    return "".join(BARS[round((v - low) / (high - low) * (len(BARS) - 1))] for v in finite)
