"""From live objects to what a run can keep: a small value, or a file.

It happens at the call of ``log()``, since the object may change right afterwards. What each kind does with
its item is in the modules beside this one; here is the table of them, and the plain ones.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from stepwell.journal.careful import plain
from stepwell.journal.values import MAX_TEXT, text_of
from stepwell.telemetry import artifacts

Content = bytes | Path | Callable[[IO[bytes]], object]
"""What a file is filled with: these bytes, a copy of that file, or what a function writes."""

SMALL = 4096
"""Bytes of JSON that are kept as a value; more is a file."""
MAX_PART = 150
"""Characters of each part of a file's name."""
SEPARATOR = "."
"""Between the names of nested parameters."""
MAX_NESTED = 16

MEDIA = {
    ".csv": "text/csv",
    ".gif": "image/gif",
    ".html": "text/html",
    ".jpeg": "image/jpeg",
    ".jpg": "image/jpeg",
    ".json": "application/json",
    ".md": "text/markdown",
    ".pdf": "application/pdf",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
}


class CannotKeep(Exception):
    """An item that its kind cannot do anything with; the message says what it takes."""


@dataclass(frozen=True)
class Item:
    """One thing to record: a ``value``, or a file with ``content``.

    ``meta`` is said about it besides; ``name`` is its identifier.
    """

    name: str
    value: Any = None
    content: Content | None = None
    file: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def media(self) -> str:
        """What the file holds, as a MIME type."""
        suffix = os.path.splitext(self.file or "")[1].lower()
        return MEDIA.get(suffix, "application/octet-stream")


Maker = Callable[[Any, str, dict[str, Any]], Iterator[Item]]
"""Takes the item, its identifier and the further arguments of ``log()``, and takes those that it uses
out of them."""

MAKERS: dict[str, str] = {
    "param": "making.param",
    "artifact": "making.artifact",
    "dict": "making.dictionary",
    "text": "making.text",
    "figure": "pictures.figure",
    "image": "pictures.image",
    "histogram": "distributions.histogram",
    "table": "distributions.table",
    "torch": "models.anything",
    "model": "models.model",
    "best_model": "models.model",
    "flops_pb": "flops.per_batch",
    "flops_pe": "flops.per_epoch",
    "dataset": "datasets.dataset",
    "watch": "watching.watch",
}
"""Where each kind is turned into items, so that torch and the like are imported only where they are used."""


def made_of(kind: str, item: Any, identifier: str, more: Mapping[str, Any]) -> list[Item]:
    """The item as things to record; ``more`` becomes a part of what is said about each."""
    module, _, name = MAKERS[kind].rpartition(".")
    make: Maker = getattr(import_module(f"stepwell.loggers.items.{module}"), name)
    options = dict(more)
    found = list(make(item, identifier, options))
    if not options:
        return found
    return [
        Item(one.name, one.value, one.content, one.file, {**options, **one.meta}) for one in found
    ]


def store(run_folder: Path, content: Content) -> tuple[str, int]:
    """Keep a content with the run; returns (sha256, size)."""
    if isinstance(content, bytes | Path):
        return artifacts.store(run_folder, content)
    return artifacts.store_written(run_folder, content)


# The plain kinds


def param(item: Any, identifier: str, options: dict[str, Any]) -> Iterator[Item]:
    """A parameter; of a dict each value, its name behind a dot."""
    from stepwell.telemetry.identity import mask

    for name, value in flattened(mask({identifier: item})).items():
        yield Item(name, value=value)


def flattened(params: Mapping[Any, Any], above: str = "") -> dict[str, Any]:
    """Nested dicts as one, with names such as ``optimizer.lr``; values are what JSON has."""
    found: dict[str, Any] = {}
    for key, value in params.items():
        name = f"{above}{text_of(getattr(key, 'value', key))}"
        nested = isinstance(value, Mapping) and value
        if nested and name.count(SEPARATOR) < MAX_NESTED:
            found.update(flattened(value, name + SEPARATOR))
        else:
            found[name] = _param_value(value)
    return found


def _param_value(value: Any) -> Any:
    """As JSON has it, where that says as much; else as it prints: a device, a dtype, an optimizer."""
    if isinstance(value, float) and not math.isfinite(value):
        # JSON has no such number.
        return str(float(value))
    kept = plain(value)
    described = isinstance(kept, str) and kept.startswith("<") and not isinstance(value, str)
    return text_of(value)[:MAX_TEXT] if described else kept


def artifact(item: Any, identifier: str, options: dict[str, Any]) -> Iterator[Item]:
    """A file, each file of a folder, bytes; any other object as JSON, by torch.save, or pickled."""
    if isinstance(item, str | os.PathLike):
        yield from _files(Path(item), identifier)
    elif isinstance(item, bytes | bytearray | memoryview):
        yield Item(identifier, content=bytes(item), file=file_name(identifier))
    elif isinstance(item, dict | list | tuple) and (data := as_json(item)) is not None:
        yield Item(identifier, content=data, file=file_name(identifier, ".json"))
    elif type(item).__module__.partition(".")[0] == "torch":
        from stepwell.loggers.items.models import anything

        yield from anything(item, identifier, options)
    else:
        yield Item(identifier, content=pickle.dumps(item), file=file_name(identifier, ".pkl"))


def _files(path: Path, identifier: str) -> Iterator[Item]:
    if path.is_dir():
        found = sorted(file for file in path.rglob("*") if file.is_file())
        if not found:
            raise CannotKeep(f"the folder {path} has no files in it")
        for file in found:
            inside = file.relative_to(path).as_posix()
            yield Item(identifier, content=file, file=inside, meta={"folder": True})
    elif path.is_file():
        yield Item(identifier, content=path, file=path.name)
    else:
        raise CannotKeep(f"{str(path)!r} is no file or folder; as a text, it has kind='text'")


def dictionary(item: Any, identifier: str, options: dict[str, Any]) -> Iterator[Item]:
    """A dict as JSON: the value itself while it is small."""
    from stepwell.telemetry.identity import config_to_dict

    try:
        content = item if isinstance(item, dict | list) else config_to_dict(item)
    except TypeError:
        raise CannotKeep(f"a dict is needed, not {type(item).__name__}") from None
    data = as_json(content)
    if data is None:
        content = plain(content)
        data = as_json(content) or b"null"
    file = file_name(identifier, ".json", (".json", ".yaml", ".yml"))
    if len(data) <= SMALL:
        yield Item(identifier, value=json.loads(data), file=file)
    else:
        yield Item(identifier, content=data, file=file)


def text(item: Any, identifier: str, options: dict[str, Any]) -> Iterator[Item]:
    """A text: the value itself unless it is long."""
    words = item if isinstance(item, str) else text_of(item)
    file = file_name(identifier, ".txt", (".txt", ".md", ".html", ".csv", ".json", ".log"))
    if len(words) <= MAX_TEXT and len(words.encode("utf-8", "replace")) <= MAX_TEXT:
        yield Item(identifier, value=words, file=file)
    else:
        yield Item(identifier, content=words.encode("utf-8", "replace"), file=file)


# What makers share


def as_json(value: Any) -> bytes | None:
    """Strict JSON, NaN as null, all of it however large; None when it has something JSON cannot have."""
    import msgspec

    try:
        return msgspec.json.encode(value, enc_hook=_for_json)
    except Exception:  # keys that are no texts, cycles, lone surrogates, objects that fail
        return None


def _for_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return value.tolist() if hasattr(value, "tolist") else plain(value)


def file_name(identifier: str, suffix: str = "", known: tuple[str, ...] = ()) -> str:
    """A path inside of an artifact folder: the identifier, with a suffix unless it has one of those known."""
    parts = [re.sub(r"[\x00-\x1f\x7f]", "_", part).strip() for part in _parts(identifier)]
    name = "/".join(part[:MAX_PART] for part in parts if part not in ("", ".", "..")) or "item"
    own = os.path.splitext(name)[1].lower()
    return name if own and own in (known or (suffix,)) else name + suffix


def _parts(identifier: str) -> list[str]:
    return identifier.replace("\\", "/").split("/")
