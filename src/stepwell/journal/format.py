"""The file format of the journal, for writers and readers: layouts of words, file names, kinds of lines.

A span segment is a header page followed by three columns of 64-bit words, with one row (*slot*) per span:

    meta    parent slot (16 bits) | name id (24 bits) | attribute offset in 8-byte units (24 bits)
    start   clock at the start, stored last on entry: non-zero = published
    end     clock at the end, one store: zero = still open; the top bits are flags

Slot 0 is never a span, so that "parent 0" means "no parent". A *link* row (name id ``LINK_NAME``) has its
target slot in the parent field and one more than a span id in ``start``: the target slot continues the span,
which began in an earlier segment. A link that targets itself is a proxy of the span, as a parent for others.

A metric segment is a header page followed by rows of 32 bytes: clock, step word, value (float64), name word.
The name word is stored last: non-zero = valid.

An attribute segment is a header page followed by JSON texts, each aligned to 8 bytes and terminated by a
zero byte.
"""

from __future__ import annotations

import struct
from typing import Any

FORMAT = 1
HEADER_BYTES = 4096

SLOT_MASK = 0xFFFF
NAME_SHIFT = 16
NAME_MASK = 0xFFFFFF << NAME_SHIFT
ATTRIBUTE_SHIFT = 40

SLOT_BITS = 14
SPAN_SLOTS = 1 << SLOT_BITS
COLUMN_BYTES = 8 * SPAN_SLOTS
SPAN_BYTES = HEADER_BYTES + 3 * COLUMN_BYTES

ERROR = 1 << 63
CARRIED = 1 << 62
ABANDONED = 1 << 61
TIME_MASK = ABANDONED - 1

ROW_HEAD = struct.Struct("@QQ")
"""Clock and step word: equal for all values of one call."""
ROW = struct.Struct("@16sdQ")
ROW_BYTES = ROW.size
WHOLE_ROW = struct.Struct("@QQdQ")
"""The same row in one call, for a head that is used once."""
METRIC_ROWS = 16384
METRIC_BYTES = HEADER_BYTES + METRIC_ROWS * ROW_BYTES

ATTRIBUTE_BYTES = 1 << 20
"""Size of an attribute segment; it is replaced together with its span segment."""

LINK_NAME = 0xFFFFFF
LINK_WORD = LINK_NAME << NAME_SHIFT
CONTEXT_NAME = LINK_NAME - 1
"""Name of the metric row that sets the context from its time on."""
MAX_NAMES = 1 << 18
OWNER_SHIFT = 24
"""Name word of a metric: name id | (number of its lane + 1) << OWNER_SHIFT, if it is not the writing lane."""

STEP_SHIFT = 24
EPOCH_MASK = (1 << STEP_SHIFT) - 1
MAX_STEP = (1 << 39) - 2
MAX_EPOCH = EPOCH_MASK - 1
IMPLICIT_STEP = 1 << 63
"""Flag of the step word of a metric: a count of earlier values, used only without a context."""
STEP_BIAS = 1 << 62
"""Added to explicit steps, so that negative ones can be stored."""

MAX_NUMBER = 2**31 - 1
"""Limit of the numbers of segments and lanes."""
SIZES = {"spans": SPAN_BYTES, "metrics": METRIC_BYTES, "attributes": ATTRIBUTE_BYTES}

EVENTS = "events.jsonl"
NAMES = "names.jsonl"
PROCESS = "process.json"
STACKS = "stacks.json"
"""The stacks of all threads, written while a process makes no progress."""
WORKERS = "workers"
"""The folder of a process in which its workers record."""

SPAN = "span"
METRIC = "metric"
"""Kinds of names."""

ERROR_EVENT = "error"
"""Name of the event for an exception."""
VALUE = "value"
"""Kind of the event line of a logged value that is not a number."""
ITEM = "item"
"""Kind of the event line of an item; not an event of the run."""
LOGGER = "logger"
"""Kind of the event line that a logger writes when it starts or ends; not an event of the run."""
LATE_ATTRIBUTES = "attributes"
"""Kind of the event line that adds attributes to a span whose row cannot be changed."""


def span_id(seq: int, slot: int) -> int:
    """Return the id of the span that began in this slot of this segment, unique within its process."""
    return seq << SLOT_BITS | slot


def context_word(step: int | None, epoch: int | None) -> int:
    """Return a step and an epoch as one word; each is stored plus 1, and 0 means none."""
    return (0 if step is None else step + 1) << STEP_SHIFT | (0 if epoch is None else epoch + 1)


def pack_header(fields: dict[str, Any]) -> bytes:
    """Return the header of a live segment."""
    import json

    return json.dumps({"stepwell": FORMAT, **fields}).encode()


def parse_header(page: bytes) -> dict[str, Any] | None:
    """Return the fields of the header of a live segment; None if it is missing, incomplete or damaged."""
    import json

    try:
        fields = json.loads(page.rstrip(b"\0"))
    except (ValueError, RecursionError):
        return None
    return fields if is_header(fields) and fields.get("stepwell") == FORMAT else None


def parse_file(name: str, page: bytes) -> dict[str, Any] | None:
    """Like ``parse_header``, with the number of the segment from the file name: the header may be damaged."""
    header = parse_header(page)
    digits = name.partition("-")[2].partition(".")[0]
    if header is not None and digits.isdecimal():
        header["seq"] = int(digits)
    return header if is_header(header) else None


def is_header(fields: Any) -> bool:
    """Return whether this has a valid kind, segment number and lane number."""
    return (
        isinstance(fields, dict)
        and fields.get("kind") in list(SIZES)
        and all(
            isinstance(fields.get(key), int) and 0 <= fields[key] <= MAX_NUMBER
            for key in ("seq", "lane")
        )
    )
