"""Converts a batch of records to W&B's rows and artifacts.

The result is a list of acts in plain JSON, always the same for the same batch. Acts that W&B has not written
to disk are saved with the state of delivery.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from typing import Any, TypeAlias

from stepwell._core.values import finite_or_text
from stepwell.loggers.delivery import files as backend_files
from stepwell.loggers.delivery.backend import ItemRecord, LogRecord, MetricRecord
from stepwell.loggers.delivery.files import escape, renamed_message, shortened
from stepwell.loggers.kinds import MEASURES

Act: TypeAlias = dict[str, Any]
"""``{"index", "time", "row": {…}, "media": {…}}`` or ``{"index", "artifact": {…}}``."""

STEP = "trainer/global_step"
"""Key of our step in each row, as in Lightning. W&B's own step must never decrease."""
EPOCH = "epoch"
NUMBERS = (*MEASURES, "watch")
PICTURES = ("image/png", "image/jpeg", "image/gif", "image/bmp")
TYPES = {"best_model": "model", "prov_documents": "provenance"}
KEPT = "kept"
"""Type of artifacts with values that W&B did not accept otherwise."""
LONGEST_NAME = 120
LARGEST_PAGE = 1 << 20
LARGEST_TABLE = 64 << 20


class WandBBatch:
    """Collects the rows and artifacts of a batch, in the order in which they start."""

    def __init__(self, first: int, warn: Callable[[str, str], None]) -> None:
        self.next = first
        self.warn = warn
        self.acts: list[Act] = []
        self.params: dict[str, Any] = {}
        self.summary: dict[str, Any] = {}
        self._rows: dict[int | None, Act] = {}
        self._artifact: tuple[str, str, int | None] | None = None

    def take(self, records: list[LogRecord]) -> None:
        """Convert all records of a batch."""
        for record in records:
            if isinstance(record, MetricRecord):
                self._value(record, record.name, finite_or_text(record.value))
            else:
                self._item(record)

    def _item(self, item: ItemRecord) -> None:
        if item.kind == "param":
            self.params[self._key(item.name)] = finite(item.value)
        elif item.kind == "summary":
            self.summary[self._key(item.name)] = finite(item.value)
        elif item.kind in NUMBERS and (numbers := backend_files.numbers_of(item)) is not None:
            for name, value in numbers.items():
                self._value(item, name, finite_or_text(value))
        elif is_media(item):
            self._media(item)
        elif item.content is None and item.kind in ("text", "dict", "value"):
            self._value(item, item.name, finite(item.value))
        else:
            self._file(item)

    # Rows

    def _value(self, record: LogRecord, name: str, value: Any) -> None:
        key = self._key(name)
        self._row(record, key)["row"][key] = value

    def _media(self, item: ItemRecord) -> None:
        key = self._key(item.name)
        self._row(item, key)["media"][key] = {
            "kind": item.kind,
            "content": item.content,
            "file": item.file,
            "media": item.media,
            "value": item.value,
            "caption": item.attributes.get("caption"),
        }

    def _row(self, record: LogRecord, key: str) -> Act:
        """Return the row of this step; a new row if it has a value with this key already."""
        act = self._rows.get(record.step)
        if act is None or key in act["row"] or key in act["media"]:
            act = self._act(time=record.time_ns, row={}, media={})
            self._rows[record.step] = act
            if record.step is not None:
                act["row"][STEP] = record.step
        if record.epoch is not None and key != EPOCH:
            act["row"].setdefault(EPOCH, record.epoch)
        return act

    def _act(self, **content: Any) -> Act:
        act = {"index": self.next, **content}
        self.next += 1
        self.acts.append(act)
        return act

    def _key(self, name: str) -> str:
        key = key_of(name)
        if key != name:
            self.warn("name", renamed_message(name, key, "W&B"))
        return key

    # Artifacts

    def _file(self, item: ItemRecord) -> None:
        """Add a file. The files of one folder, which follow each other, are one artifact."""
        key = (item.kind, item.name, item.step)
        if key != self._artifact or not item.attributes.get("folder"):
            self._artifact = key
            self._act(artifact=_artifact(item))
        # The path in the artifact, which has the name of the item.
        path = item.file or backend_files.path_of(item)
        content = item.content or {"text": backend_files.bytes_of(item).decode("utf-8", "replace")}
        self.acts[-1]["artifact"]["files"][path.strip("/") or "file"] = content


def _artifact(item: ItemRecord) -> dict[str, Any]:
    description = finite(item.value) if isinstance(item.value, dict) else {}
    return {
        "name": artifact_name(item.name or item.kind),
        "type": TYPES.get(item.kind, item.kind),
        "aliases": ["latest", "best"] if item.kind == "best_model" else ["latest"],
        "metadata": {"identifier": item.name, "step": item.step, "kind": item.kind, **description},
        "files": {},
    }


def named_in(act: Act) -> str:
    """Return the names in an act, for a message."""
    if "artifact" in act:
        return repr(act["artifact"]["metadata"].get("identifier"))
    return ", ".join(repr(key) for key in (*act["media"], *act["row"]) if key != STEP)


def as_files(act: Act) -> Act:
    """Return an act that W&B refused as an artifact of files, with a name that W&B accepts."""
    if "artifact" in act:
        files = {
            f"{i}-{digest(path)}": kept
            for i, (path, kept) in enumerate(act["artifact"]["files"].items())
        }
        name = digest(str(act["artifact"]["metadata"]))
        names = list(act["artifact"]["files"])
    else:
        files = {f"{i}": _file_of(kept) for i, kept in enumerate(act["media"].values())}
        files["row.json"] = {"text": json.dumps(act["row"], default=str)}
        name, names = digest(str(act["index"])), list(act["media"])
    artifact = {
        "name": f"kept-{name}",
        "type": KEPT,
        "aliases": [],
        "metadata": {"names": str(names)},
        "files": files,
    }
    return {"index": act["index"], "artifact": artifact}


def _file_of(kept: dict[str, Any]) -> Any:
    return kept["content"] or {"text": json.dumps(kept["value"], default=str)}


def kept_as_file(key: str, kept: dict[str, Any]) -> dict[str, Any]:
    """Return an artifact with a value that W&B cannot show."""
    return {
        "name": artifact_name(key),
        "type": KEPT,
        "aliases": ["latest"],
        "metadata": {"identifier": key},
        "files": {(kept["file"] or "").strip("/") or "file": _file_of(kept)},
    }


def is_media(item: ItemRecord) -> bool:
    """Return whether W&B can show an item: an image, an HTML page, a histogram or a table."""
    if item.kind in ("histogram", "table"):
        return (item.size or 0) <= LARGEST_TABLE
    if item.kind not in ("figure", "image") or item.content is None:
        return False
    return item.media in PICTURES or (
        item.media == "text/html" and (item.size or 0) <= LARGEST_PAGE
    )


def finite(value: Any) -> Any:
    """Apply ``finite_or_text`` to all floats in a nested value."""
    if isinstance(value, float):
        return finite_or_text(value)
    if isinstance(value, dict):
        return {str(key): finite(inside) for key, inside in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inside) for inside in value]
    return value


def key_of(name: str) -> str:
    """Return a name that W&B accepts. Names with a leading ``_``, and the key of our step, are reserved.

    Characters are percent-encoded: ``%5F`` for ``_``.
    """
    plain = re.sub(r"%(?=[0-9A-F]{2})|[\x00-\x1f\x7f\\]", _percent, name)
    if plain == STEP or not plain.strip() or plain.startswith("_"):
        return _percent(plain[:1]) + plain[1:] if plain else "%"
    return plain


def _percent(match: re.Match[str] | str) -> str:
    character = match if isinstance(match, str) else match[0]
    return f"%{ord(character):02X}"


def artifact_name(name: str) -> str:
    """Return the name of an artifact: W&B accepts up to 128 letters, digits, ``-``, ``_`` and ``.``."""
    escaped = escape(name, lambda c: c.isascii() and (c.isalnum() or c in "_-."))
    return shortened(escaped, LONGEST_NAME) if escaped.strip(".") else f"_{digest(name)}"


def digest(text: str) -> str:
    """Return a short hash of a text."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8]
