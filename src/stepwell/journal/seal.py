"""Sealing: a live segment becomes a block of an archive, a tenth of its size.

Words are first split into byte planes (all lowest bytes, all second bytes, …). Clocks that differ only in
their lower bytes then compress better and four times faster; the slicing costs almost nothing.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_right
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any

from stepwell.journal.archive import Archive, archive_kind, pack
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
STATES = ("live", "full")
"""Suffixes of the files of segments that are not sealed."""


def split_planes(data: bytes) -> bytes:
    """Return the bytes of 64-bit words ordered by their position in the word."""
    return b"".join([data[k::PLANES] for k in range(PLANES)])


def join_planes(data: bytes) -> bytes:
    """Undo ``split_planes``."""
    count = len(data) // PLANES
    words = bytearray(len(data))
    for k in range(PLANES):
        words[k::PLANES] = data[k * count : (k + 1) * count]
    return bytes(words)


def seal(process: str, data: bytes, name: str = "") -> bytes | None:
    """Return the block for the bytes of a live segment; None if it is empty or its header is damaged.

    With the ``name`` of its file, the number of the segment is taken from there.
    """
    header = parse_file(name, data[:HEADER_BYTES])
    if header is None:
        return None
    # Readers treat a file that is too short or too long in the same way.
    size = SIZES[header["kind"]]
    body = data[HEADER_BYTES:size].ljust(size - HEADER_BYTES, b"\0")
    header["process"] = process
    payload = _SEALERS[header["kind"]](header, body)
    # A metric segment without rows has the name of a thread whose rows the pump wrote, for a device.
    return pack(header, payload) if payload or header["kind"] == "metrics" else None


def segment_files(folder: Path, states: Iterable[str] = STATES) -> list[Path]:
    """Return the files of segments in a folder that are not sealed: attributes before spans."""
    return sorted(path for state in states for path in folder.glob(f"*.{state}"))


def seal_files(
    folder: Path, process: str, archives: Mapping[str, Archive], states: Iterable[str] = STATES
) -> list[int]:
    """Move the segments in a folder into archives. Return the sizes of the blocks in bytes.

    Files of empty segments are removed. A file that has content but a damaged header cannot be read: it is
    kept for a repair by hand.
    """
    sizes = []
    # Attributes first: a sealed span must find its attributes.
    for path in segment_files(folder, states):
        data = path.read_bytes()
        block = seal(process, data, path.name)
        if block is not None:
            archives[archive_kind(path.name.partition("-")[0])].append(block)
            sizes.append(len(block))
        elif parse_file(path.name, data[:HEADER_BYTES]) is None and data.strip(b"\0"):
            continue
        path.unlink()
    return sizes


def _seal_spans(header: dict[str, Any], body: bytes) -> bytes:
    meta, start, end = (body[i * COLUMN_BYTES : (i + 1) * COLUMN_BYTES] for i in range(3))
    count = (len(start.rstrip(b"\0")) + 7) // 8
    if not count:
        return b""
    used = count * 8
    header.update(_span_summary(array("Q", meta[:used]), array("Q", start[:used]), end[:used]))
    return b"".join(split_planes(c[:used]) for c in (meta, start, end))


def _span_summary(meta: array[int], start: array[int], ends: bytes) -> dict[str, Any]:
    """Return the header fields with which a reader decides whether to unpack a segment."""
    end, carried = array("Q", ends), _places(ends, CARRIED)
    links = {slot: (meta[slot] & SLOT_MASK, start[slot] - 1) for slot in _links(meta)}
    elsewhere = links.keys() | {target for target, _ in links.values()}
    return {
        "slots": len(start),
        "spans": len(start) - start.count(0) - len(links) - len(carried),
        # Spans that continue in this segment. A link that targets itself is a proxy and does not count,
        # nor does one whose target has no start: the process was killed before it had copied the span.
        "links": [
            link
            for slot, link in links.items()
            if link[0] != slot and link[0] < len(start) and start[link[0]]
        ],
        # When the first and the last span began, and when the last one ended.
        "time": _extremes(start, elsewhere),
        "until": _latest_end(end, carried),
        "open": _count_open(start, end, links),
    }


def _extremes(times: array[int], skipped: Iterable[int] = ()) -> list[int]:
    """Return the earliest and the latest time, ignoring zeros and the skipped slots."""
    counted = times[:]
    for slot in skipped:
        if slot < len(counted):
            counted[slot] = 0
    # Sorting is fastest, because the times are almost in order.
    ordered = sorted(counted)
    first = bisect_right(ordered, 0)
    return [ordered[first], ordered[-1]] if first < len(ordered) else [0, 0]


def _latest_end(end: array[int], carried: list[int]) -> int:
    """Return when the last span ended. Apart from carried spans, hardly any end has a flag."""
    ends = end[:]
    for slot in carried:
        ends[slot] = 0
    latest = max(ends)
    return latest if latest <= TIME_MASK else max(word & TIME_MASK for word in ends)


def _places(column: bytes, word: int) -> list[int]:
    """Return the slots in which a rare word occurs; four times faster than checking each slot."""
    mark = word.to_bytes(8, "little")
    slots = []
    at = column.find(mark)
    while at >= 0:
        if at % 8 == 0:
            slots.append(at // 8)
        at = column.find(mark, at + 1)
    return slots


def _count_open(start: array[int], end: array[int], links: Container[int]) -> int:
    """Return the number of spans without an end. Most segments have none, which is checked first."""
    if end.count(0) <= (not end[0]):  # The first slot is never used.
        return 0
    return sum(1 for i, word in enumerate(end) if not word and start[i] and i not in links)


def _links(meta: array[int]) -> list[int]:
    """Return the slots of link rows. They are rare: a search for their bytes beats checking each row."""
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
    """Return [first time, last time, first word, last word, min step + 1, max step + 1] of context rows.

    Empty if there are none. With it a reader finds a step without unpacking every segment.
    """
    rows = zip(clocks, words, names, strict=True)
    changes = sorted((clock, word) for clock, word, name in rows if name == CONTEXT_NAME)
    if not changes:
        return []
    (begin, first), (end, last) = changes[0], changes[-1]
    steps = [word >> STEP_SHIFT for _, word in changes]
    return [begin, end, first, last, min(steps), max(steps)]


def _column(rows: bytes, index: int) -> bytes:
    """Return one 64-bit column of rows, split into planes."""
    return b"".join([rows[8 * index + k :: ROW_BYTES] for k in range(8)])


def _seal_attributes(header: dict[str, Any], body: bytes) -> bytes:
    """Return ``[count]``, offsets, text numbers, and the texts in order; equal texts are stored once."""
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
