"""Sealing: a live segment becomes a frame, a tenth of its size.

Words are split into byte planes first (all lowest bytes, all second ones, …): clocks that differ in their
lower bytes alone pack better and four times faster so, and slicing costs almost nothing.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_right
from collections.abc import Container, Iterable
from typing import Any

from stepwell.journal.archive import pack
from stepwell.journal.format import (
    CARRIED,
    COLUMN_BYTES,
    CONTEXT_NAME,
    HEADER_BYTES,
    LINK_NAME,
    LINK_WORD,
    NAME_MASK,
    NAME_SHIFT,
    ROW_BYTES,
    SIZES,
    SLOT_MASK,
    STEP_SHIFT,
    TIME_MASK,
    parse_file,
)

PLANES = 8


def split_planes(data: bytes) -> bytes:
    """Reorder 64-bit words by byte position."""
    return b"".join([data[k::PLANES] for k in range(PLANES)])


def join_planes(data: bytes) -> bytes:
    """The words again."""
    count = len(data) // PLANES
    words = bytearray(len(data))
    for k in range(PLANES):
        words[k::PLANES] = data[k * count : (k + 1) * count]
    return bytes(words)


def seal(process: str, data: bytes, name: str = "") -> bytes | None:
    """The frame of a live segment's bytes; None when there is nothing in it.

    With the ``name`` of its file, the number is taken from there.
    """
    header = parse_file(name, data[:HEADER_BYTES])
    if header is None:
        return None
    # A file that was cut off, or has something behind its end, is taken as its reader takes it.
    size = SIZES[header["kind"]]
    body = data[HEADER_BYTES:size].ljust(size - HEADER_BYTES, b"\0")
    header["process"] = process
    payload = _SEALERS[header["kind"]](header, body)
    # Metrics without a row tell the name of a thread whose rows the pump wrote, from a device.
    return pack(header, payload) if payload or header["kind"] == "metrics" else None


def _seal_spans(header: dict[str, Any], body: bytes) -> bytes:
    meta, start, end = (body[i * COLUMN_BYTES : (i + 1) * COLUMN_BYTES] for i in range(3))
    count = (len(start.rstrip(b"\0")) + 7) // 8
    if not count:
        return b""
    used = count * 8
    header.update(_span_summary(array("Q", meta[:used]), array("Q", start[:used]), end[:used]))
    return b"".join(split_planes(c[:used]) for c in (meta, start, end))


def _span_summary(meta: array[int], start: array[int], ends: bytes) -> dict[str, Any]:
    """What a reader wants to know of a segment before unpacking it."""
    end, carried = array("Q", ends), _places(ends, CARRIED)
    links = {slot: (meta[slot] & SLOT_MASK, start[slot] - 1) for slot in _links(meta)}
    elsewhere = links.keys() | {target for target, _ in links.values()}
    return {
        "slots": len(start),
        "spans": len(start) - start.count(0) - len(links) - len(carried),
        # One that targets itself merely stands for a span, which does not go on here. Neither does one whose
        # row has no start: the process was killed before it had moved the span.
        "links": [
            link
            for slot, link in links.items()
            if link[0] != slot and link[0] < len(start) and start[link[0]]
        ],
        # When the first and the last of them began, and when the last one ended.
        "time": _extremes(start, elsewhere),
        "until": _latest_end(end, carried),
        "open": _count_open(start, end, links),
    }


def _extremes(times: array[int], skipped: Iterable[int] = ()) -> list[int]:
    """The earliest and the latest of these times; zeros are none."""
    found = times[:]
    for slot in skipped:
        if slot < len(found):
            found[slot] = 0
    # They are almost in order, so that this is the fastest way to both.
    ordered = sorted(found)
    first = bisect_right(ordered, 0)
    return [ordered[first], ordered[-1]] if first < len(ordered) else [0, 0]


def _latest_end(end: array[int], carried: list[int]) -> int:
    """When the last span ended. Hardly any end has a flag but where its span went on elsewhere."""
    ends = end[:]
    for slot in carried:
        ends[slot] = 0
    latest = max(ends)
    return latest if latest <= TIME_MASK else max(word & TIME_MASK for word in ends)


def _places(column: bytes, word: int) -> list[int]:
    """Where a rare word occurs; four times faster than looking at each."""
    mark = word.to_bytes(8, "little")
    found = []
    at = column.find(mark)
    while at >= 0:
        if at % 8 == 0:
            found.append(at // 8)
        at = column.find(mark, at + 1)
    return found


def _count_open(start: array[int], end: array[int], links: Container[int]) -> int:
    """How many spans have no end. Most segments have none, which is quick to see."""
    if end.count(0) <= (not end[0]):  # The first slot is never used.
        return 0
    return sum(1 for i, word in enumerate(end) if not word and start[i] and i not in links)


def _links(meta: array[int]) -> list[int]:
    """Slots of link rows: rare, so looking for their name bytes beats looking at each word."""
    mark = LINK_NAME.to_bytes(3, "little")
    raw = meta.tobytes()
    slots = []
    at = raw.find(mark)
    while at >= 0:
        if at % 8 == NAME_SHIFT // 8 and meta[at // 8] & NAME_MASK == LINK_WORD:
            slots.append(at // 8)
        at = raw.find(mark, at + 1)
    return slots


def _seal_metrics(header: dict[str, Any], body: bytes) -> bytes:
    used = -(-len(body.rstrip(b"\0")) // ROW_BYTES) * ROW_BYTES
    rows = body[:used]
    header["rows"] = used // ROW_BYTES
    clocks, words, _, names = (array("Q", rows)[k :: ROW_BYTES // 8] for k in range(4))
    header["time"] = _extremes(clocks)
    header["until"] = header["time"][1]
    header["context"] = _context_summary(clocks, words, names)
    return b"".join(_column(rows, k) for k in range(ROW_BYTES // 8))


def _context_summary(clocks: array[int], words: array[int], names: array[int]) -> list[int]:
    """When the context was first and last set, what to, and one more than the least and the largest step.

    Empty where it was not set. With it a reader finds a step without unpacking every segment.
    """
    rows = zip(clocks, words, names, strict=True)
    changes = sorted((clock, word) for clock, word, name in rows if name == CONTEXT_NAME)
    if not changes:
        return []
    (begin, first), (end, last) = changes[0], changes[-1]
    steps = [word >> STEP_SHIFT for _, word in changes]
    return [begin, end, first, last, min(steps), max(steps)]


def _column(rows: bytes, index: int) -> bytes:
    """One 64-bit column of rows, already in planes."""
    return b"".join([rows[8 * index + k :: ROW_BYTES] for k in range(8)])


def _seal_attributes(header: dict[str, Any], body: bytes) -> bytes:
    """Texts in order, equal ones once: ``[count]``, offsets, text numbers, and the texts."""
    index: dict[bytes, int] = {}
    where: list[tuple[int, int]] = []
    at = 0
    while at < len(body) and body[at]:
        end = body.find(b"\0", at)
        text = body[at : end if end >= 0 else len(body)]
        where.append(((at + HEADER_BYTES) >> 3, index.setdefault(text, len(index))))
        at = (at + len(text) + 8) & -8
    if not where:
        return b""
    header["sets"] = len(where)
    offsets = array("I", [offset for offset, _ in where])
    numbers = array("I", [number for _, number in where])
    texts = b"\n".join(index)
    return json.dumps([len(where)]).encode() + b"\n" + offsets.tobytes() + numbers.tobytes() + texts


_SEALERS = {"spans": _seal_spans, "metrics": _seal_metrics, "attributes": _seal_attributes}
