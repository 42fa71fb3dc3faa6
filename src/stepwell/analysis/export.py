"""Exports: a run's tables in the formats of other tools."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl

from stepwell.reading import RecordedRun
from stepwell.reading.run import TABLES


def to_parquet(run: RecordedRun, target: Path) -> list[Path]:
    """Write ``<target>/<table>/run=…/rank=…/part.parquet`` for every table; returns the files.

    Each file is written beside its place and renamed, a rank at a time, with bounded memory.
    """
    files = []
    for table in TABLES:
        for rank in run.ranks():
            place = target / table / f"run={run.id}" / f"rank={rank}"
            place.mkdir(parents=True, exist_ok=True)
            beside = place / ".part.parquet"
            run.table(table, rank).drop("run", "rank").sink_parquet(beside, compression="zstd")
            files.append(beside.replace(place / "part.parquet"))
    return files


def read_exported(target: Path, table: str) -> pl.LazyFrame:
    """An exported table again, with the columns that its folders name."""
    return pl.scan_parquet(target / table / "**/*.parquet", hive_partitioning=True)


EXPORTS: dict[str, Callable[[RecordedRun, Path], list[Path]]] = {"parquet": to_parquet}
