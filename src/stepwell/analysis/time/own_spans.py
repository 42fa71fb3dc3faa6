"""The user's own spans: time that has no phase is named after the outermost of them that is open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stepwell.analysis.time.intervals import Ints, Set, sums
from stepwell.analysis.time.lanes import Lane
from stepwell.analysis.time.periods import Iterations
from stepwell.analysis.time.words import OWN, OWN_SPAN, PHASES

MOST_NAMES = 20
"""Names that get a line of their own, those with the most time; names may be made up without end."""


@dataclass(frozen=True)
class OwnSpans:
    """The own spans of a thread that nothing of their kind is around.

    Attributes:
        names: those that have a line, with ``OWN_SPAN`` before them.
        spans: disjoint, in the order of time; all are of one of these names.
        places: for each of them, the place of its name.
        iteration: the number of the name that the user gave to the spans around each step.
    """

    names: tuple[str, ...]
    spans: Set
    places: Ints
    iteration: int | None


def own_spans(
    lane: Lane, iterations: Iterations | None, names: Mapping[int, tuple[str, str, str]]
) -> OwnSpans:
    """Find them. A span with a whole training iteration inside merely holds others, and has no line."""
    rows, numbers = lane.named
    starts, ends = lane.starts[rows], lane.ends[rows]
    if iterations is not None and len(iterations):
        first = np.searchsorted(iterations.starts, starts)
        last_end = np.append(iterations.ends, np.iinfo(np.int64).max)[first]
        kept = last_end > ends
        starts, ends, numbers = starts[kept], ends[kept], numbers[kept]
    # Of those that are open, the one that began first.
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
    """The names with the most time, and for each span the number of its name among them, or -1."""
    known, which = np.unique(numbers, return_inverse=True)
    titles = [_title(names, int(number)) for number in known]
    total: dict[str, int] = {}
    for title, ns in zip(titles, sums(which, lengths, len(known)).tolist(), strict=True):
        if title is not None:
            total[title] = total.get(title, 0) + ns
    lines = sorted(total, key=lambda title: -total[title])[:MOST_NAMES]
    at = np.array([lines.index(t) if t in lines else -1 for t in titles], np.int64)
    return lines, at[which] if len(known) else np.empty(0, np.int64)


def _title(names: Mapping[int, tuple[str, str, str]], number: int) -> str | None:
    """The name of a line; None for a span whose name is lost, or is that of a phase."""
    found = names.get(number)
    return None if found is None or found[2] in PHASES else OWN_SPAN + found[2]
