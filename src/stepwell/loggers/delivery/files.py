"""What is logged that is no number, as files: what they are called in a backend, and where they are."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from stepwell.loggers.delivery.backend import ItemRecord

SUFFIXES = {"text": ".txt", "prov_documents": ".json"}
"""Of values that come without the name of a file; others are JSON."""


def path_of(item: ItemRecord) -> str:
    """Where the file of an item goes, with slashes: into a folder of that name, or is it itself."""
    name = item.name.strip("/") or item.kind
    file = item.file or name + SUFFIXES.get(item.kind, ".json")
    stem = PurePosixPath(file).with_suffix("").as_posix() if file.strip("/.") else file
    named_after_it = not item.attributes.get("folder") and name in (file, stem)
    return file if named_after_it else f"{name}/{file}"


def bytes_of(item: ItemRecord) -> bytes:
    """The value of an item that has no content, as the bytes of a file."""
    if isinstance(item.value, str) and item.kind != "dict":
        return item.value.encode("utf-8", "replace")
    return json.dumps(item.value, indent=2, ensure_ascii=False, default=str).encode(
        "utf-8", "replace"
    )


class Paths:
    """Gives each content a path of its own, so that a later one does not replace an earlier one.

    ``taken`` is kept with the state of delivery: path → sha256 of what is there.
    """

    def __init__(self, taken: Mapping[str, str]) -> None:
        self.taken = dict(taken)

    def free(self, path: str, content: str, step: int | None) -> str:
        """The path, or one beside it where another content has it, with the step or a number in it."""
        whole = PurePosixPath(path)
        names = [path]
        if step is not None:
            names.append(str(whole.with_name(f"{whole.stem}.step-{step}{whole.suffix}")))
        number = 2
        while True:
            for name in names:
                if self.taken.setdefault(name, content) == content:
                    return name
            names = [str(whole.with_name(f"{whole.stem}-{number}{whole.suffix}"))]
            number += 1


@contextmanager
def named(content: Path | bytes, name: str) -> Iterator[Path]:
    """The content under a name for as long as it takes: contents are kept under their sha256."""
    with tempfile.TemporaryDirectory(prefix="stepwell-") as folder:
        path = Path(folder, name)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            _link_or_copy(content, path)
        yield path


def _link_or_copy(source: Path, target: Path) -> None:
    if not source.is_file():
        raise FileNotFoundError(f"the content {source} is not in the run folder (any more)")
    try:
        os.symlink(source.absolute(), target)
    except OSError:
        shutil.copyfile(source, target)


def numbers_of(item: ItemRecord) -> dict[str, float] | None:
    """An item that is a number, or a dict of nothing but numbers, as metrics; None: it is neither."""
    if _is_number(item.value):
        return {item.name: float(item.value)}
    if isinstance(item.value, dict) and item.value:
        found = dict(_flat(item.name, item.value))
        if all(_is_number(value) for value in found.values()):
            return {name: float(value) for name, value in found.items()}
    return None


def _flat(above: str, values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        name = f"{above}/{key}"
        if isinstance(value, dict):
            yield from _flat(name, value)
        else:
            yield name, value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
