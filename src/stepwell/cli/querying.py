"""``stepwell query``: SQL over the tables of runs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import polars as pl

from stepwell.analysis.query import pieces, plan
from stepwell.cli.drawing import console
from stepwell.cli.output import to_plain
from stepwell.cli.sql_table import shown_table
from stepwell.cli.waiting import waiting
from stepwell.journal.errors import StepwellError
from stepwell.reading import RecordedRun

ROWS = 50
"""So many are shown unless more are asked for."""
SINKS: dict[str, Callable[[pl.LazyFrame, Path], object]] = {
    ".parquet": lambda lazy, path: lazy.sink_parquet(path, compression="zstd"),
    ".csv": lambda lazy, path: lazy.sink_csv(path),
    ".jsonl": lambda lazy, path: lazy.sink_ndjson(path),
}


def check_output(output: Path | None, as_json: bool, as_csv: bool) -> None:
    """Refuse what does not go together, before anything is read."""
    if sum((output is not None, as_json, as_csv)) > 1:
        raise StepwellError("--json, --csv and -o exclude each other: write one of them")
    if output is not None and output.suffix not in SINKS:
        raise StepwellError(f"-o is {str(output)!r}: end the name in {', '.join(SINKS)}")


def show_query(
    sql: str,
    runs: Sequence[RecordedRun],
    rows: int,
    as_json: bool = False,
    as_csv: bool = False,
    output: Path | None = None,
) -> None:
    """Carry a query out, and print or write what it gives."""
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
    """Beside its place first: what is there under the name is whole."""
    beside = output.with_name(f".{output.name}.{os.getpid()}.part")
    try:
        with waiting(f"writing {output}"):
            try:
                SINKS[output.suffix](lazy, beside)
            except pl.exceptions.PolarsError as error:
                text = str(error).partition("\n")[0]
                raise StepwellError(f"{output} cannot be written: {text}") from None
        beside.replace(output)
    finally:
        beside.unlink(missing_ok=True)
    print(output)


def _with_progress(frames: Iterator[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """What comes first may take a while: a sum over everything, say."""
    with waiting("reading"):
        first = next(frames, None)
    return frames if first is None else chain([first], frames)


def _print_json(frames: Iterator[pl.DataFrame]) -> None:
    """A list of objects, a row a line."""
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
    table, left_out = shown_table(kept, out.width)
    out.print(table, soft_wrap=True)
    if count > kept.height:
        out.print(f"{count - kept.height:,} more rows: --rows {count}, --csv or -o FILE")
    elif not count:
        out.print("no rows")
    if left_out:
        out.print(f"no room for: {', '.join(left_out)} (--csv or -o FILE has all columns)")
