"""Converts figures and images to files that any viewer opens."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stepwell.loggers.items.converters import CannotKeep, ConvertedItem, file_name, host_tensor

FIGURE_SUFFIXES = (".png", ".svg", ".pdf", ".jpg", ".jpeg")
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tiff")
CHANNELS = (1, 3, 4)
LAYOUTS = ("HW", "HWC", "CHW", "NHW", "NHWC", "NCHW")
PADDING = 2


def figure(item: Any, identifier: str, options: dict[str, Any]) -> Iterator[ConvertedItem]:
    """Convert a Matplotlib figure to PNG (or the identifier's suffix), a Plotly figure to HTML."""
    if hasattr(item, "to_html") and hasattr(item, "to_plotly_json"):
        page = item.to_html(include_plotlyjs="cdn").encode()
        yield ConvertedItem(identifier, content=page, file=file_name(identifier, ".html"))
        return
    drawn = item if hasattr(item, "savefig") else _figure_of(item)
    if drawn is None:
        yield from image(item, identifier, options)
        return
    file = file_name(identifier, ".png", FIGURE_SUFFIXES)
    buffer = io.BytesIO()
    drawn.savefig(buffer, format=os.path.splitext(file)[1][1:])
    yield ConvertedItem(identifier, content=buffer.getvalue(), file=file)


def _figure_of(item: Any) -> Any:
    """Return the figure of axes, of a seaborn grid, or of ``matplotlib.pyplot``; else None."""
    for name in ("figure", "fig"):
        figure = getattr(item, name, None)
        if hasattr(figure, "savefig"):
            return figure
    return None


def image(item: Any, identifier: str, options: dict[str, Any]) -> Iterator[ConvertedItem]:
    """Convert an array or tensor (HW, HWC or CHW; several as a grid) or a PIL image to PNG; copy a file.

    Floats range from 0 to 1, integers from 0 to 255. ``dataformats="CHW"`` sets the meaning of the axes if it
    is ambiguous.
    """
    if isinstance(item, str | os.PathLike):
        yield _image_file(Path(item), identifier)
        return
    file = file_name(identifier, ".png")
    if hasattr(item, "save") and hasattr(item, "getbands"):
        buffer = io.BytesIO()
        picture = item if item.mode in ("1", "L", "LA", "RGB", "RGBA", "P") else item.convert("RGB")
        picture.save(buffer, format="PNG")
        size = {"width": item.width, "height": item.height}
        yield ConvertedItem(identifier, content=buffer.getvalue(), file=file, meta=size)
        return
    pixels = as_pixels(item, options.pop("dataformats", None))
    size = {"width": pixels.shape[1], "height": pixels.shape[0]}
    yield ConvertedItem(identifier, content=png(pixels), file=file, meta=size)


def _image_file(path: Path, identifier: str) -> ConvertedItem:
    if not path.is_file():
        raise CannotKeep(f"{str(path)!r} is not a file")
    suffix = path.suffix.lower()
    return ConvertedItem(
        identifier, content=path, file=file_name(identifier, suffix, IMAGE_SUFFIXES)
    )


def as_pixels(item: Any, layout: str | None = None) -> Any:
    """Return an image as an array of bytes, height × width × channels."""
    import numpy as np

    is_tensor = hasattr(item, "detach")
    array = np.asarray(host_tensor(item) if is_tensor else item)
    if array.dtype.kind not in "buif" or array.ndim not in (2, 3, 4) or not array.size:
        raise CannotKeep(
            "an image must be an array of numbers with 2, 3 or 4 axes, got "
            f"{array.dtype} of shape {array.shape}"
        )
    pixels = _as_bytes(_channels_last(array, _layout(array.shape, layout, is_tensor)))
    return pixels if pixels.ndim == 3 else _grid(pixels)


def _layout(shape: tuple[int, ...], given: str | None, is_tensor: bool) -> str:
    if given is not None:
        layout = str(given).upper()
        if layout not in LAYOUTS or len(layout) != len(shape):
            raise CannotKeep(
                f"dataformats of an image with {len(shape)} axes must be one of "
                f"{', '.join(each for each in LAYOUTS if len(each) == len(shape))}, got {given!r}"
            )
        return layout
    if len(shape) == 2:
        return "HW"
    first, last = shape[-3] in CHANNELS, shape[-1] in CHANNELS
    if not first and not last:
        if len(shape) == 3:
            return "NHW"
        raise CannotKeep(f"shape {shape} has no axis of 1, 3 or 4 channels: set dataformats='NCHW'")
    # If both may be channels: torch has them first, others last.
    own = "CHW" if (first and not last) or (first and is_tensor) else "HWC"
    return own if len(shape) == 3 else f"N{own}"


def _channels_last(array: Any, layout: str) -> Any:
    if layout in ("HW", "NHW"):
        return array[..., None]
    moved = array.swapaxes(-3, -2).swapaxes(-2, -1) if layout.endswith("CHW") else array
    if moved.shape[-1] not in (*CHANNELS, 2):
        raise CannotKeep(f"an image must have 1, 3 or 4 channels, got {moved.shape[-1]}")
    return moved


def _as_bytes(array: Any) -> Any:
    import numpy as np

    if array.dtype == np.uint8:
        return array
    if array.dtype.kind == "b":
        return array.astype(np.uint8) * 255
    if array.dtype.kind in "ui":
        return np.clip(array, 0, 255).astype(np.uint8)
    finite = np.nan_to_num(array.astype(np.float64), nan=0.0, posinf=np.inf, neginf=0.0)
    # Values range from 0 to 1, unless one of them is larger: then from 0 to 255.
    values = finite[np.isfinite(finite)]
    scale = 255.0 if not values.size or values.max() <= 1.0 + 1e-3 else 1.0
    return np.clip(np.round(finite * scale), 0, 255).astype(np.uint8)


def _grid(images: Any) -> Any:
    """Arrange several images of one size in a grid that is about square."""
    import numpy as np

    count, height, width, channels = images.shape
    across = int(np.ceil(np.sqrt(count)))
    down = -(-count // across)
    shape = (down * (height + PADDING) - PADDING, across * (width + PADDING) - PADDING, channels)
    grid = np.zeros(shape, np.uint8)
    for number, each in enumerate(images):
        top, left = number // across * (height + PADDING), number % across * (width + PADDING)
        grid[top : top + height, left : left + width] = each
    return grid


def png(pixels: Any) -> bytes:
    """Return a PNG file; ``pixels`` are bytes, height × width × channels."""
    import numpy as np

    height, width, channels = pixels.shape
    color = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    rows = np.zeros((height, 1 + width * channels), np.uint8)
    rows[:, 1:] = pixels.reshape(height, width * channels)
    header = struct.pack(">IIBBBBB", width, height, 8, color, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 6)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    check = zlib.crc32(name + data)
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", check)
