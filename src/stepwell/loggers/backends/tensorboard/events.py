"""Logged items as TensorBoard's events: what it can show as such, and a text about the rest."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepwell.journal.document import read_json
from stepwell.loggers.backends.tensorboard.image_size import image_size
from stepwell.loggers.backends.tensorboard.tfevents import histogram, image, scalar, text
from stepwell.loggers.delivery.backend import ItemRecord
from stepwell.loggers.delivery.kept_files import keep_file

MEASURES = ("system", "carbon", "flops_pb", "flops_pe", "execution_time")
"""Kinds that are numbers, or dicts of numbers."""
SUMMARY = "summary"
MAX_IMAGE = 64 << 20
MAX_TEXT = 1 << 20
MAX_ROWS = 200
MAX_TAGS = 10_000
"""Of so many it is remembered what they hold."""


class ItemEvents:
    """Turns items into events. ``tags``: what each tag holds, so that none holds two kinds of things."""

    def __init__(
        self, content_path: Callable[[str], Path], files: Path, tags: dict[str, str]
    ) -> None:
        self._content_path = content_path
        self._files = files
        self._tags = tags
        self._scalars: set[str] = set()

    def scalar_tag(self, name: str) -> str:
        """The tag of a metric."""
        if name in self._tags:
            return f"{name}/scalar"
        if len(self._scalars) < MAX_TAGS:
            self._scalars.add(name)
        return name

    def of(self, item: ItemRecord) -> list[bytes]:
        """The events of an item that is no parameter."""
        step, time_ns = item.step or 0, item.time_ns
        if item.kind == SUMMARY:
            item = replace(item, name=f"{SUMMARY}/{item.name}")
        numbers = list(_numbers(item)) if item.kind in (*MEASURES, SUMMARY) else []
        if numbers:
            return [scalar(self.scalar_tag(n), value, step, time_ns) for n, value in numbers]
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
        return [text(self._tag(item.name, "text"), self._words(item, kept), step, time_ns)]

    def _tag(self, name: str, plugin: str) -> str:
        """A tag that holds nothing else: of two kinds in one, TensorBoard shows the first alone."""
        held = self._tags.get(name)
        if held == plugin:
            return name
        if held is not None or name in self._scalars:
            return f"{name}/{plugin}"
        if len(self._tags) < MAX_TAGS:
            self._tags[name] = plugin
        return name

    def _keep(self, item: ItemRecord) -> Path | None:
        """Keep the file of an item that has one; a text or an image is in the event file as well."""
        if item.content is None:
            return None
        content = self._content_path(item.content)
        if not content.is_file():
            return None
        file = item.file or item.content[:12]
        named = not item.attributes.get("folder") and item.name in (file, os.path.splitext(file)[0])
        path = file if named else f"{item.name}/{file}"
        return keep_file(content, item.content, self._files, path)

    def _words(self, item: ItemRecord, kept: Path | None) -> str:
        """An item in Markdown."""
        if item.kind in ("text", "value") and isinstance(item.value, str):
            return item.value
        if item.kind == "table" and (content := _json_of(item, kept)) is not None:
            return _as_markdown(content, item.attributes.get("caption"))
        if kept is not None and item.kind in ("text", "dict") and (item.size or 0) <= MAX_TEXT:
            words = kept.read_text("utf-8", "replace")
            return words if item.kind == "text" else f"```json\n{words}\n```"
        if kept is None and item.content is not None:
            return "Its content is not in the run folder (any more)."
        if kept is None:
            return f"```json\n{json.dumps(item.value, indent=2, ensure_ascii=False)}\n```"
        return _table(item, kept.relative_to(self._files.parent))


def _json_of(item: ItemRecord, kept: Path | None) -> dict[str, Any] | None:
    """Return the value of an item, or what is in its file."""
    value = item.value if kept is None else read_json(kept, MAX_IMAGE)
    return value if isinstance(value, dict) else None


def _as_markdown(table: dict[str, Any], caption: Any) -> str:
    """Return the first rows of a table as Markdown."""
    columns, rows = list(table.get("columns") or ()), list(table.get("data") or ())
    lines = [f"| {' | '.join(map(_cell, columns))} |", "|" + "---|" * len(columns)]
    lines += [f"| {' | '.join(map(_cell, row))} |" for row in rows[:MAX_ROWS]]
    if len(rows) > MAX_ROWS:
        lines += ["", f"The first {MAX_ROWS} of {len(rows)} rows."]
    return "\n".join(lines + (["", _cell(caption)] if caption else []))


def _numbers(item: ItemRecord) -> Iterator[tuple[str, float]]:
    """The numbers of a measurement, with their names."""
    values = item.value if isinstance(item.value, dict) else {"": item.value}
    for key, value in values.items():
        if isinstance(value, int | float):
            yield f"{item.name}/{key}" if key else item.name, float(value)


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
