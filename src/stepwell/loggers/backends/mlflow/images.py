"""Pictures with a step, as MLflow shows them: with a slider. Its own call would give a repeated one twice."""

from __future__ import annotations

import io
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stepwell.loggers.delivery.backend import ItemRecord
from stepwell.loggers.delivery.names import escape, shortened

Upload = Callable[[str, Path | bytes], None]

SMALL_SIDE = 256
"""Pixels of the longer side of the small version that MLflow's overview shows."""


@dataclass(frozen=True)
class Picture:
    """A PNG file at a step; ``path`` is as MLflow's ``log_image`` writes it, but for the suffix."""

    path: str
    content: Path

    def upload(self, upload: Upload) -> None:
        """Upload it, and a small version for the overview."""
        upload(f"{self.path}.png", self.content)
        upload(f"{self.path}+compressed.webp", _small(self.content))


def picture_of(item: ItemRecord, content_path: Callable[[str], Path]) -> Picture | None:
    """The item as a picture, if it is a PNG file with a step and can be read."""
    if item.kind not in ("figure", "image") or item.step is None or item.content is None:
        return None
    content = content_path(item.content)
    if item.media != "image/png" or not _is_readable(content):
        return None
    key = escape(item.name.strip("/") or item.kind, _allowed).replace("/", "~")
    # The same each time that it is sent.
    unique = uuid.uuid5(uuid.NAMESPACE_OID, f"{item.name} {item.content} {item.time_ns}")
    milliseconds = item.time_ns // 1_000_000
    name = f"{shortened(key, 120)}+step+{item.step}+timestamp+{milliseconds}+{unique}"
    return Picture(f"images/{name}", content)


def _allowed(character: str) -> bool:
    return character.isascii() and (character.isalnum() or character in "_-./ ")


def _is_readable(content: Path) -> bool:
    try:
        from PIL import Image
    except ImportError:
        return False
    try:
        with Image.open(content) as picture:
            picture.verify()
    except Exception:  # no picture, or a damaged one: it is kept as the file that it is
        return False
    return True


def _small(content: Path) -> bytes:
    from PIL import Image

    target = io.BytesIO()
    with Image.open(content) as picture:
        picture.thumbnail((SMALL_SIDE, SMALL_SIDE))
        picture.save(target, "WEBP")
    return target.getvalue()
