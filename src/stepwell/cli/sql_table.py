"""A frame as text of a given width: numbers are never cut, long texts are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import polars as pl
from rich.cells import cell_len, set_cell_size
from rich.text import Text

LEAST_TEXT = 10
"""A text is not made narrower than this."""
GAP = "  "


def shown_table(frame: pl.DataFrame, width: int) -> tuple[Text, list[str]]:
    """The table, and the columns that there was no room for."""
    columns = [_Column(series) for series in frame.get_columns()]
    kept = _fitted(columns, width)
    lines = [Text(GAP.join(c.line(c.name) for c in kept).rstrip(), "bold")]
    for row in range(frame.height):
        lines.append(Text(GAP.join(c.line(c.cells[row]) for c in kept).rstrip()))
    return Text("\n").join(lines), [c.name for c in columns[len(kept) :]]


class _Column:
    """The cells of a column as text, and how wide they are drawn."""

    def __init__(self, series: pl.Series) -> None:
        self.name = _printable(series.name)
        self.is_number = series.dtype.is_numeric()
        self.cells = [_cell(value) for value in series.to_list()]
        self.width = max(map(cell_len, [self.name, *self.cells]))

    @property
    def least(self) -> int:
        """How narrow it may be."""
        if self.is_number:
            return self.width
        return min(self.width, max(LEAST_TEXT, min(cell_len(self.name), 2 * LEAST_TEXT)))

    def line(self, text: str) -> str:
        """The text as wide as the column."""
        if cell_len(text) > self.width:
            text = set_cell_size(text, self.width - 1) + "…"
        fill = " " * (self.width - cell_len(text))
        return fill + text if self.is_number else text + fill


def _fitted(columns: list[_Column], width: int) -> list[_Column]:
    """As many from the left as there is room for, the widest texts cut as far as need be."""
    kept = list(columns)
    while len(kept) > 1 and _sum(c.least for c in kept) > width:
        kept.pop()
    while (over := _sum(c.width for c in kept) - width) > 0:
        widest = max(kept, key=lambda c: c.width - c.least)
        others = [c.width for c in kept if c is not widest and c.width > c.least]
        # Down to the next one at most, so that texts of one length stay so.
        step = max(1, min(over, widest.width - max(others, default=0)))
        if widest.width <= widest.least:
            widest.width = max(1, widest.width - over)
            break
        widest.width = max(widest.least, widest.width - step)
    return kept


def _sum(widths: Iterable[int]) -> int:
    found = list(widths)
    return sum(found) + len(GAP) * (len(found) - 1)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.0f}" if 1e6 <= abs(value) < 1e15 else f"{value:.6g}"
    return _printable(str(value))


def _printable(text: str) -> str:
    """In one line, and nothing in it commands the terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
