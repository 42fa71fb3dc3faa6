"""``stepwell query``: SQL over the tables of runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import polars as pl
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from stepwell._core.errors import StepwellError
from stepwell._core.files import replacing
from stepwell.analysis.query import pieces, plan
from stepwell.cli.output import to_plain
from stepwell.cli.progress import waiting
from stepwell.cli.terminal import UNLIMITED, console, plain
from stepwell.reading import RecordedRun

SINKS: dict[str, Callable[[pl.LazyFrame, Path], object]] = {
    ".parquet": lambda lazy, path: lazy.sink_parquet(path, compression="zstd"),
    ".csv": lambda lazy, path: lazy.sink_csv(path),
    ".jsonl": lambda lazy, path: lazy.sink_ndjson(path),
}


def check_output(output: Path | None, as_json: bool, as_csv: bool) -> None:
    """Raise StepwellError for options that exclude each other, before anything is read."""
    if sum((output is not None, as_json, as_csv)) > 1:
        raise StepwellError("--json, --csv and -o exclude each other: use one of them")
    if output is not None and output.suffix not in SINKS:
        raise StepwellError(f"-o must end in {', '.join(SINKS)}, got {str(output)!r}")


def show_query(
    sql: str,
    runs: Sequence[RecordedRun],
    rows: int,
    as_json: bool = False,
    as_csv: bool = False,
    output: Path | None = None,
) -> None:
    """Run a query, and print or write the result."""
    lazy = plan(sql, runs)
    if output is not None:
        _write(lazy, output)
    elif as_json:
        _print_json(pieces(sql, lazy))
    elif as_csv:
        for number, frame in enumerate(_with_progress(pieces(sql, lazy))):
            sys.stdout.write(frame.write_csv(include_header=number == 0))
    else:
        _print_table(lazy, pieces(sql, lazy), rows)


def _write(lazy: pl.LazyFrame, output: Path) -> None:
    with waiting(f"writing {output}"), replacing(output) as target:
        try:
            SINKS[output.suffix](lazy, target)
        except pl.exceptions.PolarsError as error:
            text = str(error).partition("\n")[0]
            raise StepwellError(f"{output} cannot be written: {text}") from None
    print(output)


def _with_progress(frames: Iterator[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Show a spinner until the first frame: an aggregation may take a while."""
    with waiting("reading"):
        first = next(frames, None)
    return frames if first is None else chain([first], frames)


def _print_json(frames: Iterator[pl.DataFrame]) -> None:
    """Print a list of objects, one row per line."""
    gap = "[\n"
    for frame in _with_progress(frames):
        for row in frame.iter_rows(named=True):
            sys.stdout.write(gap + json.dumps(to_plain(row), ensure_ascii=False))
            gap = ",\n"
    sys.stdout.write("[]\n" if gap == "[\n" else "\n]\n")


def _print_table(lazy: pl.LazyFrame, frames: Iterator[pl.DataFrame], rows: int) -> None:
    kept, count = pl.DataFrame(schema=lazy.collect_schema()), 0
    with waiting("reading"):
        for frame in frames:
            if rows > kept.height:
                kept = pl.concat([kept, frame.head(rows - kept.height)])
            count += frame.height
    out = console()
    table, left_out = shown_table(kept, out.width if out.is_terminal else UNLIMITED)
    out.print(table, soft_wrap=True)
    if count > kept.height:
        out.print(f"{count - kept.height:,} more rows: use --rows {count}, --csv or -o FILE")
    elif not count:
        out.print("No rows.")
    if left_out:
        out.print(f"Columns left out: {', '.join(left_out)}. Use --csv or -o FILE for all columns.")


LEAST_TEXT = 10
"""Narrowest width of a text column."""
GAP = "  "


def shown_table(frame: pl.DataFrame, width: int) -> tuple[Text, list[str]]:
    """Return a table of at most this width, and the names of columns that did not fit."""
    columns = [_Column(series) for series in frame.get_columns()]
    kept = _fitted(columns, width)
    lines = [Text(GAP.join(c.line(c.name) for c in kept).rstrip(), "bold")]
    for row in range(frame.height):
        lines.append(Text(GAP.join(c.line(c.cells[row]) for c in kept).rstrip()))
    return Text("\n").join(lines), [c.name for c in columns[len(kept) :]]


class _Column:
    """The cells of a column as text, and their width."""

    def __init__(self, series: pl.Series) -> None:
        self.name = plain(series.name).plain
        self.is_number = series.dtype.is_numeric()
        self.cells = [_cell(value) for value in series.to_list()]
        self.width = max(map(cell_len, [self.name, *self.cells]))

    @property
    def least(self) -> int:
        """The smallest width."""
        if self.is_number:
            return self.width
        return min(self.width, max(LEAST_TEXT, min(cell_len(self.name), 2 * LEAST_TEXT)))

    def line(self, text: str) -> str:
        """Return the text cut or padded to the width of the column."""
        if cell_len(text) > self.width:
            text = set_cell_size(text, self.width - 1) + "…"
        fill = " " * (self.width - cell_len(text))
        return fill + text if self.is_number else text + fill


def _fitted(columns: list[_Column], width: int) -> list[_Column]:
    """Return as many columns from the left as fit, with the widest text columns narrowed."""
    kept = list(columns)
    while len(kept) > 1 and _sum(c.least for c in kept) > width:
        kept.pop()
    while (over := _sum(c.width for c in kept) - width) > 0:
        widest = max(kept, key=lambda c: c.width - c.least)
        others = [c.width for c in kept if c is not widest and c.width > c.least]
        # At most to the width of the next one, so that equally wide columns stay equal.
        step = max(1, min(over, widest.width - max(others, default=0)))
        if widest.width <= widest.least:
            widest.width = max(1, widest.width - over)
            break
        widest.width = max(widest.least, widest.width - step)
    return kept


def _sum(widths: Iterable[int]) -> int:
    columns = list(widths)
    return sum(columns) + len(GAP) * (len(columns) - 1)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.0f}" if 1e6 <= abs(value) < 1e15 else f"{value:.6g}"
    return plain(str(value)).plain
