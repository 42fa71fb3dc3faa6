"""Boxes: spans of one lane, those too narrow to be drawn by themselves merged with their neighbours.

Time is divided into buckets of ``2**exponent`` ns on the clock of the process. Spans shorter than a bucket
that begin in the same bucket of the same row become one box. Buckets of a larger exponent are unions of
smaller ones, so boxes can be merged further without reading the spans again: an *entry* stands for the
short spans of one name in one bucket and row, or for one longer span.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell.analysis.timeline.intervals import Ints

Entries = NDArray[Any]
Places = NDArray[np.intp]

ENTRY = np.dtype(
    [
        ("start", "<i8"),
        ("end", "<i8"),
        ("busy", "<i8"),
        ("id", "<i8"),
        ("name", "<i4"),
        ("count", "<i4"),
        ("row", "<i2"),
        ("flags", "<i2"),
    ]
)
"""Start and end on the clock of the process, time in its spans, id of the span if ``count`` is 1."""
OPEN, FAILED = 1, 2
"""Flags of an entry: one of its spans is open, or failed."""
MAX_ROWS = 64
"""Deeper spans share the last row."""
NO_ID = -1
MOST_NAMES = 4
"""Names of short spans that are kept apart in each row and bucket."""
OTHERS = -1
"""In place of a name: short spans of further names."""
NAME_BITS, BUCKET_BITS = 19, 38
MAX_NAME = (1 << NAME_BITS) - 1
MAX_BUCKET = (1 << BUCKET_BITS) - 1


def join_entries(parts: Iterable[Entries]) -> Entries:
    """Return the entries of all parts. NumPy takes long to join arrays with fields, and bytes not."""
    rows = [part.view(np.uint8) for part in parts if len(part)]
    joined: Entries = np.concatenate(rows).view(ENTRY) if rows else np.empty(0, ENTRY)
    return joined


def merge_entries(entries: Entries, exponent: int) -> Entries:
    """Return the entries of larger buckets, in no particular order."""
    short, wide = _merged(entries, exponent)
    return join_entries([_with_few_names(short, exponent), wide])


def _merged(entries: Entries, exponent: int) -> tuple[Entries, Entries]:
    """Return the short spans by name and bucket, and the wider ones."""
    narrow = is_narrow(entries, exponent)
    if narrow.all():
        return _reduced(entries, _name_key(entries, exponent)), entries[:0]
    short = entries[narrow]
    return _reduced(short, _name_key(short, exponent)), entries[~narrow]


def _with_few_names(entries: Entries, exponent: int) -> Entries:
    """Keep the names with most of the time in each bucket, and make one entry of the others."""
    bucket = _bucket_key(entries, exponent)
    order = np.lexsort((-entries["busy"], entries["name"] == OTHERS, bucket))
    is_first = np.ones(len(entries), bool)
    is_first[1:] = bucket[order[1:]] != bucket[order[:-1]]
    places = np.arange(len(entries))
    rank = places - np.maximum.accumulate(np.where(is_first, places, 0))
    others = order[rank >= MOST_NAMES]
    if not len(others):
        return entries
    entries = entries.copy()
    entries["name"][others] = OTHERS
    return _reduced(entries, _name_key(entries, exponent))


def to_boxes(entries: Entries, exponent: int) -> Entries:
    """Return at most two boxes for each row and bucket, of short spans and of wider ones, by row and start.

    The name of a box is the one with most of the time.
    """
    short, wide = _merged(entries, exponent)
    boxes = join_entries([_boxes(short, exponent), _boxes(wide, exponent)])
    return boxes[np.lexsort((boxes["start"], boxes["row"]))]


def _boxes(entries: Entries, exponent: int) -> Entries:
    """Merge the entries of a row and bucket. The one with most of the time comes first and gives the name."""
    key = _bucket_key(entries, exponent)
    busy = np.where(entries["name"] == OTHERS, -1, entries["busy"])
    return _reduced(entries, key, np.lexsort((-busy, key)))


def is_narrow(entries: Entries, exponent: int) -> NDArray[np.bool_]:
    """Return which entries are short spans. Those of smaller buckets may reach into the next bucket."""
    short = entries["end"] - entries["start"] < 1 << exponent
    return np.asarray(short | (entries["count"] > 1))


def _name_key(entries: Entries, exponent: int) -> Ints:
    """Return a number for each row, bucket and name."""
    name = entries["name"].astype(np.int64) & MAX_NAME
    key: Ints = _bucket_key(entries, exponent) << NAME_BITS | name
    return key


def _bucket_key(entries: Entries, exponent: int) -> Ints:
    """Return a number for each row and bucket, in 44 bits."""
    bucket = entries["start"] >> exponent
    # Buckets are counted from the last one: a span that began long ago may be far from all others.
    back = np.minimum(bucket.max(initial=0) - bucket, MAX_BUCKET)
    key: Ints = entries["row"].astype(np.int64) << BUCKET_BITS | (MAX_BUCKET - back)
    return key


def _reduced(entries: Entries, key: Ints, order: Places | None = None) -> Entries:
    """Merge the entries with the same key. ``order`` sorts them by key: the first of each gives the name."""
    if not len(entries):
        return entries
    if order is None:
        order = np.argsort(key, kind="stable")
    ordered = key[order]
    first = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    if len(first) == len(entries):
        return entries
    merged = entries[order[first]]
    merged["start"] = np.minimum.reduceat(entries["start"][order], first)
    merged["end"] = np.maximum.reduceat(entries["end"][order], first)
    merged["busy"] = np.add.reduceat(entries["busy"][order], first)
    merged["count"] = np.add.reduceat(entries["count"][order], first)
    merged["flags"] = np.bitwise_or.reduceat(entries["flags"][order], first)
    merged["id"][merged["count"] > 1] = NO_ID
    return merged
