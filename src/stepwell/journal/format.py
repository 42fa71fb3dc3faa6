"""Word layouts of the journal: what each bit of a record means, for writers and readers alike.

A span segment is a header page followed by three columns of 64-bit words, one row (*slot*) a span:

    meta    parent slot (16 bits) | name id (24 bits) | attribute offset in 8-byte units (24 bits)
    start   clock when entered, stored last on enter: non-zero = published
    end     clock when left, one store: zero = still open; top bits are flags

Slot 0 is never a span, so that "parent 0" can mean "no parent". A *link* row (name id ``LINK_NAME``)
has its target slot in the parent field and one more than a span id in ``start``: the target slot
goes on with a span that began in an earlier segment; a link that targets itself merely stands for it.

A metric segment is a header page followed by rows of 32 bytes: clock, step word, value (float64),
name word. The name word is stored last: non-zero = valid.

An attribute segment is a header page followed by JSON texts, each from a multiple of 8 bytes on and
ended by a zero byte.
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
"""Clock and step word: the same for all values of one call."""
ROW = struct.Struct("@16sdQ")
ROW_BYTES = ROW.size
WHOLE_ROW = struct.Struct("@QQdQ")
"""The same row, its head as two words: one call where the head serves no other row."""
METRIC_ROWS = 16384
METRIC_BYTES = HEADER_BYTES + METRIC_ROWS * ROW_BYTES

ATTRIBUTE_BYTES = 1 << 20
"""Size of an attribute segment; it is rolled together with the span segment it belongs to."""

LINK_NAME = 0xFFFFFF
LINK_WORD = LINK_NAME << NAME_SHIFT
CONTEXT_NAME = LINK_NAME - 1
"""Name of the metric row that says: from this instant on, this is the context."""
MAX_NAMES = 1 << 18
OWNER_SHIFT = 24
"""A metric's name word: name id | one more than the number of the lane it belongs to, if not this."""

STEP_SHIFT = 24
EPOCH_MASK = (1 << STEP_SHIFT) - 1
MAX_STEP = (1 << 39) - 2
MAX_EPOCH = EPOCH_MASK - 1
IMPLICIT_STEP = 1 << 63
"""Flag of a metric's step word: a count of earlier values, used only where no context is known."""
STEP_BIAS = 1 << 62
"""Explicit steps are stored with this added, so that negative ones fit too."""

MAX_NUMBER = 2**31 - 1
"""Of a segment or a lane."""
SIZES = {"spans": SPAN_BYTES, "metrics": METRIC_BYTES, "attributes": ATTRIBUTE_BYTES}


def span_id(seq: int, slot: int) -> int:
    """Identity of the span that began in this slot of this segment, unique within its process."""
    return seq << SLOT_BITS | slot


def context_word(step: int | None, epoch: int | None) -> int:
    """Pack a step and an epoch; each is stored as one more than it is, zero meaning none."""
    return (0 if step is None else step + 1) << STEP_SHIFT | (0 if epoch is None else epoch + 1)


def pack_header(fields: dict[str, Any]) -> bytes:
    """Header of a live segment, to be stored at its beginning."""
    import json

    return json.dumps({"stepwell": FORMAT, **fields}).encode()


def parse_header(page: bytes) -> dict[str, Any] | None:
    """Fields of a live segment's header, or None where there is none that is complete."""
    import json

    try:
        fields = json.loads(page.rstrip(b"\0"))
    except (ValueError, RecursionError):
        return None
    return fields if is_header(fields) and fields.get("stepwell") == FORMAT else None


def parse_file(name: str, page: bytes) -> dict[str, Any] | None:
    """``parse_header`` of a file, whose name has the number of the segment too: the header may be damaged."""
    header = parse_header(page)
    digits = name.partition("-")[2].partition(".")[0]
    if header is not None and digits.isdecimal():
        header["seq"] = int(digits)
    return header if is_header(header) else None


def is_header(fields: Any) -> bool:
    """Whether this says of which kind a segment is, and its number and that of its lane."""
    return (
        isinstance(fields, dict)
        and fields.get("kind") in list(SIZES)
        and all(
            isinstance(fields.get(key), int) and 0 <= fields[key] <= MAX_NUMBER
            for key in ("seq", "lane")
        )
    )
