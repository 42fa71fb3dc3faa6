"""Export of a run's tables as Parquet, CSV or JSON Lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl

from stepwell._core.files import replacing
from stepwell.reading import RecordedRun
from stepwell.reading.run import TABLES

Progress = Callable[[int, int], None]
"""Called with the number of files written so far and in total."""


def to_parquet(run: RecordedRun, target: Path, progress: Progress | None = None) -> list[Path]:
    """Write ``<target>/<table>/run=…/rank=…/part.parquet`` for every table. Return the paths.

    Writes one rank at a time, with bounded memory. Each file is replaced in one step.
    """

    def sink(table: pl.LazyFrame, path: Path) -> object:
        return table.sink_parquet(path, compression="zstd")

    return _export(run, target, "parquet", sink, progress)


def to_csv(run: RecordedRun, target: Path, progress: Progress | None = None) -> list[Path]:
    """Write the same files as ``part.csv``, with a header line."""
    return _export(run, target, "csv", lambda table, path: table.sink_csv(path), progress)


def to_jsonl(run: RecordedRun, target: Path, progress: Progress | None = None) -> list[Path]:
    """Write the same files as ``part.jsonl``, one JSON object per line. NaN and infinity become null."""
    return _export(run, target, "jsonl", lambda table, path: table.sink_ndjson(path), progress)


def _export(
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
            file = target / table / f"run={run.id}" / f"rank={rank}" / f"part.{ending}"
            file.parent.mkdir(parents=True, exist_ok=True)
            with replacing(file) as beside:
                sink(run.table(table, rank).drop("run", "rank"), beside)
            files.append(file)
            if progress is not None:
                progress(len(files), len(TABLES) * len(ranks))
    return files


EXPORTS: dict[str, Callable[[RecordedRun, Path, Progress | None], list[Path]]] = {
    "parquet": to_parquet,
    "csv": to_csv,
    "jsonl": to_jsonl,
}
