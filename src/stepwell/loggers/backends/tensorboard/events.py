"""Converts logged items to TensorBoard's events: as numbers, histograms and images, or else as texts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepwell._core.files import read_json
from stepwell.loggers.backends.tensorboard.tfevents import histogram, image, scalar, text
from stepwell.loggers.delivery.backend import ItemRecord
from stepwell.loggers.delivery.files import keep_file, numbers_in, path_of
from stepwell.loggers.kinds import MEASURES

SUMMARY = "summary"
MAX_IMAGE = 64 << 20
MAX_TEXT = 1 << 20
MAX_ROWS = 200
MAX_TAGS = 10_000
"""The largest number of tags whose type is saved."""


class ItemEvents:
    """Converts items to events. ``tags`` has the plugin of each tag, so that no tag has two plugins."""

    def __init__(
        self, content_path: Callable[[str], Path], files: Path, tags: dict[str, str]
    ) -> None:
        self._content_path = content_path
        self._files = files
        self._tags = tags
        self._scalars: set[str] = set()

    def scalar_tag(self, name: str) -> str:
        """Return the tag of a metric."""
        if name in self._tags:
            return f"{name}/scalar"
        if len(self._scalars) < MAX_TAGS:
            self._scalars.add(name)
        return name

    def of(self, item: ItemRecord) -> list[bytes]:
        """Return the events of an item that is not a parameter."""
        step, time_ns = item.step or 0, item.time_ns
        if item.kind == SUMMARY:
            item = replace(item, name=f"{SUMMARY}/{item.name}")
        if item.kind in (*MEASURES, SUMMARY):
            numbers = numbers_in(item.name, item.value)
            scalars = [scalar(self.scalar_tag(n), value, step, time_ns) for n, value in numbers]
            if scalars:
                return scalars
        kept = self._keep(item)
        if item.kind == "histogram" and (bins := _json_of(item, kept)) is not None:
            event = histogram(self._tag(item.name, "histograms"), bins, step, time_ns)
            if event is not None:
                return [event]
        if kept is not None and (item.media or "").startswith("image/") and item.size is not None:
            content = kept.read_bytes() if item.size <= MAX_IMAGE else b""
            size = image_size(content)
            if size is not None:
                caption = str(item.attributes.get("caption") or "")
                tag = self._tag(item.name, "images")
                return [image(tag, content, step, time_ns, size, caption)]
        return [text(self._tag(item.name, "text"), self._markdown(item, kept), step, time_ns)]

    def _tag(self, name: str, plugin: str) -> str:
        """Return a tag with one plugin only: of two plugins in one tag, TensorBoard shows the first."""
        used = self._tags.get(name)
        if used == plugin:
            return name
        if used is not None or name in self._scalars:
            return f"{name}/{plugin}"
        if len(self._tags) < MAX_TAGS:
            self._tags[name] = plugin
        return name

    def _keep(self, item: ItemRecord) -> Path | None:
        """Copy the file of an item, if it has one. Texts and images are in the event file too."""
        if item.content is None:
            return None
        content = self._content_path(item.content)
        if not content.is_file():
            return None
        named = replace(item, file=item.file or item.content[:12])
        return keep_file(content, item.content, self._files, path_of(named))

    def _markdown(self, item: ItemRecord, kept: Path | None) -> str:
        """Return an item as Markdown."""
        if item.kind in ("text", "value") and isinstance(item.value, str):
            return item.value
        if item.kind == "table" and (content := _json_of(item, kept)) is not None:
            return _table_rows(content, item.attributes.get("caption"))
        if kept is not None and item.kind in ("text", "dict") and (item.size or 0) <= MAX_TEXT:
            content_text = kept.read_text("utf-8", "replace")
            return content_text if item.kind == "text" else f"```json\n{content_text}\n```"
        if kept is None and item.content is not None:
            return "Its content is not in the run folder."
        if kept is None:
            return f"```json\n{json.dumps(item.value, indent=2, ensure_ascii=False)}\n```"
        return _table(item, kept.relative_to(self._files.parent))


def _json_of(item: ItemRecord, kept: Path | None) -> dict[str, Any] | None:
    """Return the value of an item, or the content of its file."""
    value = item.value if kept is None else read_json(kept, MAX_IMAGE)
    return value if isinstance(value, dict) else None


def _table_rows(table: dict[str, Any], caption: Any) -> str:
    """Return the first rows of a table as Markdown."""
    columns, rows = list(table.get("columns") or ()), list(table.get("data") or ())
    lines = [f"| {' | '.join(map(_cell, columns))} |", "|" + "---|" * len(columns)]
    lines += [f"| {' | '.join(map(_cell, row))} |" for row in rows[:MAX_ROWS]]
    if len(rows) > MAX_ROWS:
        lines += ["", f"The first {MAX_ROWS} of {len(rows)} rows."]
    return "\n".join(lines + (["", _cell(caption)] if caption else []))


def _table(item: ItemRecord, kept: Path) -> str:
    rows: dict[str, Any] = {
        "kind": item.kind,
        "file": kept.as_posix(),
        "size": f"{item.size} bytes",
        "sha256": item.content,
        "type": item.media,
        "epoch": item.epoch,
        **item.attributes,
    }
    lines = [f"| {_cell(key)} | {_cell(rows[key])} |" for key in rows if rows[key] is not None]
    return "\n".join(["| | |", "|---|---|", *lines])


def _cell(value: Any) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")


PNG = b"\x89PNG\r\n\x1a\n"
PNG_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}
_NO_LENGTH = {0x01, *range(0xD0, 0xDA)}
_NO_FRAME = {0xC4, 0xC8, 0xCC}


def image_size(content: bytes) -> tuple[int, int, int] | None:
    """Return width, height and number of channels of a PNG, JPEG or GIF; None for other content."""
    if content[:8] == PNG and content[12:16] == b"IHDR" and len(content) > 25:
        width, height = _big(content[16:20]), _big(content[20:24])
        return width, height, PNG_CHANNELS.get(content[25], 3)
    if content[:6] in (b"GIF87a", b"GIF89a") and len(content) > 9:
        return int.from_bytes(content[6:8], "little"), int.from_bytes(content[8:10], "little"), 3
    return _jpeg_size(content) if content[:2] == b"\xff\xd8" else None


def _jpeg_size(content: bytes) -> tuple[int, int, int] | None:
    """Return the size in the first segment that starts a frame."""
    at = 2
    while at + 9 < len(content) and content[at] == 0xFF:
        marker = content[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in _NO_FRAME:
            height, width = _big(content[at + 5 : at + 7]), _big(content[at + 7 : at + 9])
            return width, height, content[at + 9]
        at += 2 if marker in _NO_LENGTH else 2 + max(2, _big(content[at + 2 : at + 4]))
    return None


def _big(data: bytes) -> int:
    return int.from_bytes(data, "big")
