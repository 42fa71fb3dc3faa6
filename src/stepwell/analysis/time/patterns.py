"""What stands out among the steps of a rank: some that are slow again and again, a drift, single ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepwell.analysis.time.intervals import Ints
from stepwell.analysis.time.rhythm import rhythm
from stepwell.analysis.time.steps import phase_columns
from stepwell.analysis.time.words import CLAIMING, OWN_SPAN, PHASES, STARTUP

WARM_UP = 3
"""Steps at the beginning of an attempt that are slow as a rule, and not looked at."""
FEWEST = 20
"""Steps that there must be to say anything."""
SLOW = 2.0
"""A step that stands out took at least so many times as long as usual …"""
NOISE = 8.0
"""… and is as many times farther from the usual than steps commonly are."""
LEAST_NS = 20_000_000
"""What comes irregularly, or once, and costs less than this is what other programs on a machine cause."""
BURST_COUNT = 3
BURST_SHARE = 0.3
"""More of them than this are no bursts: then slow is the usual."""
BURST_LOST = 0.03
"""Bursts that cost less of the time than this are not told of …"""
IRREGULAR_LOST = 0.1
"""… nor, if they come irregularly, than this: other programs on a machine may cause as much."""
DRIFT = 1.15
"""Ratio of the last steps to the first ones from which on it is a drift."""
FASTEST = 10
"""Percentile of the steps that must have become slower, too."""
WINDOWS = 10
EVIDENCE = 1000

EXPECTED = tuple(name for code, name in enumerate(PHASES) if code in CLAIMING or code == STARTUP)
"""Phases that come now and then as they are meant to. All others should take as long in one step as in the
next."""


@dataclass(frozen=True)
class Burst:
    """A phase that takes much longer in some steps, again and again.

    Attributes:
        share: of the steps, how many are slow: 0.05 for 1 in 20.
        period: they come every so many steps; None when they come irregularly.
        first: the first slow step.
        typical_ns: median of the other steps.
        slow_ns: median of the slow ones.
        lost_ns: what all of them took beyond the typical time.
        steps: the slow ones, the first thousand.
    """

    rank: int
    phase: str
    share: float
    period: int | None
    first: int
    count: int
    typical_ns: int
    slow_ns: int
    lost_ns: int
    steps: tuple[int, ...]


@dataclass(frozen=True)
class Drift:
    """Steps that take longer and longer, or shorter and shorter.

    Attributes:
        phase: the one that changed most.
        from_ns: median of the first tenth of the steps, ``to_ns`` of the last.
        from_step: where the change begins, ``to_step`` where it is over.
        kind: ``gradual``, or ``sudden`` when most of it happens within a tenth of the steps.
        lost_ns: what the steps took beyond the lesser of the two, in all.
    """

    rank: int
    phase: str
    from_ns: int
    to_ns: int
    ratio: float
    from_step: int
    to_step: int
    kind: str
    lost_ns: int


@dataclass(frozen=True)
class Outlier:
    """A single step that took much longer than others, and the phase that it did so in."""

    rank: int
    attempt: int
    step: int
    ns: int
    typical_ns: int
    phase: str
    phase_ns: int
    phase_typical_ns: int


class RankSteps:
    """The steps of one rank, warm-up left out."""

    def __init__(self, rank: int, attempts: Ints, numbers: Ints, phases: dict[str, Ints]) -> None:
        self.rank = rank
        self.attempts = attempts
        self.numbers = numbers
        # Those that ever took time; one of them must be there to be named. A span of the user's own that
        # most steps do without is there now and then because the user wants it.
        used = {
            name: values
            for name, values in phases.items()
            if (np.median(values) > 0 if name.startswith(OWN_SPAN) else values.any())
        }
        self.phases = used or {"other": phases["other"]}
        # What was not meant to take time now and then.
        self.times: Ints = sum(self.phases.values(), np.zeros(len(numbers), np.int64))

    @cached_property
    def bursts(self) -> tuple[list[Burst], NDArray[np.bool_]]:
        """The bursts of the rank, and which of its steps they are in."""
        return _bursts(self)


def by_rank(table: pl.DataFrame) -> Iterator[RankSteps]:
    """The steps of each rank that has enough of them, one rank after the other."""
    if not table["rank"].is_sorted():
        table = table.sort("rank", maintain_order=True)
    ranks = table["rank"].to_numpy()
    steady = [name for name in phase_columns(table) if name not in EXPECTED]
    used = [name for name in steady if name == "other" or table[name].max()]
    edges = np.flatnonzero(np.concatenate(([True], ranks[1:] != ranks[:-1], [True])))
    for low, high in pairwise(edges.tolist()) if len(ranks) else ():
        part = table[low:high]
        attempts = part["attempt"].to_numpy()
        kept = _after_warm_up(attempts)
        if np.count_nonzero(kept) >= FEWEST:
            phases = {name: part[name].to_numpy()[kept] for name in used}
            numbers = part["step"].to_numpy()[kept]
            yield RankSteps(int(ranks[low]), attempts[kept], numbers, phases)


@dataclass(frozen=True)
class Patterns:
    """All that stands out."""

    bursts: list[Burst]
    drift: Drift | None
    outliers: list[Outlier]


def patterns(table: pl.DataFrame) -> Patterns:
    """Bursts, drift and outliers in one go, with the steps of one rank at a time in memory."""
    found: list[tuple[list[Burst], Drift | None, list[Outlier]]] = []
    for steps in by_rank(table):
        alone = [steps]
        found.append((bursts(alone), drift(alone), outliers(alone)))
    return Patterns(
        _costliest([burst for each in found for burst in each[0]]),
        _greatest([each[1] for each in found]),
        _longest([outlier for each in found for outlier in each[2]]),
    )


Steps: TypeAlias = pl.DataFrame | Iterable[RankSteps]


def _after_warm_up(attempts: NDArray[Any]) -> NDArray[np.bool_]:
    """Which steps of a rank are not among the first ones of an attempt."""
    kept = np.ones(len(attempts), bool)
    for attempt in np.flatnonzero(np.bincount(attempts)).tolist():
        kept[np.flatnonzero(attempts == attempt)[:WARM_UP]] = False
    return kept


def _ranked(table: Steps) -> Iterable[RankSteps]:
    return by_rank(table) if isinstance(table, pl.DataFrame) else table


def _stands_out(values: Ints, least: float) -> NDArray[np.bool_]:
    """Which values are far above the usual, and by at least so many nanoseconds."""
    usual = float(np.median(values))
    spread = float(np.median(np.abs(values - usual)))
    limit = max(SLOW * usual, usual + NOISE * spread, usual + least)
    found: NDArray[np.bool_] = values > limit
    return found


def bursts(table: Steps) -> list[Burst]:
    """Phases that are slow in some steps, again and again, most costly first."""
    found = [burst for steps in _ranked(table) for burst in steps.bursts[0]]
    return _costliest(found)


def _costliest(found: list[Burst]) -> list[Burst]:
    return sorted(found, key=lambda burst: burst.lost_ns, reverse=True)


def _bursts(steps: RankSteps) -> tuple[list[Burst], NDArray[np.bool_]]:
    """The bursts of a rank, and which of its steps they are in."""
    usual, total = float(np.median(steps.times)), int(steps.times.sum())
    found, taken = [], np.zeros(len(steps.numbers), bool)
    for phase, values in steps.phases.items():
        slow = _stands_out(values, usual / 2)
        if not slow.any():
            continue
        # Those of one kind: less slow ones have another cause.
        slow &= values >= np.median(values[slow]) / 2
        at = np.flatnonzero(slow)
        if not BURST_COUNT <= len(at) <= BURST_SHARE * len(values) or _is_one_time(at):
            continue
        period = None
        if (regular := rhythm(at)) is not None:
            # What came in between had another cause.
            period, in_time = regular
            slow[at[~in_time]] = False
            at = at[in_time]
        typical = int(np.median(values[~slow]))
        lost = int((values[at] - typical).sum())
        if lost < (BURST_LOST if period else IRREGULAR_LOST) * total:
            continue
        if period is None and lost < LEAST_NS * len(at):
            continue
        taken |= slow
        found.append(
            Burst(
                rank=steps.rank,
                phase=phase,
                share=len(at) / len(values),
                period=period,
                first=int(steps.numbers[at[0]]),
                count=len(at),
                typical_ns=typical,
                slow_ns=int(np.median(values[at])),
                lost_ns=lost,
                steps=tuple(steps.numbers[at[:EVIDENCE]].tolist()),
            )
        )
    return found, taken


def _is_one_time(at: NDArray[Any]) -> bool:
    """Whether the slow ones mostly follow each other: that is a slow time, and no burst."""
    return bool(np.count_nonzero(np.diff(at) == 1) > len(at) / 2)


def drift(table: Steps, rank: int | None = None) -> Drift | None:
    """The greatest drift of a rank, or of any; None when steps take as long at the end as at the start."""
    chosen = [steps for steps in _ranked(table) if rank is None or steps.rank == rank]
    found = [_drift(steps) for steps in chosen]
    return _greatest(found)


def _greatest(found: list[Drift | None]) -> Drift | None:
    known = [one for one in found if one is not None]
    return max(known, key=lambda one: abs(one.to_ns - one.from_ns), default=None)


def _drift(steps: RankSteps) -> Drift | None:
    values = steps.times
    if len(values) < 2 * FEWEST:
        return None
    edges = np.linspace(0, len(values), WINDOWS + 1).astype(int)
    ends = edges[[0, 1]], edges[[-2, -1]]
    low, high = sorted(float(np.median(values[a:b])) for a, b in ends)
    if low <= 0 or high < DRIFT * low:
        return None
    # Another program on the machine holds some steps up; a drift is in the fastest ones, too.
    fastest = sorted(float(np.percentile(values[a:b], FASTEST)) for a, b in ends)
    if fastest[1] < DRIFT * fastest[0]:
        return None
    windows = np.array([np.median(values[a:b]) for a, b in pairwise(edges.tolist())])
    if not _is_trend(windows, values, edges):
        return None
    changes = np.abs(np.diff(windows))
    begin, end = _extent(windows)
    beyond = np.maximum(values - int(low), 0)
    return Drift(
        rank=steps.rank,
        phase=_changed_most(steps, edges, windows[-1] > windows[0]),
        from_ns=int(windows[0]),
        to_ns=int(windows[-1]),
        ratio=float(windows[-1] / windows[0]),
        from_step=int(steps.numbers[edges[begin]]),
        to_step=int(steps.numbers[edges[end + 1] - 1]),
        kind="sudden" if changes.max() >= 0.7 * (high - low) else "gradual",
        lost_ns=int(beyond.sum()),
    )


def _is_trend(windows: NDArray[Any], values: Ints, edges: NDArray[Any]) -> bool:
    """Whether it goes one way, farther than values are spread within a tenth."""
    change = windows[-1] - windows[0]
    against = -np.minimum(np.diff(windows) * np.sign(change), 0).sum()
    spreads = [
        np.median(np.abs(values[a:b] - np.median(values[a:b]))) for a, b in pairwise(edges.tolist())
    ]
    size = len(values) / WINDOWS
    noise = 4 * float(np.median(spreads)) / np.sqrt(size)
    return bool(against <= 0.35 * abs(change) and abs(change) > 2 * noise)


def _extent(windows: NDArray[Any]) -> tuple[int, int]:
    """The windows between which most of the change happens."""
    done = (windows - windows[0]) / (windows[-1] - windows[0])
    begin = int(np.flatnonzero(done < 0.1)[-1])
    end = int(np.flatnonzero(done >= 0.9)[0])
    return begin, max(begin, end)


def _changed_most(steps: RankSteps, edges: NDArray[Any], is_slower: bool) -> str:
    first, last = slice(edges[0], edges[1]), slice(edges[-2], edges[-1])
    sign = 1 if is_slower else -1
    changes = {
        phase: sign * (float(values[last].mean()) - float(values[first].mean()))
        for phase, values in steps.phases.items()
    }
    return max(changes, key=changes.__getitem__)


def outliers(table: Steps, most: int = 20) -> list[Outlier]:
    """Single steps that took much longer than others, the longest first.

    Left out are the warm-up, steps that belong to bursts, and what validation, checkpoints and the like took.
    """
    found: list[Outlier] = []
    for steps in _ranked(table):
        taken = steps.bursts[1]
        usual = float(np.median(steps.times))
        slow = _stands_out(steps.times, max(usual, LEAST_NS)) & ~taken
        at = np.flatnonzero(slow)
        if not len(at):
            continue
        typical = {phase: float(np.median(values)) for phase, values in steps.phases.items()}
        for row in at[np.argsort(-steps.times[at], kind="stable")][:most].tolist():
            excess = {p: float(values[row]) - typical[p] for p, values in steps.phases.items()}
            phase = max(excess, key=excess.__getitem__)
            found.append(
                Outlier(
                    rank=steps.rank,
                    attempt=int(steps.attempts[row]),
                    step=int(steps.numbers[row]),
                    ns=int(steps.times[row]),
                    typical_ns=int(usual),
                    phase=phase,
                    phase_ns=int(steps.phases[phase][row]),
                    phase_typical_ns=int(typical[phase]),
                )
            )
    return _longest(found, most)


def _longest(found: list[Outlier], most: int = 20) -> list[Outlier]:
    return sorted(found, key=lambda outlier: outlier.ns, reverse=True)[:most]
