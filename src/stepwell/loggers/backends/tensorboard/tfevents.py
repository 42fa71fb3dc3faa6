"""Encodes TensorBoard's event files without TensorFlow.

A file is a sequence of frames. Each frame has a length, two CRC-32C checksums, and an event in TensorBoard's
protocol buffer format. This module does not know about runs or loggers.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import Any

from stepwell._core.values import as_float

MAX_FLOAT32 = 3.4028235677973366e38
"""Numbers from here on are rounded to infinity in a 32-bit float."""
HPARAMS_START = "_hparams_/session_start_info"
HPARAMS_END = "_hparams_/session_end_info"
STATUS = {"finished": 1, "failed": 2, "interrupted": 2, "killed": 2}
"""TensorBoard's codes for the status of a session."""

_FLOAT, _STRING = 1, 7
"""TensorBoard's codes for types of tensor elements."""
_TENSOR_CLASS = 2
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


# Frames


def frame(event: bytes) -> bytes:
    """Return an event with its frame, as it is written to the file."""
    length = struct.pack("<Q", len(event))
    return b"".join([length, _masked(length), event, _masked(event)])


def _masked(data: bytes) -> bytes:
    """Return the masked checksum: it is rotated, because a CRC of data that contains a CRC is weak."""
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


# Events


def file_version(time_ns: int) -> bytes:
    """Return the first event of every file."""
    source = _message(10, _text(1, "stepwell"))
    return _event(time_ns, 0, _text(3, "brain.Event:2") + source)


def scalar(tag: str, value: float, step: int, time_ns: int) -> bytes:
    """Return the event of a number. TensorBoard stores 32 bits: larger numbers become infinite."""
    if value >= MAX_FLOAT32 or value <= -MAX_FLOAT32:
        value = float("inf") if value > 0 else float("-inf")
    return _summary(tag, _key(2, _FIXED32) + struct.pack("<f", value), step, time_ns)


def text(tag: str, content: str, step: int, time_ns: int) -> bytes:
    """Return the event of a text, which TensorBoard shows as Markdown."""
    tensor = _number(1, _STRING) + _message(2, b"") + _message(8, _encoded(content))
    value = _message(9, _metadata("text", b"", _TENSOR_CLASS)) + _message(8, tensor)
    return _summary(tag, value, step, time_ns)


def image(
    tag: str,
    content: bytes,
    step: int,
    time_ns: int,
    size: tuple[int, int, int],
    caption: str = "",
) -> bytes:
    """Return the event of a PNG, JPEG or GIF; ``size`` is its width, height and number of channels."""
    width, height, channels = size
    shape = _number(1, height) + _number(2, width) + _number(3, channels)
    described = _message(9, _text(3, caption)) if caption else b""
    return _summary(tag, _message(4, shape + _message(4, content)) + described, step, time_ns)


def histogram(tag: str, bins: Mapping[str, Any], step: int, time_ns: int) -> bytes | None:
    """Return the event of a histogram with n ``counts`` and n + 1 ``edges``; None if it has no counts."""
    counts, edges = bins.get("counts"), bins.get("edges")
    if not counts or not isinstance(edges, list) or len(edges) != len(counts) + 1:
        return None
    # TensorBoard stores only upper limits. An empty bin contains the lower limit of the first one.
    limits, buckets = edges, [0.0, *counts]
    total = float(sum(counts))
    middles = [(low + high) / 2 for low, high in pairwise(edges)]
    mean, std = bins.get("mean"), bins.get("std")
    if mean is None or std is None:
        mean = sum(c * m for c, m in zip(counts, middles, strict=True)) / total if total else 0.0
        squares = sum(c * m * m for c, m in zip(counts, middles, strict=True))
    else:
        squares = total * (std**2 + mean**2)
    low, high = bins.get("min", edges[0]), bins.get("max", edges[-1])
    fields = enumerate((low, high, total, mean * total, squares), 1)
    numbers = b"".join(_key(field, _FIXED64) + struct.pack("<d", value) for field, value in fields)
    packed = struct.pack(f"<{len(limits)}d", *limits), struct.pack(f"<{len(buckets)}d", *buckets)
    content = numbers + _message(6, packed[0]) + _message(7, packed[1])
    return _summary(tag, _message(5, content), step, time_ns)


def hparams_start(values: Mapping[str, Any], group: str, time_ns: int) -> bytes:
    """Return the event with the hyperparameters of a run. Numbers and booleans keep their type."""
    entries = b"".join(
        _message(1, _text(1, name) + _message(2, _any_value(values[name]))) for name in values
    )
    seconds = _key(5, _FIXED64) + struct.pack("<d", time_ns / 1e9)
    return _hparams(HPARAMS_START, _message(3, entries + _text(4, group) + seconds), time_ns)


def hparams_end(status: str, time_ns: int) -> bytes:
    """Return the event with the final status: finished, failed, interrupted or killed."""
    seconds = _key(2, _FIXED64) + struct.pack("<d", time_ns / 1e9)
    return _hparams(HPARAMS_END, _message(4, _number(1, STATUS.get(status, 0)) + seconds), time_ns)


def _hparams(tag: str, content: bytes, time_ns: int) -> bytes:
    # The metadata contains everything, but TensorBoard ignores it without a tensor.
    nothing = _number(1, _FLOAT) + _message(2, _message(2, b""))
    value = _message(9, _metadata("hparams", content)) + _message(8, nothing)
    return _summary(tag, value, 0, time_ns)


def _any_value(value: Any) -> bytes:
    """Return a value as google.protobuf.Value."""
    if isinstance(value, bool):
        return _number(4, int(value))
    if isinstance(value, int | float):
        return _key(2, _FIXED64) + struct.pack("<d", as_float(value))
    if isinstance(value, str):
        return _text(3, value)
    return _text(3, "None" if value is None else json.dumps(value, ensure_ascii=False, default=str))


def _summary(tag: str, value: bytes, step: int, time_ns: int) -> bytes:
    return _event(time_ns, step, _message(5, _message(1, _text(1, tag) + value)))


def _metadata(plugin: str, content: bytes, data_class: int = 0) -> bytes:
    plugin_data = _text(1, plugin) + (_message(2, content) if content else b"")
    return _message(1, plugin_data) + (_number(4, data_class) if data_class else b"")


def _event(time_ns: int, step: int, content: bytes) -> bytes:
    head = _key(1, _FIXED64) + struct.pack("<d", time_ns / 1e9)
    return head + (_number(2, step) if step else b"") + content


# Protocol buffers


def _key(field: int, kind: int) -> bytes:
    return _varint(field << 3 | kind)


def _varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF  # negative numbers as two's complement
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _number(field: int, value: int) -> bytes:
    return _key(field, _VARINT) + _varint(value)


def _message(field: int, content: bytes) -> bytes:
    return _key(field, _BYTES) + _varint(len(content)) + content


def _text(field: int, content: str) -> bytes:
    return _message(field, _encoded(content))


def _encoded(content: str) -> bytes:
    return content.encode("utf-8", "replace")


POLYNOMIAL = 0x82F63B78
LARGE = 1 << 15
"""Bytes from which on it is faster to process many pieces in parallel with numpy."""
PIECE = 1 << 10


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) checksum. Large data is a hundred times faster with numpy."""
    if len(data) < LARGE:
        return _update(0xFFFFFFFF, data) ^ 0xFFFFFFFF
    whole = len(data) - len(data) % PIECE
    return _update(_in_pieces(data[:whole]), data[whole:]) ^ 0xFFFFFFFF


def _update(crc: int, data: bytes) -> int:
    table = TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc


def _in_pieces(data: bytes) -> int:
    """Return the state after data whose length is a multiple of ``PIECE``.

    The checksum is linear: the checksum of two pieces is that of the first, advanced by the length of the
    second, XOR that of the second. So all pieces are processed in parallel, and then combined.
    """
    import numpy as np

    table = np.array(TABLE, np.uint32)
    columns = np.ascontiguousarray(np.frombuffer(data, np.uint8).reshape(-1, PIECE).T)
    states = np.zeros(columns.shape[1], np.uint32)
    for column in columns:
        states = table[(states ^ column) & 0xFF] ^ (states >> 8)
    moved = _moves()
    crc = 0xFFFFFFFF
    for state in states.tolist():
        crc = (
            moved[0][crc & 0xFF]
            ^ moved[1][crc >> 8 & 0xFF]
            ^ moved[2][crc >> 16 & 0xFF]
            ^ moved[3][crc >> 24]
            ^ state
        )
    return crc


@cache
def _moves() -> list[list[int]]:
    """Return, for each byte of a state and each value of it, the state after ``PIECE`` zero bytes."""
    bits = [_update(1 << bit, bytes(PIECE)) for bit in range(32)]
    return [[_combined(bits, value << 8 * place) for value in range(256)] for place in range(4)]


def _combined(bits: list[int], state: int) -> int:
    result = 0
    for bit, moved in enumerate(bits):
        if state >> bit & 1:
            result ^= moved
    return result


def _table() -> list[int]:
    entries = list(range(256))
    for index in range(256):
        crc = index
        for _ in range(8):
            crc = crc >> 1 ^ (POLYNOMIAL if crc & 1 else 0)
        entries[index] = crc
    return entries


TABLE: list[int] = _table()
