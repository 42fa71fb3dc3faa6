"""The goodput of a job.

A job is one timeline, independent of the number of ranks: from the start of the first process to the last
record, over all attempts, and over runs that continue each other. Each nanosecond belongs to one part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from stepwell._core.errors import StepwellError
from stepwell.analysis.engine import summarise
from stepwell.analysis.goodput.parts import PARTS, JobAttempt, Loss, split_attempt
from stepwell.analysis.ranks.grid import Grid, make_grids
from stepwell.analysis.throughput import Joules, add_joules
from stepwell.analysis.timeline import Timeline
from stepwell.analysis.timeline.phases import OTHER
from stepwell.journal.document import worst_of
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


def read_rates(
    runs: Sequence[RecordedRun],
    wall_ns: int,
    productive_ns: int,
    steps: int,
    energy: Joules,
    peak_flops: float | None,
    price_per_hour: float | None,
) -> Rates:
    """Return the rates of these runs together. What is not given comes from their config."""
    batch = _number(runs, "global_batch_size")
    samples = int(steps * batch) if batch else None
    per_second = _per(samples, wall_ns / 1e9)
    work = _number(runs, "flops_per_sample")
    peak = peak_flops or _number(runs, "peak_flops_per_device")
    devices = max((int(run.document.get("world_size") or 1) for run in runs), default=1)
    price = price_per_hour or _number(runs, "price_per_hour")
    cost = price * wall_ns / HOUR_NS if price else None
    # Measured values take precedence.
    joules = energy.get("measured", energy.get("estimated"))
    return Rates(
        samples=samples,
        samples_per_second=per_second,
        productive_samples_per_second=_per(samples, productive_ns / 1e9),
        mfu=per_second * work / (peak * devices) if per_second and work and peak else None,
        cost=cost,
        cost_per_sample=_per(cost, samples),
        joules=joules,
        joules_per_sample=_per(joules, samples),
        is_energy_estimated=set(energy) == {"estimated"},
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


OVERLAP_NS = 60_000_000_000
"""The last record of an attempt may be later than the start of the next one by this much."""


@dataclass(frozen=True)
class Goodput:
    """The wall time of a job by what it was spent on."""

    wall_ns: int
    start_ns: int
    end_ns: int
    parts: dict[str, int]
    """Nanoseconds by part; they sum to ``wall_ns``."""
    attempts: int
    steps: int
    """Number of different completed steps."""
    redone_steps: int
    """Completed steps that were repeated after a restart."""
    losses: list[Loss] = field(default_factory=list)
    """Single losses: stragglers, stalls, steps that waited for data, restarts; the costliest first."""
    rates: Rates = field(default_factory=Rates)

    @property
    def share(self) -> float:
        """Productive share of the wall time."""
        return self.parts["productive"] / self.wall_ns if self.wall_ns else 0.0


@dataclass(frozen=True)
class Evidence:
    """The data of a run from which goodput is computed.

    Attributes:
        timelines: one for each rank and attempt.
        grids: one for each attempt: the phases of each rank and step.
        joules: the recorded energy of each process.
    """

    timelines: Sequence[Timeline]
    grids: Sequence[Grid]
    joules: Sequence[Joules] = ()


def _read(run: RecordedRun) -> Evidence:
    summary = summarise(run)
    return Evidence(summary.timelines, make_grids(summary.timelines), summary.joules)


def _attempts(run: RecordedRun, evidence: Evidence) -> list[JobAttempt]:
    """Return the attempts of a run in order."""
    grids = {grid.attempt: grid for grid in evidence.grids if len(grid.steps)}
    attempts = []
    for number in sorted({part.attempt for part in evidence.timelines}):
        parts = [part for part in evidence.timelines if part.attempt == number]
        attempts.append(
            JobAttempt(
                run=run.id,
                number=number,
                start_ns=min(part.start_ns for part in parts),
                end_ns=max(part.end_ns for part in parts),
                status=worst_of(part.status for part in parts),
                grid=grids.get(number),
                uncovered_ns=max(int(part.cells[OTHER].sum()) for part in parts),
            )
        )
    return attempts


def goodput(
    runs: RecordedRun | Sequence[RecordedRun],
    *,
    peak_flops: float | None = None,
    price_per_hour: float | None = None,
    evidence: Evidence | None = None,
) -> Goodput:
    """Return the goodput of a run over its attempts, or of several runs that continue each other.

    Args:
        runs: one run, or several.
        peak_flops: peak FLOPS of one rank's device; by default ``peak_flops_per_device`` of the run's config.
        price_per_hour: price of the whole job; by default ``price_per_hour`` of the run's config.
        evidence: the evidence of a single run, if it has been read already.

    Rates that need an unknown number are None.
    """
    chosen = [runs] if isinstance(runs, RecordedRun) else list(runs)
    read = [_read(run) for run in chosen] if evidence is None else [evidence]
    attempts = [
        attempt
        for run, its_evidence in zip(chosen, read, strict=True)
        for attempt in _attempts(run, its_evidence)
    ]
    energy = add_joules(joules for its_evidence in read for joules in its_evidence.joules)
    attempts.sort(key=lambda attempt: attempt.start_ns)
    if not attempts:
        raise StepwellError("goodput needs at least one recorded process; the run has none")
    _cut_overlaps(attempts)
    parts = dict.fromkeys(PARTS, 0)
    losses: list[Loss] = []
    for number, attempt in enumerate(attempts):
        later = [a.first_step for a in attempts[number + 1 :] if a.first_step is not None]
        split = split_attempt(attempt, min(later, default=None), is_last=not later)
        for part, ns in split.parts.items():
            parts[part] += ns
        losses += split.losses
        if number:
            parts["gap between attempts"] += attempt.start_ns - attempts[number - 1].end_ns
    start, end = attempts[0].start_ns, attempts[-1].end_ns
    done = [attempt.done_steps for attempt in attempts]
    unique = done[0] if len(done) == 1 else np.unique(np.concatenate(done))
    redone = sum(map(len, done)) - len(unique)
    wall = end - start
    rates = read_rates(
        chosen, wall, parts["productive"], len(unique), energy, peak_flops, price_per_hour
    )
    losses.sort(key=lambda loss: -loss.ns)
    return Goodput(wall, start, end, parts, len(attempts), len(unique), redone, losses, rates)


def runs_of_session(runs: Sequence[RecordedRun], tag: str) -> list[RecordedRun]:
    """Return the runs with this session tag, the oldest first."""
    session = [run for run in runs if run.labels.get("session_tag") == tag]
    return sorted(session, key=lambda run: run.created_ns)


def _cut_overlaps(attempts: list[JobAttempt]) -> None:
    """End each attempt where the next one starts. Refuse attempts that really ran at the same time.

    The last heartbeat of an attempt may be written after the next attempt has started.
    """
    for before, after in pairwise(attempts):
        if before.end_ns - after.start_ns > OVERLAP_NS:
            raise StepwellError(
                f"attempt {before.number} of {before.run} and attempt {after.number} of {after.run} ran at "
                "the same time: compute the goodput of each run separately"
            )
        before.end_ns = max(before.start_ns, min(before.end_ns, after.start_ns))
