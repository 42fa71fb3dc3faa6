"""Throughput, and the cost of a sample in operations, money and energy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from stepwell.analysis.throughput import Joules, add_joules
from stepwell.reading import RecordedRun

HOUR_NS = 3_600_000_000_000


@dataclass(frozen=True)
class Rates:
    """Rates and costs of a job. None if the recorded data are not enough."""

    samples: int | None = None
    samples_per_second: float | None = None
    """Over the whole wall time."""
    productive_samples_per_second: float | None = None
    """Over the productive time only."""
    mfu: float | None = None
    """Model FLOPS utilisation: operations of the model relative to the peak of all devices."""
    cost: float | None = None
    cost_per_sample: float | None = None
    joules: float | None = None
    joules_per_sample: float | None = None
    is_energy_estimated: bool = False


@dataclass(frozen=True)
class JobTotals:
    """The totals of a job from which rates are computed, in addition to the config of its runs."""

    wall_ns: int
    productive_ns: int
    steps: int
    peak_flops: float | None
    price_per_hour: float | None


def total_joules(parts: Iterable[Joules]) -> tuple[float | None, bool]:
    """Return the total energy, and whether it is an estimate: measured values take precedence."""
    total = add_joules(parts)
    if "measured" in total:
        return total["measured"], False
    return total.get("estimated"), "estimated" in total


def read_rates(runs: Sequence[RecordedRun], totals: JobTotals, energy: Iterable[Joules]) -> Rates:
    """Return the rates of these runs together."""
    batch = _number(runs, "global_batch_size")
    samples = int(totals.steps * batch) if batch else None
    per_second = _per(samples, totals.wall_ns / 1e9)
    work = _number(runs, "flops_per_sample")
    peak = totals.peak_flops or _number(runs, "peak_flops_per_device")
    devices = max((int(run.document.get("world_size") or 1) for run in runs), default=1)
    price = totals.price_per_hour or _number(runs, "price_per_hour")
    cost = price * totals.wall_ns / HOUR_NS if price else None
    joules, is_estimated = total_joules(energy)
    return Rates(
        samples=samples,
        samples_per_second=per_second,
        productive_samples_per_second=_per(samples, totals.productive_ns / 1e9),
        mfu=per_second * work / (peak * devices) if per_second and work and peak else None,
        cost=cost,
        cost_per_sample=_per(cost, samples),
        joules=joules,
        joules_per_sample=_per(joules, samples),
        is_energy_estimated=is_estimated,
    )


def _per(amount: float | None, count: float | None) -> float | None:
    """Return the quotient; None if either is unknown or the count is 0."""
    return amount / count if amount is not None and count else None


def _number(runs: Sequence[RecordedRun], key: str) -> float | None:
    """Return a positive number from the config of the latest run that has one, else None."""
    for run in reversed(runs):
        value: Any = run.config.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            return float(value)
    return None
