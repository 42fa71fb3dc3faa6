"""Late arrivals: which rank comes last to a synchronisation point, and why.

All ranks leave a collective, or a pass that contains one, together. The last rank to arrive is the cause of a
delay; the others wait until it comes, whatever span they are in. The reason is the phase in which the last
rank spent more time than the others since the synchronisation point before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stepwell._core.threads import map_arrays
from stepwell.analysis.ranks.grid import IDLE, Bools, Grid, Layer, once_per_grid
from stepwell.analysis.timeline.intervals import Ints
from stepwell.analysis.timeline.phases import CODES
from stepwell.analysis.timeline.step_phases import BETWEEN

LEAST_SHARE = 0.1
"""Smallest delay that counts, as a share of a typical step."""
SIGMAS = 6.0
"""Smallest delay that counts, in standard deviations of the arrivals."""
ALWAYS = 0.75
"""Share of the steps in which a rank must be last for a delay within the noise to count."""
TOGETHER = 0.5
"""Ranks leave together if the rank that arrived last leaves later by less than this share of its delay."""
CELLS = 1 << 18
"""Ranks times steps processed at once, to bound memory."""
TRAINING = "training"
COMMUNICATION = "communication"
STEP = "step"
"""Phase of the layer that stands for the whole step."""


@dataclass(frozen=True)
class Delays:
    """Late arrivals that others waited for: one entry for each rank, step and reason."""

    place: Ints
    """Row of the rank in the grid."""
    column: Ints
    """Column of the step in which the rank spent the time."""
    waited: Ints
    """Column of the step in which the others waited."""
    code: Ints
    """Code of the phase: idle or training if no span with a phase covers the time."""
    ns: Ints
    """How long the others waited (median)."""
    typical: Ints
    """Time of the other ranks in the same phase (median)."""

    def where(self, chosen: Bools | Ints) -> Delays:
        """Return a selection of the entries."""
        return Delays(*(values[chosen] for values in self.columns))

    @property
    def columns(self) -> tuple[Ints, ...]:
        """All columns."""
        return self.place, self.column, self.waited, self.code, self.ns, self.typical

    def __len__(self) -> int:
        return len(self.ns)


@dataclass(frozen=True)
class _SyncPoint:
    """A layer in which ranks may wait for each other, with the last rank and its delay in each step."""

    layer: Layer
    ranks: Ints
    columns: Ints
    last: Ints
    """Row of the rank that arrives last."""
    delay: Ints
    is_together: Bools
    apart: Ints
    """How much later than the others the last rank to leave does."""
    noise: float

    def releases(self, columns: Ints, least: float) -> Bools:
        """Return in which of these columns all ranks leave together, whenever they arrived."""
        at = np.minimum(np.searchsorted(self.columns, columns), len(self.columns) - 1)
        is_released = self.apart[at] <= np.maximum(least, TOGETHER * self.delay[at])
        return np.asarray(is_released & (self.columns[at] == columns))


@once_per_grid
def step_ns(grid: Grid) -> int:
    """Return the median time from the beginning of a step to the beginning of the next."""
    lasted = np.diff(grid.begin, axis=1)[(grid.begin[:, :-1] >= 0) & (grid.begin[:, 1:] >= 0)]
    if len(lasted):
        return max(1, int(np.median(lasted)))
    done = sum((grid.total(phase) for phase in grid.phases), np.zeros_like(grid.begin))
    return max(1, int(np.median(done))) if done.size else 1


def sync_layers(grid: Grid) -> list[Layer]:
    """Return the layers in which ranks wait for each other."""
    return [point.layer for point in _sync_points(grid)]


def delays(grid: Grid) -> Delays:
    """Return the late arrivals of an attempt; none if it has a single rank."""
    parts = [_NONE]
    if len(grid.ranks) > 1 and len(grid.steps):
        least = LEAST_SHARE * step_ns(grid)
        # Before the threads, which use the kept result.
        points = _sync_points(grid)
        parts += map_arrays(lambda p: _delays_at(grid, p, least), points, grid.is_large)
        parts.append(_delays_at_steps(grid, _joined(parts), least))
    return _joined(parts)


@dataclass(frozen=True)
class Waits:
    """For each step of an attempt: the rank that the others waited for in a phase, and how long."""

    attempt: int
    phase: str
    steps: Ints
    last: Ints
    """The rank that arrived last."""
    ns: Ints


def waits_by_step(grid: Grid) -> list[Waits]:
    """Return how long ranks waited for each other in each step."""
    ranks = np.array(grid.ranks, np.int64)
    return [
        Waits(
            grid.attempt,
            point.layer.phase,
            grid.steps[point.columns],
            ranks[point.last],
            np.where(point.is_together, point.delay, 0),
        )
        for point in (_sync_points(grid) if len(grid.ranks) > 1 else [])
    ]


@once_per_grid
def _sync_points(grid: Grid) -> list[_SyncPoint]:
    layers = [layer for layer in grid.layers if layer.phase != IDLE]
    candidates = map_arrays(_arrivals, layers, grid.is_large)
    return [c for c in candidates if c is not None and _is_sync_point(c)]


def _arrivals(layer: Layer) -> _SyncPoint | None:
    """Return who arrives last in a layer, by how much, and whether all leave together; None for one rank."""
    here = layer.taking_part
    if here is None:
        return None
    ranks, columns = here
    last, delay, apart = np.empty((3, len(columns)), np.int64)
    is_together = np.empty(len(columns), bool)
    noise = []
    for low, chosen in _blocks(columns, len(ranks)):
        high = low + len(chosen)
        start, ns = layer.cells(ranks, chosen)
        which = start.argmax(axis=0)
        each = np.arange(len(chosen))
        ends = start + ns
        leaves = ends[which, each] - median_of_others(ends, which)
        latest = ends.argmax(axis=0)
        apart[low:high] = ends[latest, each] - median_of_others(ends, latest)
        noise.append(_noise(start))
        delay[low:high] = start[which, each] - median_of_others(start, which)
        last[low:high] = ranks[which]
        is_together[low:high] = np.abs(leaves) < TOGETHER * delay[low:high]
    return _SyncPoint(
        layer, ranks, columns, last, delay, is_together, apart, float(np.median(noise))
    )


def _is_sync_point(point: _SyncPoint) -> bool:
    """Return whether late ranks leave together with the others, for most of the delay."""
    late = int(point.delay.sum())
    together = int(point.delay[point.is_together].sum())
    return 2 * together > late or (late == 0 and point.layer.phase == COMMUNICATION)


def _noise(start: Ints) -> float:
    """Return the standard deviation of arrivals from step to step. A lasting shift is not noise."""
    if start.shape[1] < 3:
        return 0.0
    count = len(start)
    changes = np.abs(np.diff(start - start.mean(axis=0), axis=1))
    return float(np.median(changes)) / 0.954 * count / (count - 1)


def _delays_at_steps(grid: Grid, without: Delays, least: float) -> Delays:
    """Return the delays of ranks that begin a step late and the next one together with the others.

    The others wait within the step, in any span: with a GPU that is where they fetch a result. Leaves out
    steps with a delay in ``without``, which was found at a synchronisation point.
    """
    ns = np.full(grid.begin.shape, -1, np.int64)
    is_whole = (grid.begin[:, :-1] >= 0) & (grid.begin[:, 1:] >= 0)
    ns[:, :-1] = np.where(is_whole, np.diff(grid.begin, axis=1), -1)
    whole = Layer(STEP, grid.begin, np.zeros_like(ns), ns)
    point = _arrivals(whole)
    return _NONE if point is None else _delays_at(grid, point, least, without.waited)


def _delays_at(grid: Grid, point: _SyncPoint, least: float, without: Ints | None = None) -> Delays:
    """Return the delays at one synchronisation point with their reasons, without some columns."""
    late = point.delay > max(least, SIGMAS * point.noise)
    # A rank that is nearly always last is not an accident, however much arrivals vary.
    counts = np.bincount(point.last[point.delay > least], minlength=len(grid.ranks))
    late |= (point.delay > least) & (counts >= ALWAYS * len(late))[point.last]
    for place in np.unique(point.last[late]).tolist():
        # Each rank is judged by itself: the root of a broadcast does not wait for the receivers.
        mine = late & (point.last == place)
        together = int(point.delay[mine & point.is_together].sum())
        late[mine] = 2 * together > int(point.delay[mine].sum())
    late &= point.is_together
    if without is not None:
        late &= ~np.isin(point.columns, without)
    chosen = np.flatnonzero(late)
    parts = [_NONE]
    for _, block in _blocks(chosen, len(point.ranks)):
        parts.append(_Reasons(grid, point, block, least).split())
    return _joined(parts)


class _Reasons:
    """The time of all ranks since the synchronisation point before, in steps in which one arrived late."""

    def __init__(self, grid: Grid, point: _SyncPoint, chosen: Ints, least: float) -> None:
        self.grid = grid
        self.least = least
        self.layer = point.layer
        self.ranks = point.ranks
        self.columns = point.columns[chosen]
        self.before = np.maximum(self.columns - 1, 0)
        self.delay = point.delay[chosen]
        self.last = point.last[chosen]
        self.own = np.searchsorted(self.ranks, self.last)
        self.each = np.arange(len(chosen))
        self.arrival = self.layer.cells(self.ranks, self.columns)[0]
        self.since = self._since()

    def _since(self) -> Ints:
        """Return when each rank left the synchronisation point before, or else began the step."""
        begin = self.grid.begin[np.ix_(self.ranks, self.before)]
        begin = np.where(begin < 0, self.grid.begin[np.ix_(self.ranks, self.columns)], begin)
        if self.layer.phase == STEP:
            return np.minimum(begin, self.arrival)
        since = np.full(self.arrival.shape, -1, np.int64)
        for columns in (self.columns, self.before):
            is_open = since < 0
            for point in _sync_points(self.grid):
                if point.layer is self.layer and columns is self.columns:
                    continue
                start, ns = point.layer.cells(self.ranks, columns)
                is_past = is_open & (ns >= 0) & (start < self.arrival)
                is_past &= point.releases(columns, self.least)
                since = np.where(is_past, np.maximum(since, start + ns), since)
        return np.minimum(np.where(since < 0, begin, since), self.arrival)

    def split(self) -> Delays:
        """Divide each delay among the phases that took longer than on other ranks.

        Shares below ``least`` are dropped.
        """
        least = self.least
        totals, in_steps, earlier = self._totals()
        rest = self.arrival - self.since
        for total in totals.values():
            rest -= total
        # A rank that takes longer in a collective waits there itself.
        totals.pop(CODES[COMMUNICATION], None)
        reasons = []
        for code, total in totals.items():
            more, typical = self._against_others(total)
            if code in in_steps:
                # Stages of a pipeline do the same work one after the other: none of them takes longer.
                more = np.minimum(more, self._against_others(in_steps[code])[0])
            reasons.append(((more, typical), np.full(len(self.each), code), earlier[code]))
        amounts = self._against_others(np.maximum(rest, 0))
        reasons.append((amounts, *self._outside(amounts[0])))
        excess, typical = (np.array([reason[0][i] for reason in reasons]) for i in (0, 1))
        codes, is_earlier = (np.array([reason[i] for reason in reasons]) for i in (1, 2))
        columns = np.where(is_earlier, self.before, self.columns)
        order = np.argsort(-excess, axis=0, kind="stable")
        left, shares = self.delay.copy(), np.zeros(excess.shape, np.int64)
        for row in order[1:]:
            ns = np.minimum(excess[row, self.each], left - excess[order[0], self.each])
            ns[ns <= least] = 0
            shares[row, self.each] = ns
            left -= ns
        # Small differences elsewhere cancel out: the largest reason gets the rest, without lateness that was
        # carried over from earlier.
        top = order[0], self.each
        shares[top] = np.clip(excess[top] + int(least), 0, left)
        row, at = np.nonzero(shares > least)
        return Delays(
            self.last[at],
            columns[row, at],
            self.columns[at],
            codes[row, at],
            shares[row, at],
            typical[row, at],
        )

    def _totals(self) -> tuple[dict[int, Ints], dict[int, Ints], dict[int, Bools]]:
        """Return by phase the time of each rank since the point before, the time in both steps, and whether
        most of it is in the step before.

        Counts only spans with a phase: the rest is code that no such span covers. Time at synchronisation
        points counts as communication.
        """
        totals: dict[int, Ints] = {}
        in_steps: dict[int, Ints] = {}
        met = [point.layer for point in _sync_points(self.grid)]
        own: dict[int, list[Ints]] = {}
        for layer in self.grid.layers:
            if layer.phase in (IDLE, TRAINING) or layer is self.layer:
                continue
            code = CODES[COMMUNICATION if layer in met else layer.phase]
            for place, columns in enumerate((self.columns, self.before)):
                start, ns = layer.cells(self.ranks, columns)
                is_here = (ns >= 0) & (start >= self.since) & (start < self.arrival)
                amount = np.where(is_here, np.minimum(ns, self.arrival - start), 0)
                totals[code] = totals.get(code, 0) + amount
                in_steps[code] = in_steps.get(code, 0) + np.maximum(ns, 0)
                mine = own.setdefault(code, [np.zeros(len(self.each), np.int64) for _ in range(2)])
                mine[place] += amount[self.own, self.each]
        earlier = {code: amounts[1] > amounts[0] for code, amounts in own.items()}
        begin = self.grid.begin[self.last, self.columns]
        for phase in BETWEEN:
            code = CODES[phase]
            if any(code in self.grid.events[place].codes for place in self.ranks.tolist()):
                totals[code], first = self._events(code)
                earlier[code] = first < begin
        return totals, in_steps, earlier

    def _events(self, code: int) -> tuple[Ints, Ints]:
        """Return the same for checkpoints and the like, and when the first of them began on the last rank."""
        total = np.zeros(self.arrival.shape, np.int64)
        first = np.zeros(len(self.each), np.int64)
        for row, place in enumerate(self.ranks.tolist()):
            starts, ns = self.grid.events[place].of(code)
            low, high = (np.searchsorted(starts, edge[row]) for edge in (self.since, self.arrival))
            sums = np.concatenate([[0], np.cumsum(ns)])
            total[row] = sums[high] - sums[low]
            mine = (self.own == row) & (high > low)
            first[mine] = starts[low[mine]]
        return np.minimum(total, self.arrival - self.since), first

    def _against_others(self, values: Ints) -> tuple[Ints, Ints]:
        """Return the excess of the last rank over the others, and the median of the others."""
        others = median_of_others(values, self.own)
        return values[self.own, self.each] - others, others

    def _outside(self, excess: Ints) -> tuple[Ints, Bools]:
        """Return the phase of time without a span that has a phase, and whether it is in the step before."""
        since, arrival = (edge[self.own, self.each] for edge in (self.since, self.arrival))
        is_earlier = crosses = since < self.grid.begin[self.last, self.columns]
        code = np.full(len(self.each), CODES[IDLE])
        for layer in self.grid.layers:
            if layer.phase == TRAINING:
                now, before = (
                    self._against_others(np.maximum(layer.cells(self.ranks, at)[1], 0))[0]
                    for at in (self.columns, self.before)
                )
                before = np.where(crosses, before, 0)
                is_training = 2 * (now + before) >= excess
                code[is_training] = CODES[TRAINING]
                # If both steps have it, it occurs in each step and belongs to this one.
                is_earlier = np.where(is_training, before > 2 * now, is_earlier)
            elif layer.phase not in (IDLE, COMMUNICATION):
                # The rest of a pass that contains several collectives.
                start, ns = (
                    cells[self.own, self.each] for cells in layer.cells(self.ranks, self.columns)
                )
                is_inside = (ns >= 0) & (start < since) & (start + ns + self._met() > arrival)
                code[is_inside] = CODES[layer.phase]
                is_earlier = is_earlier & ~is_inside
        return code, is_earlier

    def _met(self) -> Ints:
        """Return the time of the last rank in collectives in each of the steps."""
        total = np.zeros(len(self.each), np.int64)
        for layer in self.grid.layers:
            if layer.phase == COMMUNICATION:
                total += np.maximum(layer.cells(self.ranks, self.columns)[1], 0)[
                    self.own, self.each
                ]
        return total


def median_of_others(values: Ints, which: Ints) -> Ints:
    """Return the median of each column without one row, whose index is in ``which``.

    Of two middle values it is the mean, unless they are far apart: then one of the two ranks may be slow
    itself, and it is the lower value.
    """
    each = np.arange(values.shape[1])
    # Transposed: faster to sort.
    others = values.T.copy()
    others[each, which] = np.iinfo(np.int64).min
    at = 1 + (len(values) - 2) // 2
    if len(values) % 2 == 0:
        others.partition(at, axis=1)
        return others[:, at].copy()
    others.partition([at, at + 1], axis=1)
    lower, upper = others[:, at], others[:, at + 1]
    is_close = 4 * (upper - lower) < values[which, each] - lower
    middle: Ints = np.where(is_close, (lower + upper) // 2, lower)
    return middle


def _blocks(columns: Ints, ranks: int) -> Iterator[tuple[int, Ints]]:
    """Yield some columns at a time, with the index of the first."""
    size = max(1, CELLS // max(1, ranks))
    for low in range(0, len(columns), size):
        yield low, columns[low : low + size]


def _joined(parts: list[Delays]) -> Delays:
    return Delays(*map(np.concatenate, zip(*(part.columns for part in parts), strict=True)))


_NONE = Delays(*(np.empty(0, np.int64) for _ in range(6)))
