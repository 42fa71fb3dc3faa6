"""How numbers, times and small curves look in a terminal."""

from __future__ import annotations

import json
import math
import re
import sys
import textwrap
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepwell.journal.text import duration

UNLIMITED = 10_000
"""Columns of tables in piped output."""
BARS = "▁▂▃▄▅▆▇█"
_WITH_UNIT = re.compile(r"(?<=\d) (?=(?:[µm]?s|min|h|[KMG]?B)\b)")
"""The blank between a number and its unit."""
_AMID = re.compile(r"(?<=\d\xa0min) (?=\d)|(?<=\d\xa0h) (?=\d)")
"""The one amid "2 min 03 s", once the others are held."""


def console() -> Console:
    """A console that keeps to 80 columns when its output is piped."""
    return Console(width=None if sys.stdout.isatty() else 80, highlight=False)


def table_console() -> Console:
    """A console for tables: piped, rows are as long as they have to be, so that no name is cut."""
    return console() if sys.stdout.isatty() else Console(width=UNLIMITED, highlight=False)


def most_columns(count: int) -> int | None:
    """Return the width at which a column is cut in a terminal; None where output is piped."""
    return count if sys.stdout.isatty() else None


def plain(text: str) -> Text:
    """A text as it is: nothing in it is taken as markup, nor does it command the terminal."""
    return Text("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text))


def print_summary(summary: Mapping[str, Any]) -> None:
    """Print what was set with ``run.summary[…]``."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("summary", no_wrap=True, max_width=most_columns(36))
    table.add_column("value", overflow="fold")
    for key, value in summary.items():
        is_number = isinstance(value, float) and math.isfinite(value)
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        table.add_row(plain(key), number(value) if is_number else plain(text))
    table_console().print(table)


def wrapped(text: str, width: int, indent: str = "") -> str:
    """Broken into lines between words, not between a number and its unit; all but the first indented.

    Line breaks of the text stay; the lines after them are indented further.
    """
    first, *others = text.expandtabs(4).splitlines() or [""]
    lines = _broken(first, width, "", indent)
    for line in others:
        lines += _broken(line, width, f"{indent}    ", f"{indent}    ")
    return "\n".join(lines)


def _broken(line: str, width: int, first: str, others: str) -> list[str]:
    held = _AMID.sub("\N{NO-BREAK SPACE}", _WITH_UNIT.sub("\N{NO-BREAK SPACE}", plain(line).plain))
    lines = textwrap.wrap(
        held, width, initial_indent=first, subsequent_indent=others, break_on_hyphens=False
    )
    return [one.replace("\N{NO-BREAK SPACE}", " ") for one in lines]


def seconds(value: float) -> str:
    """A duration with three figures: 1.23 s, 45.6 ms, 2 h 03 min."""
    return duration(value * 1e9)


def number(value: float) -> str:
    """A number with four figures."""
    return f"{value:.4g}"


def size(count: int) -> str:
    """A number of bytes."""
    value = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1024 or unit == "GB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError


def curve(values: list[float], widest: int = 8) -> str:
    """A sparkline, of means where there are more values than characters."""
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
