"""Samples and tokens per second, from the updates of training loops; energy, from metrics."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from stepwell._core.text import rate
from stepwell.journal.format import METRIC
from stepwell.reading import RecordedRun
from stepwell.reading.tables import ProcessTables
from stepwell.vocabulary import StandardTrainingJobEventName

UPDATE = StandardTrainingJobEventName.TRAINING_METRICS_UPDATE.value
UPDATE_COLUMNS = ("name", "attempt", "time_ns", "attributes")
ENERGY = re.compile("energy(?:_cpu)?_(measured|estimated)_joules$")
"""The end of the names of energy metrics."""
Joules = dict[str, float]
"""Energy by its origin: measured or estimated."""
Update = tuple[int, int, str]
"""Attempt, time in nanoseconds, and attributes as JSON."""


@dataclass(frozen=True)
class Throughput:
    """Samples and tokens per second of wall time, from the start of the training loop to its latest step.

    ``…_without_data`` excludes the time that training waits for data. None if unknown.
    """

    samples_per_second: float | None
    samples_per_second_without_data: float | None
    tokens_per_second: float | None
    tokens_per_second_without_data: float | None

    def __str__(self) -> str:
        """Return a line of text: 506 samples/s (3,370 without waiting for data)."""
        rates = (
            (self.samples_per_second, self.samples_per_second_without_data, "samples/s"),
            (self.tokens_per_second, self.tokens_per_second_without_data, "tokens/s"),
        )
        words = [
            f"{rate(each)} {what}"
            + (f" ({rate(without)} without waiting for data)" if without else "")
            for each, without, what in rates
            if each
        ]
        return " · ".join(words)


def latest_update(events: Iterable[pl.DataFrame]) -> Update | None:
    """Return the latest update of a training loop among events."""
    latest: Update | None = None
    for frame in events:
        updates = frame.filter(pl.col("name") == UPDATE).select(UPDATE_COLUMNS[1:])
        for attempt, time_ns, attributes in updates.sort("attempt", "time_ns").tail(1).iter_rows():
            if latest is None or (attempt, time_ns) >= latest[:2]:
                latest = attempt, time_ns, attributes or "{}"
    return latest


def samples_per_step(run: RecordedRun, rank: int) -> list[float]:
    """Return the samples per step between successive updates of the training loop.

    Empty if the updates do not count samples.
    """
    events = run.events().filter(name=UPDATE, rank=rank).sort("attempt", "time_ns")
    sizes, previous = [], (0, 0, 0)
    for attempt, text in events.select("attempt", "attributes").collect().iter_rows():
        attributes = json.loads(text or "{}")
        steps, samples = attributes.get("num_iterations"), attributes.get("num_train_samples")
        if not isinstance(steps, int) or not isinstance(samples, int) or not samples:
            continue
        if attempt != previous[0]:
            previous = attempt, 0, 0
        if steps > previous[1]:
            sizes.append((samples - previous[2]) / (steps - previous[1]))
        previous = attempt, steps, samples
    return sizes


def throughput(updates: Iterable[Update | None]) -> Throughput | None:
    """Return the throughput in the latest of these updates; None without one, or if it has no rates.

    The samples of an update are those of all ranks.
    """
    latest = max((update for update in updates if update is not None), default=None)
    return None if latest is None else rates_of(json.loads(latest[2]))


def rates_of(attributes: Mapping[str, Any]) -> Throughput | None:
    """Return the rates in the attributes of an update; None if there are none."""
    rates = [
        float(value) if isinstance(value := attributes.get(f"avg_{name}"), int | float) else None
        for name in Throughput.__dataclass_fields__
    ]
    return Throughput(*rates) if any(rates) else None


def joules_of(tables: ProcessTables, metrics: Sequence[pl.DataFrame]) -> Joules:
    """Return the energy that one process recorded. Each process counts from its own start.

    ``metrics`` are its frames with ``name`` and ``value``.
    """
    names = {name for kind, _, name in tables.process.names.values() if kind == METRIC}
    kinds = {name: match[1] for name in names if (match := ENERGY.search(name))}
    if not kinds or not metrics:
        return {}
    is_energy = pl.col("name").is_in(list(kinds)) & pl.col("value").is_finite()
    frames = [frame.select("name", "value").filter(is_energy) for frame in metrics]
    latest = pl.concat(frames).group_by("name").agg(pl.col("value").max()).sort("name")
    return add_joules({kinds[name]: value} for name, value in latest.iter_rows())


def add_joules(parts: Iterable[Joules]) -> Joules:
    """Return the sum of several amounts of energy, by origin."""
    total: Joules = {}
    for part in parts:
        for kind, joules in part.items():
            total[kind] = total.get(kind, 0.0) + joules
    return total
