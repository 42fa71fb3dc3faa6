"""One owner for each instant of a thread: of the spans that are open, the one that began last.

Where spans nest that is the innermost. It is as well defined where they do not (tasks that take turns, a
child that outlives its parent), and found in the same way, so nothing here is a special case.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from stepwell.analysis.time.intervals import Ints

CHUNK = 1 << 16
"""Spans that are looked at together: few enough for their columns to stay in the processor's cache, many
enough for two threads not to be in each other's way."""
NOBODY = -1

Indices = NDArray[np.intp]


def previous_greater(ends: Ints, around: int = 0) -> Indices:
    """For each span, in the order of their starts, the last one before it that ends no earlier; else -1.

    When a span ends, that is the owner of what follows, until another one begins. The first ``around`` spans
    are likely to be around all others.
    """
    found = np.arange(-1, len(ends) - 1, dtype=np.int64)
    # All between a span and the one that is found for it so far end before it does. So what is found for
    # the latter, should it end too early itself, is as good a guess for the former, and a farther one.
    latest = np.maximum.accumulate(ends[around:])
    found[around + 1 :][ends[around + 1 :] > latest[:-1]] = around - 1
    rows = np.flatnonzero((found >= 0) & (ends[found] < ends))
    while len(rows):
        found[rows] = farther = found[found[rows]]
        rows = rows[(farther >= 0) & (ends[farther] < ends[rows])]
    return found


Pieces = tuple[Indices, Indices, Ints, Ints]
"""Span that each piece follows the start of; its owner, or NOBODY; start; end."""


def owned(starts: Ints, ends: Ints, until: int) -> Iterator[tuple[int, int, list[Pieces]]]:
    """The time from the first start to ``until``, piece by piece, with the owner of each.

    Spans are given in the order of their starts, and of two that start together the inner one last. Yields
    the numbers of a chunk of spans, first and after the last, and the pieces from the start of its first
    span to the start of the next chunk's: in several lists, each in the order of time.
    """
    open_spans: Indices = np.empty(0, np.int64)
    for first in range(0, len(starts), CHUNK):
        after = min(first + CHUNK, len(starts))
        until_next = int(starts[after]) if after < len(starts) else until
        numbers = np.concatenate((open_spans, np.arange(first, after)))
        begun = len(open_spans)
        chunk_ends = ends[numbers]
        before = previous_greater(chunk_ends, begun)
        next_start = np.append(starts[first + 1 : after], until_next)
        yield first, after, _pieces(starts, numbers, chunk_ends, before, begun, next_start)
        open_spans = numbers[_chain(before, chunk_ends, until_next)]


def _pieces(
    starts: Ints, numbers: Indices, ends: Ints, before: Indices, begun: int, next_start: Ints
) -> list[Pieces]:
    """Between one start and the next: the span that began, then those around it that it leaves."""
    row = numbers[begun:]
    owner = np.arange(begun, len(numbers))
    low = starts[row[0] : row[-1] + 1]
    high, limit = ends[begun:], next_start
    found: list[Pieces] = []
    while True:
        found.append(
            (row, np.where(owner < 0, NOBODY, numbers[owner]), low, np.minimum(high, limit))
        )
        # None are left where there is no owner: that lasts until the next start.
        left = np.flatnonzero(high < limit)
        if not len(left):
            return found
        row, limit, low = row[left], limit[left], high[left]
        owner = before[owner[left]]
        high = np.where(owner < 0, limit, ends[owner])


def _chain(before: Indices, ends: Ints, instant: int) -> list[int]:
    """The spans that are open at an instant after all of them began, and may own something yet."""
    chain = []
    at = len(before) - 1
    while at >= 0:
        if ends[at] > instant:
            chain.append(at)
        at = int(before[at])
    return chain[::-1]
