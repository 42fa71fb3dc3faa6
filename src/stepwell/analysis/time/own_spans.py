"""The user's own spans: time without a phase is named after the outermost own span that is open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stepwell.analysis.time.intervals import Ints, Set, sums
from stepwell.analysis.time.iterations import Iterations
from stepwell.analysis.time.lanes import LaneSpans
from stepwell.analysis.time.phases import OWN, OWN_SPAN, PHASES

MOST_NAMES = 20
"""Names that get a line of their own: those with the most time. A program may use any number of names."""


@dataclass(frozen=True)
class OwnSpans:
    """The outermost own spans of a thread.

    Attributes:
        names: names that have a line, with the prefix ``OWN_SPAN``.
        spans: the spans with one of these names, disjoint and sorted.
        places: the place of each span's name (see ``phases``).
        iteration: index of the name of the user's own span around each step.
    """

    names: tuple[str, ...]
    spans: Set
    places: Ints
    iteration: int | None


def own_spans(
    lane: LaneSpans, iterations: Iterations | None, names: Mapping[int, tuple[str, str, str]]
) -> OwnSpans:
    """Find the own spans of a lane. A span that contains a whole training iteration gets no line."""
    rows, numbers = lane.named
    starts, ends = lane.starts[rows], lane.ends[rows]
    if iterations is not None and len(iterations):
        first = np.searchsorted(iterations.starts, starts)
        last_end = np.append(iterations.ends, np.iinfo(np.int64).max)[first]
        kept = last_end > ends
        starts, ends, numbers = starts[kept], ends[kept], numbers[kept]
    # Where several are open, the one that began first counts.
    if len(starts):
        reach = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(ends)[:-1]))
        starts = np.maximum(starts, reach)
        some = ends > starts
        starts, ends, numbers = starts[some], ends[some], numbers[some]
    lines, line_of = _lines(numbers, ends - starts, names)
    around = None if lane.around_steps is None else _title(names, lane.around_steps)
    if around is not None and around not in lines:
        lines.append(around)
    iteration = None if around is None else lines.index(around)
    shown = line_of >= 0
    places = OWN + line_of[shown]
    return OwnSpans(tuple(lines), (starts[shown], ends[shown]), places, iteration)


def _lines(
    numbers: Ints, lengths: Ints, names: Mapping[int, tuple[str, str, str]]
) -> tuple[list[str], Ints]:
    """Return the names with the most time, and for each span the index of its name among them, or -1."""
    distinct, which = np.unique(numbers, return_inverse=True)
    titles = [_title(names, int(number)) for number in distinct]
    total: dict[str, int] = {}
    for title, ns in zip(titles, sums(which, lengths, len(distinct)).tolist(), strict=True):
        if title is not None:
            total[title] = total.get(title, 0) + ns
    lines = sorted(total, key=lambda title: -total[title])[:MOST_NAMES]
    at = np.array([lines.index(t) if t in lines else -1 for t in titles], np.int64)
    return lines, at[which] if len(distinct) else np.empty(0, np.int64)


def _title(names: Mapping[int, tuple[str, str, str]], number: int) -> str | None:
    """Return the name of a line; None if the name is lost or is the name of a phase."""
    name = names.get(number)
    return None if name is None or name[2] in PHASES else OWN_SPAN + name[2]
