"""Boxes: spans of one lane, those too narrow to be drawn by themselves merged with their neighbours.

Time is divided into buckets of ``2**exponent`` ns on the clock of the process. Spans shorter than a bucket
that begin in the same bucket of the same row become one box. Buckets of a larger exponent are unions of
smaller ones, so boxes can be merged further without reading the spans again: an *entry* stands for the
short spans of one name in one bucket and row, or for one longer span.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Entries = NDArray[Any]
Ints = NDArray[np.int64]

ENTRY = np.dtype(
    [
        ("start", "<i8"),
        ("end", "<i8"),
        ("busy", "<f8"),
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


def merge_entries(entries: Entries, exponent: int) -> Entries:
    """Return the entries of larger buckets. They are sorted by row and start."""
    if not len(entries):
        return entries
    narrow, bucket = _is_narrow(entries, exponent), entries["start"] >> exponent
    order = np.lexsort((entries["name"], bucket, ~narrow, entries["row"]))
    entries, narrow, bucket = entries[order], narrow[order], bucket[order]
    same = narrow[1:] & narrow[:-1] & (bucket[1:] == bucket[:-1])
    same &= entries["row"][1:] == entries["row"][:-1]
    same &= entries["name"][1:] == entries["name"][:-1]
    return _reduced(entries, np.flatnonzero(np.concatenate([[True], ~same])))


def to_boxes(entries: Entries, exponent: int) -> Entries:
    """Return at most two boxes for each row and bucket: one of short spans, and one that is wider.

    The name of a box is the one with most of the time.
    """
    entries = merge_entries(entries, exponent)
    if not len(entries):
        return entries
    narrow, bucket = _is_narrow(entries, exponent), entries["start"] >> exponent
    order = np.lexsort((-entries["busy"], narrow, bucket, entries["row"]))
    entries, narrow, bucket = entries[order], narrow[order], bucket[order]
    same = (narrow[1:] == narrow[:-1]) & (bucket[1:] == bucket[:-1])
    same &= entries["row"][1:] == entries["row"][:-1]
    # The first entry of each box, which gives it its name, has most of the time.
    boxes = _reduced(entries, np.flatnonzero(np.concatenate([[True], ~same])))
    return boxes[np.lexsort((boxes["start"], boxes["row"]))]


def _is_narrow(entries: Entries, exponent: int) -> NDArray[np.bool_]:
    """Return which entries are short spans. Those of smaller buckets may reach into the next bucket."""
    short = entries["end"] - entries["start"] < 1 << exponent
    return np.asarray(short | (entries["count"] > 1))


def _reduced(entries: Entries, first: NDArray[np.intp]) -> Entries:
    """Merge groups of adjacent entries, given by the index of their first one."""
    merged = entries[first]
    if len(first) == len(entries):
        return merged
    merged["start"] = np.minimum.reduceat(entries["start"], first)
    merged["end"] = np.maximum.reduceat(entries["end"], first)
    merged["busy"] = np.add.reduceat(entries["busy"], first)
    merged["count"] = np.add.reduceat(entries["count"], first)
    merged["flags"] = np.bitwise_or.reduceat(entries["flags"], first)
    merged["id"][merged["count"] > 1] = NO_ID
    return merged
