"""Histograms and tables as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from stepwell.journal.careful import plain
from stepwell.journal.errors import warn_once
from stepwell.journal.values import text_of
from stepwell.loggers.items.making import CannotKeep, Item, as_json, file_name

MOST_BINS = 10_000
MOST_ROWS = 100_000
BINS = 64


def histogram(item: Any, identifier: str, options: dict[str, Any]) -> Iterator[Item]:
    """Count an array, a tensor or a sequence of numbers in bins; ``edges``: the counts are given.

    The value has ``counts``, ``edges`` (one more), and ``count``, ``min``, ``max``, ``mean`` and ``std`` of
    the finite numbers. Others are counted in ``nonfinite``.
    """
    import numpy as np

    edges, bins = options.pop("edges", None), options.pop("bins", BINS)
    numbers = _numbers(item)
    if edges is not None:
        limits = _numbers(edges)
        if limits.size != numbers.size + 1 or (np.diff(limits) <= 0).any():
            raise CannotKeep(
                f"edges must be {numbers.size + 1} increasing numbers for {numbers.size} counts, "
                f"got {limits.size}"
            )
        value = {
            "counts": numbers.tolist(),
            "edges": limits.tolist(),
            "count": float(numbers.sum()),
        }
        yield Item(identifier, value=value, file=file_name(identifier, ".json"))
        return
    if isinstance(bins, bool) or not isinstance(bins, int) or not 0 < bins <= MOST_BINS:
        raise CannotKeep(f"bins must be a number from 1 to {MOST_BINS}, got {bins!r}")
    finite = numbers[np.isfinite(numbers)]
    counts, limits = np.histogram(finite, bins) if finite.size else (np.zeros(0), np.zeros(0))
    value = {
        "counts": counts.tolist(),
        "edges": limits.tolist(),
        "count": int(finite.size),
        "nonfinite": int(numbers.size - finite.size),
    }
    if finite.size:
        value |= {
            "min": float(finite.min()),
            "max": float(finite.max()),
            "mean": float(finite.mean()),
            "std": float(finite.std()),
        }
    yield Item(identifier, value=value, file=file_name(identifier, ".json"))


def _numbers(item: Any) -> Any:
    """Return numbers as a flat array of doubles."""
    import numpy as np

    if hasattr(item, "detach"):
        item = item.detach().cpu()
        item = item.float() if item.is_floating_point() else item  # numpy has no bfloat16
    try:
        array = np.asarray(item if hasattr(item, "__array__") else list(item))
    except (TypeError, ValueError) as error:
        raise CannotKeep(f"a histogram is made of numbers: {text_of(error)}") from None
    if array.dtype.kind not in "buif" or not array.size:
        raise CannotKeep(
            f"a histogram is made of numbers, not {array.dtype} of shape {array.shape}"
        )
    return array.astype(np.float64).reshape(-1)


def table(item: Any, identifier: str, options: dict[str, Any]) -> Iterator[Item]:
    """Rows and columns as ``{"columns": […], "data": [[…], …]}``."""
    columns, rows = _columns_and_rows(item, options.pop("columns", None))
    about: dict[str, Any] = {"rows": len(rows)}
    if len(rows) > MOST_ROWS:
        warn_once(
            f"long table {identifier}",
            "the table %r has %d rows: the first %d are kept",
            identifier[:200],
            len(rows),
            MOST_ROWS,
        )
    cells = [[_cell(value) for value in row] for row in rows[:MOST_ROWS]]
    content = as_json({"columns": columns, "data": cells})
    if content is None:
        raise CannotKeep("its cells cannot be written as JSON")
    yield Item(identifier, content=content, file=file_name(identifier, ".json"), meta=about)


def _cell(value: Any) -> Any:
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return plain(value)


def _columns_and_rows(item: Any, columns: Any) -> tuple[list[str], list[list[Any]]]:
    names = None if columns is None else [text_of(name) for name in columns]
    if hasattr(item, "columns") and hasattr(item, "shape"):  # a DataFrame
        own = [text_of(name) for name in item.columns]
        iterate = item.iter_rows if hasattr(item, "iter_rows") else None
        rows = iterate() if iterate else item.itertuples(index=False, name=None)
        return names or own, [list(row) for row in rows]
    if isinstance(item, Mapping):
        values = [_listed(column) for column in item.values()]
        if len({len(column) for column in values}) > 1:
            raise CannotKeep("its columns have different lengths")
        own = [text_of(name) for name in item]
        return names or own, [list(row) for row in zip(*values, strict=True)]
    given = _listed(item)
    if given and all(isinstance(row, Mapping) for row in given):
        own = list(dict.fromkeys(key for row in given for key in row))
        return names or [text_of(key) for key in own], [[row.get(k) for k in own] for row in given]
    rows = [_listed(row) for row in given]
    width = max(map(len, rows), default=0)
    names = names or [str(number) for number in range(width)]
    if any(len(row) != len(names) for row in rows):
        raise CannotKeep(f"each row of a table with {len(names)} columns needs as many values")
    return names, rows


def _listed(values: Any) -> list[Any]:
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    if hasattr(values, "tolist"):
        values = values.tolist()
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise CannotKeep(
            "a table is made of rows, a dict of columns or a DataFrame, not "
            f"{type(values).__name__}"
        )
    return list(values)
