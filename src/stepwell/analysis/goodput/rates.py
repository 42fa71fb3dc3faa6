"""Throughput, and what a sample costs: in operations, money and energy, where that is known."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from stepwell.journal.names import METRIC
from stepwell.reading import RecordedRun
from stepwell.reading.tables import ProcessTables

HOUR_NS = 3_600_000_000_000
ENERGY = re.compile("energy(?:_cpu)?_(measured|estimated)_joules$")
"""Metrics that count energy."""


@dataclass(frozen=True)
class Rates:
    """None is what cannot be told from what was recorded."""

    samples: int | None = None
    samples_per_second: float | None = None
    """Over the whole wall time."""
    productive_samples_per_second: float | None = None
    """Over the productive time alone."""
    mfu: float | None = None
    """Of the operations that the devices could have done in the wall time, those that the model needed."""
    cost: float | None = None
    cost_per_sample: float | None = None
    joules: float | None = None
    joules_per_sample: float | None = None
    is_energy_estimated: bool = False


@dataclass(frozen=True)
class Known:
    """What rates are worked out from, beside the config of the runs."""

    wall_ns: int
    productive_ns: int
    steps: int
    peak_flops: float | None
    price_per_hour: float | None


Joules = dict[str, float]
"""Energy by how it was found out: measured or estimated."""


def joules_of(tables: ProcessTables, metrics: Iterable[pl.DataFrame] | None = None) -> Joules:
    """What one process says that it used. Each counts from its own start.

    ``metrics`` are its frames with ``name`` and ``value``, when they have been read already.
    """
    names = {name for kind, _, name in tables.process.names.values() if kind == METRIC}
    kinds = {name: found[1] for name in names if (found := ENERGY.search(name))}
    if not kinds:
        return {}
    is_energy = pl.col("name").is_in(list(kinds)) & pl.col("value").is_finite()
    read = tables.metrics({"name", "value"}) if metrics is None else metrics
    frames = [frame.select("name", "value").filter(is_energy) for frame in read]
    latest = pl.concat(frames).group_by("name").agg(pl.col("value").max()) if frames else None
    return _added(
        {kinds[name]: value}
        for name, value in (latest.sort("name").rows() if latest is not None else ())
    )


def _added(parts: Iterable[Joules]) -> Joules:
    total: Joules = {}
    for part in parts:
        for kind, joules in part.items():
            total[kind] = total.get(kind, 0.0) + joules
    return total


def total_joules(parts: Iterable[Joules]) -> tuple[float | None, bool]:
    """In all, and whether that is an estimate: what was measured counts where there is any."""
    total = _added(parts)
    if "measured" in total:
        return total["measured"], False
    return total.get("estimated"), "estimated" in total


def read_rates(runs: Sequence[RecordedRun], known: Known, energy: Iterable[Joules]) -> Rates:
    """What can be told of these runs together."""
    batch = _number(runs, "global_batch_size")
    samples = int(known.steps * batch) if batch else None
    per_second = _per(samples, known.wall_ns / 1e9)
    work = _number(runs, "flops_per_sample")
    peak = known.peak_flops or _number(runs, "peak_flops_per_device")
    devices = max((int(run.about.get("world_size") or 1) for run in runs), default=1)
    price = known.price_per_hour or _number(runs, "price_per_hour")
    cost = price * known.wall_ns / HOUR_NS if price else None
    joules, is_estimated = total_joules(energy)
    return Rates(
        samples=samples,
        samples_per_second=per_second,
        productive_samples_per_second=_per(samples, known.productive_ns / 1e9),
        mfu=per_second * work / (peak * devices) if per_second and work and peak else None,
        cost=cost,
        cost_per_sample=_per(cost, samples),
        joules=joules,
        joules_per_sample=_per(joules, samples),
        is_energy_estimated=is_estimated,
    )


def _per(amount: float | None, count: float | None) -> float | None:
    """One for each of the other; None when either is unknown, or there is none."""
    return amount / count if amount is not None and count else None


def _number(runs: Sequence[RecordedRun], key: str) -> float | None:
    """A positive number from the config of the latest run that has it."""
    for run in reversed(runs):
        value: Any = run.config.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            return float(value)
    return None
