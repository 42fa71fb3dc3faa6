"""Converts histograms and tables to JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from stepwell._core.errors import warn_once
from stepwell._core.values import plain, text_of
from stepwell.loggers.items.converters import (
    CannotKeep,
    ConvertedItem,
    as_json,
    file_name,
    host_tensor,
)

MOST_BINS = 10_000
MOST_ROWS = 100_000
BINS = 64


def histogram(item: Any, identifier: str, options: dict[str, Any]) -> Iterator[ConvertedItem]:
    """Count the numbers of an array, a tensor or a sequence in bins. With ``edges``, the item is the counts.

    The value has n ``counts`` and n + 1 ``edges``; and ``count``, ``min``, ``max``, ``mean`` and ``std`` of
    the finite numbers. ``nonfinite`` is the number of the others.
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
        yield ConvertedItem(identifier, value=value, file=file_name(identifier, ".json"))
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
    yield ConvertedItem(identifier, value=value, file=file_name(identifier, ".json"))


def _numbers(item: Any) -> Any:
    """Return numbers as a flat array of doubles."""
    import numpy as np

    if hasattr(item, "detach"):
        item = host_tensor(item)
    try:
        array = np.asarray(item if hasattr(item, "__array__") else list(item))
    except (TypeError, ValueError) as error:
        raise CannotKeep(f"a histogram needs numbers: {text_of(error)}") from None
    if array.dtype.kind not in "buif" or not array.size:
        raise CannotKeep(f"a histogram needs numbers, got {array.dtype} of shape {array.shape}")
    return array.astype(np.float64).reshape(-1)


def table(item: Any, identifier: str, options: dict[str, Any]) -> Iterator[ConvertedItem]:
    """Convert a table to ``{"columns": […], "data": [[…], …]}``."""
    columns, rows = _columns_and_rows(item, options.pop("columns", None))
    meta: dict[str, Any] = {"rows": len(rows)}
    if len(rows) > MOST_ROWS:
        warn_once(
            f"long table {identifier}",
            "the table %r has %d rows; only the first %d are stored",
            identifier[:200],
            len(rows),
            MOST_ROWS,
        )
    cells = [[_cell(value) for value in row] for row in rows[:MOST_ROWS]]
    content = as_json({"columns": columns, "data": cells})
    if content is None:
        raise CannotKeep("JSON cannot represent its cells")
    yield ConvertedItem(identifier, content=content, file=file_name(identifier, ".json"), meta=meta)


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
        raise CannotKeep(
            f"the table has {len(names)} columns, but not all rows have {len(names)} values"
        )
    return names, rows


def _listed(values: Any) -> list[Any]:
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    if hasattr(values, "tolist"):
        values = values.tolist()
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise CannotKeep(
            f"a table must be rows, a dict of columns or a DataFrame, got {type(values).__name__}"
        )
    return list(values)
