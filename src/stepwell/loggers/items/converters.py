"""Converts logged objects to small values or files that a run can store.

The conversion happens in the call of ``log()``, since the object may change right after. This module has the
table of converters, one per kind, and the simple ones; the others are in the modules beside it.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from stepwell._core.values import MAX_TEXT, plain, text_of
from stepwell.telemetry import artifacts

Content = bytes | Path | Callable[[IO[bytes]], object]
"""The content of a file: bytes, a file to copy, or a function that writes it."""

SMALL = 4096
"""Bytes of JSON that are stored as a value. Larger values become files."""
MAX_PART = 150
"""Characters of each part of a file name."""
SEPARATOR = "."
"""Separator in the names of nested parameters."""
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
    """Raised for an item that cannot be converted. The message says what the kind accepts."""


@dataclass(frozen=True)
class ConvertedItem:
    """An item to record: a ``value``, or a file with ``content``. ``meta`` has further attributes."""

    name: str
    value: Any = None
    content: Content | None = None
    file: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def media(self) -> str:
        """The MIME type of the file."""
        suffix = os.path.splitext(self.file or "")[1].lower()
        return MEDIA.get(suffix, "application/octet-stream")


Converter = Callable[[Any, str, dict[str, Any]], Iterator[ConvertedItem]]
"""Function of the item, its identifier and the further arguments of ``log()``. It removes the arguments that
it uses from the dict."""

CONVERTERS: dict[str, str] = {
    "param": "converters.param",
    "artifact": "converters.artifact",
    "dict": "converters.dictionary",
    "text": "converters.text",
    "figure": "images.figure",
    "image": "images.image",
    "histogram": "distributions.histogram",
    "table": "distributions.table",
    "torch": "models.anything",
    "model": "models.model",
    "best_model": "models.model",
    "flops_pb": "flops.per_batch",
    "flops_pe": "flops.per_epoch",
    "dataset": "datasets.dataset",
}
"""The converter of each kind as ``module.function``, so that torch and others are imported only if needed."""


def convert(kind: str, item: Any, identifier: str, more: Mapping[str, Any]) -> list[ConvertedItem]:
    """Convert an item of this kind. Arguments in ``more`` that the converter does not use go to ``meta``."""
    module, _, name = CONVERTERS[kind].rpartition(".")
    converter: Converter = getattr(import_module(f"stepwell.loggers.items.{module}"), name)
    options = dict(more)
    converted = list(converter(item, identifier, options))
    if not options:
        return converted
    return [replace(each, meta={**options, **each.meta}) for each in converted]


def store(run_folder: Path, content: Content) -> tuple[str, int]:
    """Store a content in the run folder. Return its sha256 and size."""
    if isinstance(content, bytes | Path):
        return artifacts.store(run_folder, content)
    return artifacts.store_written(run_folder, content)


# Simple kinds


def param(item: Any, identifier: str, options: dict[str, Any]) -> Iterator[ConvertedItem]:
    """Convert a parameter; a dict to one parameter per value, with names such as ``optimizer.lr``."""
    from stepwell._core.masking import mask

    for name, value in flattened(mask({identifier: item})).items():
        yield ConvertedItem(name, value=value)


def flattened(
    params: Mapping[Any, Any], above: str = "", convert: Callable[[Any], Any] | None = None
) -> dict[str, Any]:
    """Return nested dicts as one dict with names such as ``optimizer.lr``, by default with JSON values."""
    convert = convert or _param_value
    flat: dict[str, Any] = {}
    for key, value in params.items():
        name = f"{above}{text_of(getattr(key, 'value', key))}"
        nested = isinstance(value, Mapping) and value
        if nested and name.count(SEPARATOR) < MAX_NESTED:
            flat.update(flattened(value, name + SEPARATOR, convert))
        else:
            flat[name] = convert(value)
    return flat


def _param_value(value: Any) -> Any:
    """Return a value for JSON; ``str(value)`` for objects that JSON cannot represent, such as a device."""
    if isinstance(value, float) and not math.isfinite(value):
        # JSON has no such number.
        return str(float(value))
    converted = plain(value)
    is_description = isinstance(converted, str) and converted.startswith("<")
    if is_description and not isinstance(value, str):
        return text_of(value)[:MAX_TEXT]
    return converted


def artifact(item: Any, identifier: str, options: dict[str, Any]) -> Iterator[ConvertedItem]:
    """Convert a file, the files of a folder, or bytes; other objects with JSON, torch.save or pickle."""
    if isinstance(item, str | os.PathLike):
        yield from _files(Path(item), identifier)
    elif isinstance(item, bytes | bytearray | memoryview):
        yield ConvertedItem(identifier, content=bytes(item), file=file_name(identifier))
    elif isinstance(item, dict | list | tuple) and (data := as_json(item)) is not None:
        yield ConvertedItem(identifier, content=data, file=file_name(identifier, ".json"))
    elif type(item).__module__.partition(".")[0] == "torch":
        from stepwell.loggers.items.models import anything

        yield from anything(item, identifier, options)
    else:
        yield ConvertedItem(
            identifier, content=pickle.dumps(item), file=file_name(identifier, ".pkl")
        )


def _files(path: Path, identifier: str) -> Iterator[ConvertedItem]:
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        if not files:
            raise CannotKeep(f"the folder {path} is empty")
        for file in files:
            inside = file.relative_to(path).as_posix()
            yield ConvertedItem(identifier, content=file, file=inside, meta={"folder": True})
    elif path.is_file():
        yield ConvertedItem(identifier, content=path, file=path.name)
    else:
        raise CannotKeep(f"{str(path)!r} is not a file or folder. To log a text, use kind='text'")


def dictionary(item: Any, identifier: str, options: dict[str, Any]) -> Iterator[ConvertedItem]:
    """Convert a dict to JSON: to a value if it is small, else to a file."""
    from stepwell.telemetry.identity import config_to_dict

    try:
        content = item if isinstance(item, dict | list) else config_to_dict(item)
    except TypeError:
        raise CannotKeep(f"the item must be a dict, got {type(item).__name__}") from None
    data = as_json(content)
    if data is None:
        content = plain(content)
        data = as_json(content) or b"null"
    file = file_name(identifier, ".json", (".json", ".yaml", ".yml"))
    if len(data) <= SMALL:
        yield ConvertedItem(identifier, value=json.loads(data), file=file)
    else:
        yield ConvertedItem(identifier, content=data, file=file)


def text(item: Any, identifier: str, options: dict[str, Any]) -> Iterator[ConvertedItem]:
    """Convert a text: to a value, or to a file if it is long."""
    content = item if isinstance(item, str) else text_of(item)
    file = file_name(identifier, ".txt", (".txt", ".md", ".html", ".csv", ".json", ".log"))
    if len(content) <= MAX_TEXT and len(content.encode("utf-8", "replace")) <= MAX_TEXT:
        yield ConvertedItem(identifier, value=content, file=file)
    else:
        yield ConvertedItem(identifier, content=content.encode("utf-8", "replace"), file=file)


# Tools for converters


def host_tensor(tensor: Any) -> Any:
    """Return a tensor in host memory, in a type that NumPy has: it has no bfloat16."""
    tensor = tensor.detach().cpu()
    return tensor.float() if tensor.is_floating_point() else tensor


def as_json(value: Any) -> bytes | None:
    """Return strict JSON of any size, with NaN as null; None if JSON cannot represent the value."""
    import msgspec

    try:
        return msgspec.json.encode(value, enc_hook=_for_json)
    except Exception:  # keys that are not texts, cycles, lone surrogates, objects that raise
        return None


def _for_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return value.tolist() if hasattr(value, "tolist") else plain(value)


def file_name(identifier: str, suffix: str = "", suffixes: tuple[str, ...] = ()) -> str:
    """Return the identifier as a relative path, with the suffix unless it has one of ``suffixes``."""
    parts = [
        re.sub(r"[\x00-\x1f\x7f]", "_", part).strip()
        for part in identifier.replace("\\", "/").split("/")
    ]
    name = "/".join(part[:MAX_PART] for part in parts if part not in ("", ".", "..")) or "item"
    own = os.path.splitext(name)[1].lower()
    return name if own and own in (suffixes or (suffix,)) else name + suffix
