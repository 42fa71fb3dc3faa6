"""The table of steps as arrays, rank by step."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from stepwell.analysis.timeline.tables import side_by_side

parts = st.dictionaries(
    st.tuples(st.integers(0, 3), st.integers(1, 2)),
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 50)), min_size=1, max_size=12),
    max_size=6,
)


def table_of(rows: list[tuple[int, int, int, int]]) -> pl.DataFrame:
    schema = {"rank": pl.Int32, "attempt": pl.Int32, "step": pl.Int64, "data": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row")


@given(parts)
def test_cells_are_the_sums_of_a_group_by(
    own: dict[tuple[int, int], list[tuple[int, int]]],
) -> None:
    """Ranks may have different steps, in any order, and repeat some."""
    table = table_of([(*key, *row) for key, rows in own.items() for row in rows])
    sums: dict[Any, int] = {
        (attempt, rank, step): ns
        for attempt, rank, step, ns in table.group_by("attempt", "rank", "step")
        .agg(pl.col("data").sum())
        .iter_rows()
    }
    found = {}
    for attempt in side_by_side(table, table["data"]):
        assert (np.diff(attempt.steps) > 0).all()
        ((cells),) = attempt.columns
        places = product(enumerate(attempt.ranks.tolist()), enumerate(attempt.steps.tolist()))
        for (row, rank), (column, step) in places:
            if cells[row, column] >= 0:
                found[attempt.attempt, rank, step] = int(cells[row, column])
    assert found == sums


def test_there_is_no_attempt_without_steps() -> None:
    table = table_of([])
    assert list(side_by_side(table, table["data"])) == []
