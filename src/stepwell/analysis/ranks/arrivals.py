"""Who arrives last where ranks wait for each other, and what it did before.

Ranks that come to a collective, or to a pass that contains one, leave it together. The last rank to arrive is
the cause; the time that the others spend there until it comes is waiting, whatever span that is in. What the
last rank did since they all left the meeting before, and for how much longer than the others, is the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepwell.analysis.ranks.grid import BETWEEN, IDLE, Grid, Layer
from stepwell.analysis.time.words import CODES

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

LEAST_SHARE = 0.1
"""Of a typical step: who is late by less is not late."""
SIGMAS = 6.0
ALWAYS = 0.75
"""Share of the steps in which a rank is last, for a delay below the noise to count."""
TOGETHER = 0.5
"""Ranks leave together if the last to arrive leaves later by less than this share of its delay."""
CELLS = 1 << 18
"""Ranks times steps that are looked at together, to bound memory."""
DELAYS = "delays"
MEETINGS = "meetings"
TRAINING = "training"
COMMUNICATION = "communication"
STEP = "step"
"""Phase of a layer that is the whole step."""


@dataclass(frozen=True)
class Delays:
    """Late arrivals that others waited for, an entry for each rank, step and reason."""

    place: Ints
    """Row of the rank in the grid."""
    column: Ints
    """Column of the step in which the rank spent the time."""
    waited: Ints
    """Column of the step in which the others waited."""
    code: Ints
    """Phase of the time, as in ``CODES``: idle or training where no span with a phase covers it."""
    ns: Ints
    """How long the others waited: those in the middle, if there are several."""
    typical: Ints
    """How long the same took on the others."""

    @property
    def fields(self) -> tuple[Ints, ...]:
        """All of them, in this order."""
        return self.place, self.column, self.waited, self.code, self.ns, self.typical

    def where(self, chosen: Bools | Ints) -> Delays:
        """Some of them."""
        return Delays(*(values[chosen] for values in self.fields))

    def __len__(self) -> int:
        return len(self.ns)


@dataclass(frozen=True)
class _Meeting:
    """A layer in which ranks wait for each other; by step: the last rank, and its delay."""

    layer: Layer
    ranks: Ints
    columns: Ints
    last: Ints
    """Place of the rank."""
    delay: Ints
    is_together: Bools
    apart: Ints
    """How much later than the others the last rank leaves."""
    noise: float

    def releases(self, columns: Ints, least: float) -> Bools:
        """In which of these columns all ranks leave it together, however they came."""
        at = np.minimum(np.searchsorted(self.columns, columns), len(self.columns) - 1)
        is_released = self.apart[at] <= np.maximum(least, TOGETHER * self.delay[at])
        return np.asarray(is_released & (self.columns[at] == columns))


def step_ns(grid: Grid) -> int:
    """How long a step takes typically, from its beginning to that of the next one."""
    lasted = np.diff(grid.begin, axis=1)[(grid.begin[:, :-1] >= 0) & (grid.begin[:, 1:] >= 0)]
    if len(lasted):
        return max(1, int(np.median(lasted)))
    done = sum((grid.total(phase) for phase in grid.phases), np.zeros_like(grid.begin))
    return max(1, int(np.median(done))) if done.size else 1


def meeting_layers(grid: Grid) -> list[Layer]:
    """The layers in which ranks wait for each other."""
    return [meeting.layer for meeting in _meetings(grid)]


def delays(grid: Grid) -> Delays:
    """The late arrivals of an attempt; none with a single rank."""
    if DELAYS not in grid.notes:
        parts = [_NONE]
        if len(grid.ranks) > 1 and len(grid.steps):
            least = LEAST_SHARE * step_ns(grid)
            parts += [_delays_at(grid, meeting, least) for meeting in _meetings(grid)]
            parts.append(_delays_at_steps(grid, _joined(parts), least))
        grid.notes[DELAYS] = _joined(parts)
    found: Delays = grid.notes[DELAYS]
    return found


@dataclass(frozen=True)
class Waits:
    """By step of an attempt: for which rank the others waited in a phase, and how long."""

    attempt: int
    phase: str
    steps: Ints
    last: Ints
    """The rank that came last, and did not wait."""
    ns: Ints


def waits_by_step(grid: Grid) -> list[Waits]:
    """How long ranks waited for each other in each step."""
    ranks = np.array(grid.ranks, np.int64)
    return [
        Waits(
            grid.attempt,
            meeting.layer.phase,
            grid.steps[meeting.columns],
            ranks[meeting.last],
            np.where(meeting.is_together, meeting.delay, 0),
        )
        for meeting in (_meetings(grid) if len(grid.ranks) > 1 else [])
    ]


def _meetings(grid: Grid) -> list[_Meeting]:
    if MEETINGS not in grid.notes:
        candidates = [_arrivals(layer) for layer in grid.layers if layer.phase != IDLE]
        grid.notes[MEETINGS] = [c for c in candidates if c is not None and _is_meeting(c)]
    found: list[_Meeting] = grid.notes[MEETINGS]
    return found


def _arrivals(layer: Layer) -> _Meeting | None:
    """Who comes last to a layer, by how much, and whether all leave together; None for a single rank."""
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
    return _Meeting(layer, ranks, columns, last, delay, is_together, apart, float(np.median(noise)))


def _is_meeting(found: _Meeting) -> bool:
    """Whether ranks that are late leave with the others, for the greater part of the time."""
    late = int(found.delay.sum())
    together = int(found.delay[found.is_together].sum())
    return 2 * together > late or (late == 0 and found.layer.phase == COMMUNICATION)


def _noise(start: Ints) -> float:
    """How much arrivals vary from step to step. A shift that lasts is no noise."""
    if start.shape[1] < 3:
        return 0.0
    count = len(start)
    changes = np.abs(np.diff(start - start.mean(axis=0), axis=1))
    return float(np.median(changes)) / 0.954 * count / (count - 1)


def _delays_at_steps(grid: Grid, known: Delays, least: float) -> Delays:
    """The delays of ranks that begin a step late, and the next one with the others.

    The others wait within the step, whatever span they are in: with a GPU that is where they fetch a result.
    """
    ns = np.full(grid.begin.shape, -1, np.int64)
    is_known = (grid.begin[:, :-1] >= 0) & (grid.begin[:, 1:] >= 0)
    ns[:, :-1] = np.where(is_known, np.diff(grid.begin, axis=1), -1)
    whole = Layer(STEP, 0, grid.begin, np.zeros_like(ns), ns)
    meeting = _arrivals(whole)
    return _NONE if meeting is None else _delays_at(grid, meeting, least, known.waited)


def _delays_at(grid: Grid, meeting: _Meeting, least: float, without: Ints | None = None) -> Delays:
    """The delays at one meeting, each with its reasons, without those in some columns."""
    late = meeting.delay > max(least, SIGMAS * meeting.noise)
    # A rank that is last nearly always is no accident, however much arrivals vary.
    counts = np.bincount(meeting.last[meeting.delay > least], minlength=len(grid.ranks))
    late |= (meeting.delay > least) & (counts >= ALWAYS * len(late))[meeting.last]
    for place in np.unique(meeting.last[late]).tolist():
        # A root that sends does not wait for those who receive: each rank is judged by itself.
        mine = late & (meeting.last == place)
        together = int(meeting.delay[mine & meeting.is_together].sum())
        late[mine] = 2 * together > int(meeting.delay[mine].sum())
    late &= meeting.is_together
    if without is not None:
        late &= ~np.isin(meeting.columns, without)
    chosen = np.flatnonzero(late)
    parts = [_NONE]
    for _, block in _blocks(chosen, len(meeting.ranks)):
        parts.append(_Reasons(grid, meeting, block, least).split())
    return _joined(parts)


class _Reasons:
    """What ranks did between the meeting before and this one, in the steps in which one of them came late."""

    def __init__(self, grid: Grid, meeting: _Meeting, chosen: Ints, least: float) -> None:
        self.grid = grid
        self.least = least
        self.layer = meeting.layer
        self.ranks = meeting.ranks
        self.columns = meeting.columns[chosen]
        self.before = np.maximum(self.columns - 1, 0)
        self.delay = meeting.delay[chosen]
        self.last = meeting.last[chosen]
        self.own = np.searchsorted(self.ranks, self.last)
        self.each = np.arange(len(chosen))
        self.arrival = self.layer.cells(self.ranks, self.columns)[0]
        self.since = self._since()

    def _since(self) -> Ints:
        """When each rank left the meeting before, or began the step if there was none."""
        begin = self.grid.begin[np.ix_(self.ranks, self.before)]
        begin = np.where(begin < 0, self.grid.begin[np.ix_(self.ranks, self.columns)], begin)
        if self.layer.phase == STEP:
            return np.minimum(begin, self.arrival)
        since = np.full(self.arrival.shape, -1, np.int64)
        for columns in (self.columns, self.before):
            is_open = since < 0
            for meeting in _meetings(self.grid):
                if meeting.layer is self.layer and columns is self.columns:
                    continue
                start, ns = meeting.layer.cells(self.ranks, columns)
                is_past = is_open & (ns >= 0) & (start < self.arrival)
                is_past &= meeting.releases(columns, self.least)
                since = np.where(is_past, np.maximum(since, start + ns), since)
        return np.minimum(np.where(since < 0, begin, since), self.arrival)

    def split(self) -> Delays:
        """Charge each delay to what took longest beyond the usual; what is less than ``least`` is dropped."""
        least = self.least
        totals, in_steps, earlier = self._totals()
        rest = self.arrival - self.since
        for total in totals.values():
            rest -= total
        # Who takes longer in a collective waits there itself.
        totals.pop(CODES[COMMUNICATION], None)
        reasons = []
        for code, total in totals.items():
            more, typical = self._against_others(total)
            if code in in_steps:
                # Stages of a pipeline do the same one after the other: none of them takes longer.
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
        # Small differences elsewhere cancel out: the greatest has the rest, without what came from earlier.
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
        """By phase the time of each rank between the two meetings, and the time in both steps.

        Also whether it lies in the step before. Only spans that have a phase: what they leave is code that no
        such span covers. Time in which ranks meet counts as communication.
        """
        totals: dict[int, Ints] = {}
        in_steps: dict[int, Ints] = {}
        met = [meeting.layer for meeting in _meetings(self.grid)]
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
        """The same for checkpoints and the like; and when the first of them began on the last rank."""
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
        """How much more than the others the last rank has, and what they have."""
        others = median_of_others(values, self.own)
        return values[self.own, self.each] - others, others

    def _outside(self, excess: Ints) -> tuple[Ints, Bools]:
        """The phase of code that no span with a phase covers, and whether it is in the step before."""
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
                # If both steps have it, it is in each step, and this one's.
                is_earlier = np.where(is_training, before > 2 * now, is_earlier)
            elif layer.phase not in (IDLE, COMMUNICATION):
                # The rest of a pass with several collectives in it.
                start, ns = (
                    cells[self.own, self.each] for cells in layer.cells(self.ranks, self.columns)
                )
                is_inside = (ns >= 0) & (start < since) & (start + ns + self._met() > arrival)
                code[is_inside] = CODES[layer.phase]
                is_earlier = is_earlier & ~is_inside
        return code, is_earlier

    def _met(self) -> Ints:
        """How long the last rank was in collectives in each of the steps."""
        total = np.zeros(len(self.each), np.int64)
        for layer in self.grid.layers:
            if layer.phase == COMMUNICATION:
                total += np.maximum(layer.cells(self.ranks, self.columns)[1], 0)[
                    self.own, self.each
                ]
        return total


def median_of_others(values: Ints, which: Ints) -> Ints:
    """Column by column the median of all rows but one.

    Of two in the middle it is their mean, unless they are far apart: then one of them may be slow itself, and
    it is the lower one.
    """
    each = np.arange(values.shape[1])
    # Transposed, since that is faster to sort.
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
    """Some columns at a time, with the place of the first of them."""
    size = max(1, CELLS // max(1, ranks))
    for low in range(0, len(columns), size):
        yield low, columns[low : low + size]


def _joined(parts: list[Delays]) -> Delays:
    return Delays(
        *(np.concatenate(values) for values in zip(*(p.fields for p in parts), strict=True))
    )


_NONE = Delays(*(np.empty(0, np.int64) for _ in range(6)))
