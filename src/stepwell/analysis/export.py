"""Exports: a run's tables in the formats of other tools."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl

from stepwell.reading import RecordedRun
from stepwell.reading.run import TABLES

Progress = Callable[[int, int], None]
"""Called with how many files were written, and how many there will be."""


def to_parquet(run: RecordedRun, target: Path, progress: Progress | None = None) -> list[Path]:
    """Write ``<target>/<table>/run=…/rank=…/part.parquet`` for every table; returns the files.

    Each file is written beside its place and renamed, a rank at a time, with bounded memory.
    """

    def sink(table: pl.LazyFrame, path: Path) -> object:
        return table.sink_parquet(path, compression="zstd")

    return _each(run, target, "parquet", sink, progress)


def to_csv(run: RecordedRun, target: Path, progress: Progress | None = None) -> list[Path]:
    """The same as ``part.csv``, with a line of column names each."""
    return _each(run, target, "csv", lambda table, path: table.sink_csv(path), progress)


def to_jsonl(run: RecordedRun, target: Path, progress: Progress | None = None) -> list[Path]:
    """The same as ``part.jsonl``, a JSON object a line; a number that JSON has no word for is null."""
    return _each(run, target, "jsonl", lambda table, path: table.sink_ndjson(path), progress)


def _each(
    run: RecordedRun,
    target: Path,
    ending: str,
    sink: Callable[[pl.LazyFrame, Path], object],
    progress: Progress | None,
) -> list[Path]:
    files: list[Path] = []
    ranks = run.ranks()
    for table in TABLES:
        for rank in ranks:
            place = target / table / f"run={run.id}" / f"rank={rank}"
            place.mkdir(parents=True, exist_ok=True)
            beside = place / f".part.{ending}"
            sink(run.table(table, rank).drop("run", "rank"), beside)
            files.append(beside.replace(place / f"part.{ending}"))
            if progress is not None:
                progress(len(files), len(TABLES) * len(ranks))
    return files


EXPORTS: dict[str, Callable[[RecordedRun, Path, Progress | None], list[Path]]] = {
    "parquet": to_parquet,
    "csv": to_csv,
    "jsonl": to_jsonl,
}
