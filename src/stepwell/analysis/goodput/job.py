"""The goodput of a job.

One job is one timeline, however many ranks it has: from the start of its first process to the last sign of
life, over all attempts, and over runs that go on from each other. Every nanosecond is in one part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from stepwell.analysis.goodput.attempts import JobAttempt, make_attempts
from stepwell.analysis.goodput.evidence import Evidence, read_evidence
from stepwell.analysis.goodput.losses import Loss
from stepwell.analysis.goodput.parts import PARTS, split_attempt
from stepwell.analysis.goodput.rates import Known, Rates, read_rates
from stepwell.journal.errors import StepwellError
from stepwell.reading import RecordedRun

OVERLAP_NS = 60_000_000_000
"""So much later than the next one began may the last sign of life of an attempt be."""


@dataclass(frozen=True)
class Goodput:
    """Where the wall time of a job went."""

    wall_ns: int
    start_ns: int
    end_ns: int
    parts: dict[str, int]
    """Nanoseconds by part; they sum to ``wall_ns``."""
    attempts: int
    steps: int
    """Different steps that were completed."""
    redone_steps: int
    """Steps that were completed, and had to be done again after a restart."""
    losses: list[Loss] = field(default_factory=list)
    """What can be named: stragglers, stalls, steps that waited for data, restarts; the costliest first."""
    rates: Rates = field(default_factory=Rates)

    @property
    def share(self) -> float:
        """Of the wall time, what was productive."""
        return self.parts["productive"] / self.wall_ns if self.wall_ns else 0.0


def goodput(
    runs: RecordedRun | Sequence[RecordedRun],
    *,
    peak_flops: float | None = None,
    price_per_hour: float | None = None,
    known: Evidence | None = None,
) -> Goodput:
    """The goodput of a run over its attempts, or of runs that go on from each other.

    ``peak_flops`` of one rank's device and ``price_per_hour`` of the whole job are taken from the
    run's config (``peak_flops_per_device``, ``price_per_hour``) when they are not given; what needs them is
    None when nobody knows. ``known`` is what was read of a single run already.
    """
    chosen = [runs] if isinstance(runs, RecordedRun) else list(runs)
    read = [read_evidence(run) for run in chosen] if known is None else [known]
    attempts = [
        attempt
        for run, evidence in zip(chosen, read, strict=True)
        for attempt in make_attempts(run, evidence)
    ]
    energy = [joules for evidence in read for joules in evidence.joules]
    attempts.sort(key=lambda attempt: attempt.start_ns)
    if not attempts:
        raise StepwellError("there is nothing to take the goodput of: no process was recorded")
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
    told = Known(wall, parts["productive"], len(unique), peak_flops, price_per_hour)
    rates = read_rates(chosen, told, energy)
    losses.sort(key=lambda loss: -loss.ns)
    return Goodput(wall, start, end, parts, len(attempts), len(unique), redone, losses, rates)


def runs_of_session(runs: Sequence[RecordedRun], tag: str) -> list[RecordedRun]:
    """Those of the runs that carry this session tag, the oldest first."""
    found = [run for run in runs if run.labels.get("session_tag") == tag]
    return sorted(found, key=lambda run: run.created_ns)


def _cut_overlaps(attempts: list[JobAttempt]) -> None:
    """A heartbeat may come after the next attempt has begun; jobs side by side are something else."""
    for before, after in pairwise(attempts):
        if before.end_ns - after.start_ns > OVERLAP_NS:
            raise StepwellError(
                f"attempt {before.number} of {before.run} and attempt {after.number} of {after.run} ran at "
                "the same time: take the goodput of each by itself"
            )
        before.end_ns = max(before.start_ns, min(before.end_ns, after.start_ns))
