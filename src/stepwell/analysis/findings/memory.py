"""Memory that grows steadily, and time spent in garbage collection."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepwell._core.text import duration, percent, size
from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding

PATTERN = r"memory_rss_bytes$|gpu.*memory_(used|allocated)_bytes$"
SETTLING = 0.25
"""Share of the readings at the start that is ignored: caches fill up then."""
FEWEST = 6
MANY = 12
"""From this number of readings on, medians of parts are compared, else single readings."""
EVEN = 0.3
"""Least growth from one single reading to the next, as a share of the mean growth."""
SHORTEST_NS = 20_000_000_000
LEAST = 200e6
LEAST_RATIO = 0.15
PARTS = 6
PHASE = "garbage collection"
WARN = 0.03
CRITICAL = 0.15
GARBAGE_LEAST_NS = 500_000_000


def find_memory_growth(facts: Facts) -> Iterator[Finding]:
    """Yield at most one finding, for the rank and the kind of memory that grew most."""
    table = facts.machine.filter(pl.col("name").str.contains(PATTERN))
    growing = []
    for (name, rank, _), part in table.group_by("name", "rank", "attempt"):
        times, values = part["time_ns"].to_numpy(), part["value"].to_numpy()
        low = int(SETTLING * len(values))
        growth = _growth(values[low:])
        span = int(times[-1] - times[low])
        if growth is not None and (len(values) - low >= MANY or span >= SHORTEST_NS):
            growing.append((growth, str(name), int(str(rank)), span, part))
    if not growing:
        return
    growth, name, rank, span, part = max(growing, key=lambda candidate: candidate[0])
    values = part["value"].to_numpy()
    rate = growth / max(span, 1) * 3.6e12
    steps = part["step"].drop_nulls()
    before = float(values[int(SETTLING * len(values))])
    yield Finding(
        "memory-growth",
        "warning",
        f"{'GPU memory' if 'gpu' in name else 'Memory'} of rank {rank} grows steadily from "
        f"{size(before)} to {size(before + growth)} in {duration(span)}, "
        f"by {size(rate)} per hour{_left(facts, name, rate)}.",
        {"metric": name, "bytes": growth, "bytes_per_hour": rate, "ratio": growth / before},
        (int(steps[0]), int(steps[-1])) if len(steps) else (),
        (rank,),
        "Check what is kept from step to step: a list of tensors (loss without .item()), or a cache.",
    )


def _growth(values: NDArray[np.float64]) -> float | None:
    """Return the growth in bytes from the first to the last part; None if it is small or not steady."""
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
    """Return when the memory will be full, while the run is running, else ""."""
    if facts.status != "running" or "gpu" in name:
        return ""
    free = facts.machine.filter(name="system/memory_available_bytes")
    if free.is_empty():
        return ""
    return f". It will be full in {duration(float(free['value'][-1]) / rate * 3.6e12)}"


def find_garbage_collection(facts: Facts) -> Iterator[Finding]:
    """Yield at most one finding for the run."""
    share, ns, _ = facts.share(PHASE)
    if share < WARN or ns < GARBAGE_LEAST_NS:
        return
    rows = facts.steady.filter(pl.col(PHASE) > 0).sort(PHASE, descending=True)
    longest = rows.row(0, named=True)
    yield Finding(
        "gc-pauses",
        "critical" if share >= CRITICAL else "warning",
        f"Garbage collection takes {percent(facts.part_of_wall(facts.table[PHASE]))} of the wall time, "
        f"up to {duration(longest[PHASE])} in one step (step {longest['step']}).",
        {"phase": PHASE, "share": share, "ns": ns, "longest_ns": longest[PHASE]},
        tuple(sorted(set(rows["step"].head(1000).to_list()))),
        advice="Call gc.freeze() after setup, or gc.disable() with gc.collect() every N steps, and keep "
        "fewer Python objects.",
        cost_ns=ns,
    )
