"""SQL over the tables of one or several runs.

    query("SELECT name, sum(duration_ns) AS ns FROM spans GROUP BY name", ["runs/a", "runs/b"])

The dialect is that of Polars. A query reads only the tables and columns that it uses, segment by segment.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence

import polars as pl

from stepwell._core.errors import StepwellError
from stepwell.analysis.timeline.tables import STEPS
from stepwell.reading import RecordedRun, open_run
from stepwell.reading.run import SCHEMAS
from stepwell.reading.tables import scan

RUNS = pl.Schema(
    {
        "run": pl.String(),
        "name": pl.String(),
        "status": pl.String(),
        "created_ns": pl.Int64(),
        "ranks": pl.Int64(),
        "attempts": pl.Int64(),
        "path": pl.String(),
        "config": pl.String(),
        "labels": pl.String(),
    }
)
LEDGER = pl.Schema(
    {
        "run": pl.String(),
        "rank": pl.Int32(),
        "attempt": pl.Int32(),
        "phase": pl.String(),
        "ns": pl.Int64(),
        "seconds": pl.Float64(),
        "share": pl.Float64(),
    }
)
COLUMNS: dict[str, pl.Schema] = {
    **SCHEMAS,
    "runs": RUNS,
    "steps": pl.Schema({"run": pl.String(), **STEPS}),
    "ledger": LEDGER,
}
"""The tables and their columns."""

JSON_COLUMNS = ("attributes", "config", "labels")
_MEMBER = re.compile(rf"\b({'|'.join(JSON_COLUMNS)})\s*->>?\s*'([^'\"]+)'")
_COLUMN = re.compile(r'unable to find column "([^"]*)"')
_TABLE = re.compile(r"relation '([^']*)' was not found")

RunLike = RecordedRun | str | os.PathLike[str]


def query(sql: str, runs: RunLike | Sequence[RunLike]) -> pl.DataFrame:
    """Return the result of a query over these runs; the column ``run`` has the run.

    ``attributes->>'key'`` is a member of the JSON in ``attributes`` (or ``config``, ``labels``), as text.
    Raises StepwellError if the query is wrong, with the tables and columns that exist.
    """
    return collect(sql, plan(sql, runs))


def plan(sql: str, runs: RunLike | Sequence[RunLike]) -> pl.LazyFrame:
    """Return the result as a lazy frame, without reading anything yet."""
    opened = _open(runs)
    text, members = _without_members(sql)
    with pl.SQLContext() as context:
        for name in COLUMNS:
            context.register(name, _with_members(_table(name, opened), members))
        try:
            lazy = context.execute(text, eager=False)
            lazy.collect_schema()
        except (pl.exceptions.PolarsError, OSError) as error:
            raise _refusal(sql, error) from None
    return lazy


def collect(sql: str, lazy: pl.LazyFrame) -> pl.DataFrame:
    """Return the result of a planned query."""
    try:
        return lazy.collect(engine="streaming")
    except pl.exceptions.PolarsError as error:
        raise _refusal(sql, error) from None


def pieces(sql: str, lazy: pl.LazyFrame) -> Iterator[pl.DataFrame]:
    """Yield the result of a planned query in pieces, for results that may not fit into memory."""
    try:
        batches = getattr(lazy, "collect_batches", None)
        if batches is None:  # Older versions of Polars return it as a whole.
            yield lazy.collect(engine="streaming")
        else:
            yield from batches(engine="streaming", maintain_order=True)
    except pl.exceptions.PolarsError as error:
        raise _refusal(sql, error) from None


def _open(runs: RunLike | Sequence[RunLike]) -> list[RecordedRun]:
    many = [runs] if isinstance(runs, RecordedRun | str | os.PathLike) else list(runs)
    if not many:
        raise StepwellError("runs must contain at least one run")
    return [run if isinstance(run, RecordedRun) else open_run(run) for run in many]


# Tables


def _table(name: str, runs: list[RecordedRun]) -> pl.LazyFrame:
    if name in SCHEMAS:
        return pl.concat([run.table(name) for run in runs])
    make = {"runs": _runs, "steps": _steps, "ledger": _ledger}[name]
    return scan(COLUMNS[name], lambda wanted: map(make, runs))


def _runs(run: RecordedRun) -> pl.DataFrame:
    documents = run.documents()
    row = {
        "run": run.id,
        "name": run.name,
        "status": run.status,
        "created_ns": run.created_ns or None,
        "ranks": len({d["rank"] for d in documents}),
        "attempts": len({d["attempt"] for d in documents}),
        "path": str(run.path),
        "config": json.dumps(run.config, default=str),
        "labels": json.dumps(run.labels, default=str),
    }
    return pl.DataFrame([row], schema=RUNS)


def _steps(run: RecordedRun) -> pl.DataFrame:
    from stepwell.analysis.timeline import steps

    return steps(run).select(pl.lit(run.id).alias("run"), pl.all())


def _ledger(run: RecordedRun) -> pl.DataFrame:
    from stepwell.analysis.timeline import ledger

    table = ledger(run, by=("rank", "attempt")).with_columns(pl.col("phase").cast(pl.String))
    return table.select(pl.lit(run.id).alias("run"), pl.all())


# Members of JSON, which the dialect does not support


def _without_members(sql: str) -> tuple[str, dict[str, tuple[str, str]]]:
    """Replace each member by a column. Return the query and the members."""
    members: dict[str, tuple[str, str]] = {}

    def replace(match: re.Match[str]) -> str:
        name = f"{match[1]}.{match[2]}"
        members[name] = match[1], match[2]
        return f'"{name}"'

    return _MEMBER.sub(replace, sql), members


def _with_members(table: pl.LazyFrame, members: dict[str, tuple[str, str]]) -> pl.LazyFrame:
    columns = table.collect_schema() if members else ()
    return table.with_columns(
        pl.col(column).str.json_path_match(_path(key)).alias(name)
        for name, (column, key) in members.items()
        if column in columns
    )


def _path(key: str) -> str:
    return f"$.{key}" if re.fullmatch(r"\w+", key) else f"$['{key}']"


# Errors


def _refusal(sql: str, error: Exception) -> StepwellError:
    """Return an error that says what is wrong and which tables and columns exist."""
    text = str(error).partition("\n")[0]
    column, table = _COLUMN.search(text), _TABLE.search(text)
    used = [name for name in COLUMNS if re.search(rf"\b{name}\b", sql, re.IGNORECASE)]
    if table is not None:
        return StepwellError(
            f"there is no table {table[1]!r}{_nearest(table[1], COLUMNS)}: "
            f"the tables are {', '.join(COLUMNS)}"
        )
    if column is not None and used:
        names = list(dict.fromkeys(name for table in used for name in COLUMNS[table]))
        nearest = _nearest(column[1], names)
        return StepwellError(f"there is no column {column[1]!r}{nearest}.\n{_described(used)}")
    text = text.removeprefix("sql parser error: ").rstrip(". ")
    rest = _described(used) if used else f"The tables are {', '.join(COLUMNS)}."
    return StepwellError(f"the query is not valid: {text}.\n{rest}")


def _nearest(word: str, names: Sequence[str] | dict[str, pl.Schema]) -> str:
    from difflib import get_close_matches

    matches = get_close_matches(word, list(names), 1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


def _described(tables: list[str]) -> str:
    """Return the columns of these tables, one line for each table."""
    return "\n".join(f"{name}: {', '.join(map(_quoted, COLUMNS[name]))}" for name in tables)


def _quoted(column: str) -> str:
    return column if re.fullmatch(r"\w+", column) else f'"{column}"'
