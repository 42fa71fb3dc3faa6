"""Memory that grows and grows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.findings.wording import duration, percent

PATTERN = r"memory_rss_bytes$|gpu.*memory_(used|allocated)_bytes$"
SETTLING = 0.25
"""Of the readings at the beginning: until then caches fill and nobody wonders."""
FEWEST = 6
MANY = 12
"""Readings from which on parts of them are compared; of fewer each one, which has to grow evenly."""
EVEN = 0.3
"""Of the mean growth from one reading to the next: the least one of a few."""
SHORTEST_NS = 20_000_000_000
LEAST = 200e6
LEAST_RATIO = 0.15
PARTS = 6


def rule(facts: Facts) -> Iterator[Finding]:
    """One finding for the rank and the kind of memory that grew most."""
    table = facts.machine.filter(pl.col("name").str.contains(PATTERN))
    found = []
    for (name, rank, attempt), part in table.group_by("name", "rank", "attempt"):
        times, values = part["time_ns"].to_numpy(), part["value"].to_numpy()
        low = int(SETTLING * len(values))
        growth = _growth(values[low:])
        span = int(times[-1] - times[low])
        if growth is not None and (len(values) - low >= MANY or span >= SHORTEST_NS):
            found.append((growth, str(name), int(str(rank)), int(str(attempt)), span, part))
    if not found:
        return
    growth, name, rank, _, span, part = max(found, key=lambda one: one[0])
    values = part["value"].to_numpy()
    rate = growth / max(span, 1) * 3.6e12
    steps = part["step"].drop_nulls()
    before = float(values[int(SETTLING * len(values))])
    yield Finding(
        "memory-growth",
        "warning",
        f"{'GPU memory' if 'gpu' in name else 'Memory'} of rank {rank} grows steadily: "
        f"{_bytes(before)} to {_bytes(before + growth)} in {duration(span)}, "
        f"{_bytes(rate)} an hour{_left(facts, name, rate)}.",
        {"metric": name, "bytes": growth, "bytes_per_hour": rate, "ratio": growth / before},
        (int(steps[0]), int(steps[-1])) if len(steps) else (),
        (rank,),
        "Something is kept from step to step: a list of tensors (loss without .item()), a cache.",
        facts.command("plot", name),
    )


def _growth(values: NDArray[np.float64]) -> float | None:
    """Bytes by which it grew from the first to the last part, if it did so all the way."""
    if len(values) < FEWEST:
        return None
    levels, least = values, EVEN
    if len(values) >= MANY:
        edges = np.linspace(0, len(values), PARTS + 1).astype(int)
        levels, least = np.array([np.median(values[a:b]) for a, b in pairwise(edges)]), 0.05
    growth = float(levels[-1] - levels[0])
    is_steady = bool((np.diff(levels) > least * growth / (len(levels) - 1)).all())
    return growth if is_steady and growth >= max(LEAST, LEAST_RATIO * levels[0]) else None


def _left(facts: Facts, name: str, rate: float) -> str:
    """When there will be none left, while it runs."""
    if facts.status != "running" or "gpu" in name:
        return ""
    free = facts.machine.filter(pl.col("name") == "system/memory_available_bytes")
    if free.is_empty():
        return ""
    return f"; {percent(1)} full in {duration(float(free['value'][-1]) / rate * 3.6e12)}"


def _bytes(count: float) -> str:
    for unit in ("B", "KB", "MB"):
        if abs(count) < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
