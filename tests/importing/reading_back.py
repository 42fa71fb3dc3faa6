"""Reading imported runs back, as plain values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl

import stepwell
from stepwell.importing import Imported, import_files

Tree = list[tuple[str, Any]]


def imported(folder: Path, *files: Path, **options: Any) -> tuple[Any, Imported]:
    """Import files into ``folder``; the run, and what the import says."""
    done = import_files(files, folder / "runs", **options)
    left = [path.name for path in (folder / "runs").iterdir()]
    assert not [name for name in left if name.startswith(".")]
    return stepwell.open_run(done.path), done


def spans_of(run: Any) -> list[dict[str, Any]]:
    """The spans in the order in which they began, parents named."""
    rows = run.spans().sort("start_ns", "id").collect().to_dicts()
    names = {row["id"]: row["name"] for row in rows}
    for row in rows:
        row["in"] = names[row["parent"]] if row["parent"] is not None else None
        row["attributes"] = json.loads(row["attributes"]) if row["attributes"] else {}
    return rows


def shape(run: Any, *columns: str) -> list[tuple[Any, ...]]:
    """Some columns of the spans in order."""
    return [tuple(row[column] for column in columns) for row in spans_of(run)]


def tree(run: Any, *columns: str) -> dict[tuple[Any, ...], Tree]:
    """For each thread of each process, its spans as nested lists of (what, children)."""
    rows = run.spans().sort("start_ns", "id").collect().to_dicts()
    nodes: dict[int, Tree] = {row["id"]: [] for row in rows}
    roots: dict[tuple[Any, ...], Tree] = {}
    for row in rows:
        place = (row["rank"], row["attempt"], row["thread"])
        where = nodes[row["parent"]] if row["parent"] is not None else roots.setdefault(place, [])
        what = tuple(row[column] for column in ("name", *columns))
        where.append((what, nodes[row["id"]]))
    return roots


def events_of(run: Any) -> list[dict[str, Any]]:
    """The events in the order of time, spans named."""
    names = dict(run.spans().select("id", "name").collect().iter_rows())
    rows = run.events().sort("time_ns", maintain_order=True).collect().to_dicts()
    for row in rows:
        row["on"] = names.get(row["span"])
        row["attributes"] = json.loads(row["attributes"]) if row["attributes"] else {}
    return rows


def metrics_of(run: Any) -> list[tuple[str, int, float]]:
    """Name, time and value of the metrics."""
    return list(
        run.metrics().select("name", "time_ns", "value").sort("time_ns").collect().iter_rows()
    )


def depths_agree(run: Any) -> bool:
    """Whether every span is one deeper than its parent."""
    rows = run.spans().select("id", "parent", "depth").collect()
    joined = rows.join(rows, left_on="parent", right_on="id", how="left", suffix="_above")
    expected = pl.when(pl.col("parent").is_null()).then(0).otherwise(pl.col("depth_above") + 1)
    return bool(joined.select((pl.col("depth") == expected).all()).item())


def write_lines(path: Path, *records: Any) -> Path:
    """A file with one record a line; texts are lines as they are."""
    lines = [r if isinstance(r, str) else json.dumps(r) for r in records]
    path.write_text("\n".join(lines) + "\n")
    return path
