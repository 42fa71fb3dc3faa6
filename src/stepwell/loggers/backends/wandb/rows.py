"""What a batch of records comes to in W&B: rows of its history, and artifacts.

The same batch always comes to the same acts, which are plain JSON: those that W&B has not on disk yet are
kept with the state of delivery.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable
from typing import Any, TypeAlias

from stepwell.loggers.delivery import files as backend_files
from stepwell.loggers.delivery.backend import ItemRecord, LogRecord, MetricRecord
from stepwell.loggers.delivery.names import escape, in_words, shortened

Act: TypeAlias = dict[str, Any]
"""``{"index", "time", "row": {…}, "media": {…}}`` or ``{"index", "artifact": {…}}``."""

STEP = "trainer/global_step"
"""Our step, as a value of each row: W&B's own may never go back. Lightning calls it so too."""
EPOCH = "epoch"
NUMBERS = ("system", "carbon", "execution_time", "flops_pb", "flops_pe", "watch")
PICTURES = ("image/png", "image/jpeg", "image/gif", "image/bmp")
TYPES = {"best_model": "model", "prov_documents": "provenance"}
KEPT = "kept"
"""Type of artifacts that have what W&B did not take otherwise."""
LONGEST_NAME = 120
LARGEST_PAGE = 1 << 20
LARGEST_TABLE = 64 << 20


class Plan:
    """Collects the rows and artifacts of a batch, in the order in which they begin."""

    def __init__(self, first: int, say: Callable[[str, str], None]) -> None:
        self.next = first
        self.say = say
        self.acts: list[Act] = []
        self.params: dict[str, Any] = {}
        self.summary: dict[str, Any] = {}
        self._rows: dict[int | None, Act] = {}
        self._artifact: tuple[str, str, int | None] | None = None

    def take(self, records: list[LogRecord]) -> None:
        """All records of a batch."""
        for record in records:
            if isinstance(record, MetricRecord):
                self._value(record, record.name, number(record.value))
            else:
                self._item(record)

    def _item(self, item: ItemRecord) -> None:
        if item.kind == "param":
            self.params[self._key(item.name)] = finite(item.value)
        elif item.kind == "summary":
            self.summary[self._key(item.name)] = finite(item.value)
        elif item.kind in NUMBERS and (numbers := backend_files.numbers_of(item)) is not None:
            for name, value in numbers.items():
                self._value(item, name, number(value))
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
        """The row of this step; another one where it has such a value already."""
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
            self.say("name", in_words(name, key, "W&B"))
        return key

    # Artifacts

    def _file(self, item: ItemRecord) -> None:
        """Files of one folder come one after the other: they are one artifact."""
        told = (item.kind, item.name, item.step)
        if told != self._artifact or not item.attributes.get("folder"):
            self._artifact = told
            self._act(artifact=_artifact(item))
        # A path in it, not in all of W&B: the name is that of the artifact.
        path = item.file or backend_files.path_of(item)
        content = item.content or {"text": backend_files.bytes_of(item).decode("utf-8", "replace")}
        self.acts[-1]["artifact"]["files"][path.strip("/") or "file"] = content


def _artifact(item: ItemRecord) -> dict[str, Any]:
    about = finite(item.value) if isinstance(item.value, dict) else {}
    return {
        "name": artifact_name(item.name or item.kind),
        "type": TYPES.get(item.kind, item.kind),
        "aliases": ["latest", "best"] if item.kind == "best_model" else ["latest"],
        "metadata": {"identifier": item.name, "step": item.step, "kind": item.kind, **about},
        "files": {},
    }


def named_in(act: Act) -> str:
    """What an act is about, for a message."""
    if "artifact" in act:
        return repr(act["artifact"]["metadata"].get("identifier"))
    return ", ".join(repr(key) for key in (*act["media"], *act["row"]) if key != STEP)


def as_files(act: Act) -> Act:
    """The same act where W&B refused it: nothing but files, under a name that is surely taken."""
    if "artifact" in act:
        files = {
            f"{i}-{digest(path)}": kept
            for i, (path, kept) in enumerate(act["artifact"]["files"].items())
        }
        name, about = (
            digest(str(act["artifact"]["metadata"])),
            {"names": str(list(act["artifact"]["files"]))},
        )
    else:
        files = {f"{i}": _file_of(kept) for i, kept in enumerate(act["media"].values())}
        files["row.json"] = {"text": json.dumps(act["row"], default=str)}
        name, about = digest(str(act["index"])), {"names": str(list(act["media"]))}
    artifact = {
        "name": f"kept-{name}",
        "type": KEPT,
        "aliases": [],
        "metadata": about,
        "files": files,
    }
    return {"index": act["index"], "artifact": artifact}


def _file_of(kept: dict[str, Any]) -> Any:
    return kept["content"] or {"text": json.dumps(kept["value"], default=str)}


def kept_as_file(key: str, kept: dict[str, Any]) -> dict[str, Any]:
    """Something that W&B cannot show, as an artifact."""
    return {
        "name": artifact_name(key),
        "type": KEPT,
        "aliases": ["latest"],
        "metadata": {"identifier": key},
        "files": {(kept["file"] or "").strip("/") or "file": _file_of(kept)},
    }


def is_media(item: ItemRecord) -> bool:
    """Whether W&B can show it: a picture, a page, a histogram or a table."""
    if item.kind in ("histogram", "table"):
        return (item.size or 0) <= LARGEST_TABLE
    if item.kind not in ("figure", "image") or item.content is None:
        return False
    return item.media in PICTURES or (
        item.media == "text/html" and (item.size or 0) <= LARGEST_PAGE
    )


def number(value: float) -> float | str:
    """As W&B itself writes it into its files: what is not finite is a word."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def finite(value: Any) -> Any:
    """The same for whatever is inside of a value."""
    if isinstance(value, float):
        return number(value)
    if isinstance(value, dict):
        return {str(key): finite(inside) for key, inside in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inside) for inside in value]
    return value


def key_of(name: str) -> str:
    """A name as W&B takes it: those that begin with ``_`` are its own, and so is our step.

    What is changed is written as in addresses, ``%5F`` for ``_``.
    """
    plain = re.sub(r"%(?=[0-9A-F]{2})|[\x00-\x1f\x7f\\]", _percent, name)
    if plain == STEP or not plain.strip() or plain.startswith("_"):
        return _percent(plain[:1]) + plain[1:] if plain else "%"
    return plain


def _percent(found: re.Match[str] | str) -> str:
    character = found if isinstance(found, str) else found[0]
    return f"%{ord(character):02X}"


def artifact_name(name: str) -> str:
    """W&B takes letters, digits, ``-``, ``_`` and ``.`` in it, and 128 of them."""
    escaped = escape(name, lambda c: c.isascii() and (c.isalnum() or c in "_-."))
    return shortened(escaped, LONGEST_NAME) if escaped.strip(".") else f"_{digest(name)}"


def digest(text: str) -> str:
    """A few characters that stand for a text."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8]
