"""Patterns in the steps of a rank: recurring slow steps (bursts), drift, and single outliers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepwell._core.threads import map_arrays
from stepwell.analysis.timeline.intervals import Ints
from stepwell.analysis.timeline.phases import CLAIMING, OWN_SPAN, PHASES, STARTUP
from stepwell.analysis.timeline.tables import WARM_UP, phase_columns

FEWEST = 20
"""Fewest steps that are analysed."""
SLOW = 2.0
"""An outlier takes at least this many times the median …"""
NOISE = 8.0
"""… and is this many median deviations above it."""
LEAST_NS = 20_000_000
"""Irregular or single delays shorter than this are ignored: other programs on the machine cause them."""
BURST_COUNT = 3
BURST_SHARE = 0.3
"""If more steps than this are slow, slow is normal."""
BURST_LOST = 0.03
"""Bursts that cost a smaller share of the time than this are not reported …"""
IRREGULAR_LOST = 0.1
"""… nor irregular ones below this share: other programs on the machine may cause them."""
DRIFT = 1.15
"""Smallest ratio between the last and the first steps, or the reverse, that counts as drift."""
FASTEST = 10
"""Percentile that must have changed by the same ratio."""
WINDOWS = 10
EVIDENCE = 1000
MOST_OUTLIERS = 20
LARGE = 50_000
"""Average steps of a rank from which on two threads are faster."""

Places = NDArray[np.int64] | NDArray[np.intp]
EXPECTED = tuple(name for code, name in enumerate(PHASES) if code in CLAIMING or code == STARTUP)
"""Phases that are meant to occur only now and then. All others should take equally long in every step."""


@dataclass(frozen=True)
class Burst:
    """A phase that repeatedly takes much longer than in other steps.

    Attributes:
        share: share of the steps that are slow: 0.05 for 1 in 20.
        period: number of steps from one slow step to the next; None if irregular.
        first: the first slow step.
        count: number of slow steps.
        typical_ns: median of the other steps.
        slow_ns: median of the slow steps.
        lost_ns: total time of the slow steps beyond the typical time.
        steps: the slow steps, at most the first thousand.
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
    """Steps that become slower or faster over the run.

    Attributes:
        phase: the phase that changed most.
        from_ns: median of the first tenth of the steps.
        to_ns: median of the last tenth.
        ratio: ``to_ns`` / ``from_ns``.
        from_step: where the change begins.
        to_step: where the change ends.
        kind: ``gradual``, or ``sudden`` if most of it happens within a tenth of the steps.
        lost_ns: total time of the steps beyond the smaller of the two medians.
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
    """A single step that took much longer than others, and the phase with the largest excess."""

    rank: int
    attempt: int
    step: int
    ns: int
    typical_ns: int
    phase: str
    phase_ns: int
    phase_typical_ns: int


class RankSteps:
    """The kept rows of one rank as arrays. ``names`` are the phases that count; one of them is ``other``."""

    def __init__(self, table: pl.DataFrame, kept: NDArray[np.bool_], names: list[str]) -> None:
        self.rank = int(table["rank"][0])
        self.attempts: Ints = table["attempt"].to_numpy()[kept]
        self.numbers: Ints = table["step"].to_numpy()[kept]
        phases: dict[str, Ints] = {name: table[name].to_numpy()[kept] for name in names}
        # Phases that ever took time, at least one. A user's own span that most steps do without occurs
        # now and then on purpose.
        used = {
            name: values
            for name, values in phases.items()
            if (np.median(values) > 0 if name.startswith(OWN_SPAN) else values.any())
        }
        self.phases = used or {"other": phases["other"]}
        self.medians = {name: float(np.median(values)) for name, values in self.phases.items()}
        # Time of each step without the phases that occur now and then on purpose.
        self.times: Ints = sum(self.phases.values(), np.zeros(len(self.numbers), np.int64))
        self.median = float(np.median(self.times))


@dataclass(frozen=True)
class Patterns:
    """Bursts, the largest drift and outliers of one rank or of all ranks."""

    bursts: list[Burst]
    drift: Drift | None
    outliers: list[Outlier]


def patterns(table: pl.DataFrame) -> Patterns:
    """Return bursts, the largest drift and outliers, with the steps of few ranks at a time in memory."""
    steady = [name for name in phase_columns(table) if name not in EXPECTED]
    used = [name for name in steady if name == "other" or table[name].max()]
    parts = _by_rank(table)
    is_large = table.height >= LARGE * max(1, len(parts))
    of_ranks = map_arrays(partial(_of_rank, names=used), parts, is_large)
    all_bursts = chain.from_iterable(each.bursts for each in of_ranks)
    drifts = [each.drift for each in of_ranks if each.drift is not None]
    all_outliers = chain.from_iterable(each.outliers for each in of_ranks)
    return Patterns(
        sorted(all_bursts, key=lambda burst: -burst.lost_ns),
        max(drifts, key=lambda each: abs(each.to_ns - each.from_ns), default=None),
        sorted(all_outliers, key=lambda outlier: -outlier.ns)[:MOST_OUTLIERS],
    )


def _by_rank(table: pl.DataFrame) -> list[pl.DataFrame]:
    if not table["rank"].is_sorted():
        table = table.sort("rank", maintain_order=True)
    ranks = table["rank"].to_numpy()
    edges = np.flatnonzero(np.concatenate(([True], ranks[1:] != ranks[:-1], [True])))
    return [table[low:high] for low, high in pairwise(edges.tolist())] if len(ranks) else []


def _of_rank(table: pl.DataFrame, names: list[str]) -> Patterns:
    kept = _after_warm_up(table["attempt"].to_numpy())
    if np.count_nonzero(kept) < FEWEST:
        return Patterns([], None, [])
    steps = RankSteps(table, kept, names)
    own, taken = _bursts(steps)
    return Patterns(own, _drift(steps), _outliers(steps, taken))


def bursts(table: pl.DataFrame) -> list[Burst]:
    """Return phases that are repeatedly slow, the costliest first."""
    return patterns(table).bursts


def drift(table: pl.DataFrame) -> Drift | None:
    """Return the largest drift of a rank; None if step times do not change."""
    return patterns(table).drift


def outliers(table: pl.DataFrame) -> list[Outlier]:
    """Return single steps that took much longer than others, the longest first.

    Leaves out the warm-up, steps that belong to bursts, and the time of validation, checkpoints and the like.
    """
    return patterns(table).outliers


def _after_warm_up(attempts: NDArray[Any]) -> NDArray[np.bool_]:
    kept = np.ones(len(attempts), bool)
    for attempt in np.flatnonzero(np.bincount(attempts)).tolist():
        kept[np.flatnonzero(attempts == attempt)[:WARM_UP]] = False
    return kept


def stands_out(values: Ints, median: float, least: float = 0) -> NDArray[np.bool_]:
    """Return which values are far above their median, by at least ``least`` nanoseconds."""
    is_out: NDArray[np.bool_] = values > max(SLOW * median, median + least)
    if is_out.any():
        is_out &= values > median + NOISE * float(np.median(np.abs(values - median)))
    return is_out


def _bursts(steps: RankSteps) -> tuple[list[Burst], NDArray[np.bool_]]:
    """Return the bursts of a rank, and a mask of the steps that are part of one."""
    total = int(steps.times.sum())
    all_bursts, taken = [], np.zeros(len(steps.numbers), bool)
    for phase, values in steps.phases.items():
        slow = stands_out(values, steps.medians[phase], steps.median / 2)
        if not slow.any():
            continue
        # Only steps that are about equally slow: others have another cause.
        at = np.flatnonzero(slow & (values >= np.median(values[slow]) / 2))
        if not BURST_COUNT <= len(at) <= BURST_SHARE * len(values) or _is_consecutive(at):
            continue
        burst, at = make_burst(steps.rank, phase, steps.numbers, values, at)
        if burst.lost_ns < (BURST_LOST if burst.period else IRREGULAR_LOST) * total:
            continue
        if burst.period is None and burst.lost_ns < LEAST_NS * burst.count:
            continue
        taken[at] = True
        all_bursts.append(burst)
    return all_bursts, taken


def make_burst(
    rank: int, phase: str, numbers: Ints, values: Ints, at: Places
) -> tuple[Burst, Places]:
    """Return the burst of the slow steps at these places, and its places.

    If it is regular, slow steps in between are left out: they have another cause.
    """
    period = None
    if (regular := find_period(at)) is not None:
        period, in_time = regular
        at = at[in_time]
    typical = int(np.median(np.delete(values, at)))
    burst = Burst(
        rank=rank,
        phase=phase,
        share=len(at) / len(values),
        period=period,
        first=int(numbers[at[0]]),
        count=len(at),
        typical_ns=typical,
        slow_ns=int(np.median(values[at])),
        lost_ns=int((values[at] - typical).sum()),
        steps=tuple(numbers[at[:EVIDENCE]].tolist()),
    )
    return burst, at


def _is_consecutive(at: NDArray[Any]) -> bool:
    """Return whether most slow steps follow each other: that is one slow period, not bursts."""
    return bool(np.count_nonzero(np.diff(at) == 1) > len(at) / 2)


def _drift(steps: RankSteps) -> Drift | None:
    values = steps.times
    if len(values) < 2 * FEWEST:
        return None
    edges = np.linspace(0, len(values), WINDOWS + 1).astype(int).tolist()
    parts = [values[a:b] for a, b in pairwise(edges)]
    first, last = parts[0], parts[-1]
    low, high = sorted((float(np.median(first)), float(np.median(last))))
    if low <= 0 or high < DRIFT * low:
        return None
    # Other programs on the machine delay some steps; a drift also changes the fastest steps.
    fastest = sorted((float(np.percentile(first, FASTEST)), float(np.percentile(last, FASTEST))))
    if fastest[1] < DRIFT * fastest[0]:
        return None
    windows = np.array([np.median(part) for part in parts])
    if not _is_trend(parts, windows):
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


def _is_trend(parts: list[Ints], windows: NDArray[Any]) -> bool:
    """Return whether the medians of the parts change in one direction, beyond the noise within a part."""
    change = windows[-1] - windows[0]
    against = -np.minimum(np.diff(windows) * np.sign(change), 0).sum()
    spreads = [np.median(np.abs(part - at)) for part, at in zip(parts, windows, strict=True)]
    error = np.median(spreads) / np.sqrt(sum(map(len, parts)) / WINDOWS)
    return bool(against <= 0.35 * abs(change) and abs(change) > 8 * error)


def _extent(windows: NDArray[Any]) -> tuple[int, int]:
    """Return the windows between which most of the change happens."""
    done = (windows - windows[0]) / (windows[-1] - windows[0])
    begin = int(np.flatnonzero(done < 0.1)[-1])
    end = int(np.flatnonzero(done >= 0.9)[0])
    return begin, max(begin, end)


def _changed_most(steps: RankSteps, edges: list[int], is_slower: bool) -> str:
    sign = 1 if is_slower else -1
    changes = {
        phase: sign * (float(values[edges[-2] :].mean()) - float(values[: edges[1]].mean()))
        for phase, values in steps.phases.items()
    }
    return max(changes, key=changes.__getitem__)


def _outliers(steps: RankSteps, taken: NDArray[np.bool_]) -> list[Outlier]:
    """Return the slowest steps of a rank, without those that are part of bursts."""
    median, typical = steps.median, steps.medians
    at = np.flatnonzero(stands_out(steps.times, median, max(median, LEAST_NS)) & ~taken)
    slowest = []
    for row in at[np.argsort(-steps.times[at], kind="stable")][:MOST_OUTLIERS].tolist():
        excess = {p: float(values[row]) - typical[p] for p, values in steps.phases.items()}
        phase = max(excess, key=excess.__getitem__)
        slowest.append(
            Outlier(
                rank=steps.rank,
                attempt=int(steps.attempts[row]),
                step=int(steps.numbers[row]),
                ns=int(steps.times[row]),
                typical_ns=int(median),
                phase=phase,
                phase_ns=int(steps.phases[phase][row]),
                phase_typical_ns=int(typical[phase]),
            )
        )
    return slowest


LIKELY = 5
"""Number of the most common distances that are tried."""
FEWEST_REGULAR = 3
"""Fewest places with a period if all are on the beat."""
FEWEST_OF_MORE = 5
"""Fewest places on the beat if some are off it: of few random places, some are on a beat by chance."""
IN_TIME = 0.7
"""Smallest share of the places that must be on the beat: others occur in between by accident …"""
THERE = 0.8
"""… and smallest share of the expected places that must be present."""


def find_period(at: Places) -> tuple[int, NDArray[np.bool_]] | None:
    """Return the period of these ascending places and a mask of those on the beat; None if irregular."""
    distances, counts = np.unique(np.diff(at), return_counts=True)
    likely = distances[np.argsort(-counts, kind="stable")[:LIKELY]]
    candidates = [
        (period, in_time)
        for period in likely.tolist()
        if (in_time := _comb(at, period)) is not None
    ]
    return max(candidates, key=lambda candidate: int(candidate[1].sum()), default=None)


def _comb(at: Places, period: int) -> NDArray[np.bool_] | None:
    """Return a mask of the places on this beat; None if too few are on it, or too many are missing."""
    if period < 2:
        return None
    shifts, counts = np.unique(at % period, return_counts=True)
    in_time: NDArray[np.bool_] = at % period == shifts[counts.argmax()]
    due = int(at[-1] - at[0]) // period + 1
    hits = int(in_time.sum())
    fewest = FEWEST_REGULAR if hits == len(at) else FEWEST_OF_MORE
    is_regular = hits >= max(fewest, IN_TIME * len(at)) and hits >= THERE * due
    return in_time if is_regular else None
