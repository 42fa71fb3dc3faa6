"""Items once the run is over, and the pixels of pictures among them."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np

from stepwell import Run
from stepwell.follower.records import ItemRecord
from tests.loggers.logged import items


def logged(run: Run, kind: str | None = None) -> list[ItemRecord]:
    """The items, once the run is over."""
    run.finish()
    return items(run, kind)


def pixels(data: bytes) -> np.ndarray[Any, Any]:
    """The pixels of a PNG file, read by hand."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, parts = 8, {}
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        name, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        (check,) = struct.unpack(">I", data[at + 8 + size : at + 12 + size])
        assert zlib.crc32(name + body) == check
        parts[name] = body
        at += 12 + size
    width, height, depth, color = struct.unpack(">IIBB", parts[b"IHDR"][:10])
    assert depth == 8
    channels = {0: 1, 2: 3, 4: 2, 6: 4}[color]
    rows = np.frombuffer(zlib.decompress(parts[b"IDAT"]), np.uint8).reshape(height, -1)
    assert (rows[:, 0] == 0).all()
    return rows[:, 1:].reshape(height, width, channels)
