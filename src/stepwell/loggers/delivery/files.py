"""Files and names in backends: paths of items, names with unusual characters, copies in a folder."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from stepwell._core.files import replacing
from stepwell.loggers.delivery.backend import ItemRecord
from stepwell.telemetry.artifacts import file_sha256

SUFFIXES = {"text": ".txt", "prov_documents": ".json"}
"""Suffixes of values without a file name, by kind. All others are JSON."""


def path_of(item: ItemRecord) -> str:
    """Return the path of an item's file: in a folder with the name of the item, or the name itself."""
    name = item.name.strip("/") or item.kind
    file = item.file or name + SUFFIXES.get(item.kind, ".json")
    stem = PurePosixPath(file).with_suffix("").as_posix() if file.strip("/.") else file
    is_named_alike = not item.attributes.get("folder") and name in (file, stem)
    return file if is_named_alike else f"{name}/{file}"


def bytes_of(item: ItemRecord) -> bytes:
    """Return the value of an item without content, as the bytes of a file."""
    if isinstance(item.value, str) and item.kind != "dict":
        return item.value.encode("utf-8", "replace")
    return json.dumps(item.value, indent=2, ensure_ascii=False, default=str).encode(
        "utf-8", "replace"
    )


class Paths:
    """Gives each content its own path, so that a later one does not replace an earlier one.

    ``taken`` is saved with the state of delivery: path → sha256 of the content there.
    """

    def __init__(self, taken: Mapping[str, str]) -> None:
        self.taken = dict(taken)

    def free(self, path: str, content: str, step: int | None) -> str:
        """Return the path; with the step or a number added if the path has another content."""
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
    """Context manager: a file with this content and name. In the run folder, its name is the sha256."""
    with tempfile.TemporaryDirectory(prefix="stepwell-") as folder:
        path = Path(folder, name)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            _link_or_copy(content, path)
        yield path


def _link_or_copy(source: Path, target: Path) -> None:
    if not source.is_file():
        raise FileNotFoundError(f"{source} is not in the run folder; was it removed?")
    try:
        os.symlink(source.absolute(), target)
    except OSError:
        shutil.copyfile(source, target)


def numbers_of(item: ItemRecord) -> dict[str, float] | None:
    """Return an item that is a number, or a nested dict of numbers, as metrics; None for other items."""
    if _is_number(item.value):
        return {item.name: float(item.value)}
    if isinstance(item.value, dict) and item.value:
        values = dict(_flat(item.name, item.value))
        if all(_is_number(value) for value in values.values()):
            return {name: float(value) for name, value in values.items()}
    return None


def numbers_in(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """Yield a number, or the numbers in a dict, with their names. Other values are left out."""
    values = value if isinstance(value, dict) else {"": value}
    for key, each in values.items():
        if isinstance(each, int | float):
            yield f"{name}/{key}" if key else name, float(each)


def _flat(above: str, values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        name = f"{above}/{key}"
        if isinstance(value, dict):
            yield from _flat(name, value)
        else:
            yield name, value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


ALIKE = re.compile(r"_(?=x[0-9A-F]{1,6}(.))", re.DOTALL)
HASH_LENGTH = 12
EMPTY_NAME = "_x110000_"
"""Stands for an empty name; there is no character with this code."""


def escape(name: str, allowed: Callable[[str], bool]) -> str:
    """Replace each character that is not allowed, such as ``{`` by ``_x7B_``. No two names give the same.

    ``allowed`` must return True for letters, digits and ``_``.
    """
    # An underscore that looks like the start of an escape is escaped itself.
    plain = ALIKE.sub(lambda f: "_" if f[1] != "_" and allowed(f[1]) else "_x5F_", name)
    return "".join(c if allowed(c) else f"_x{ord(c):X}_" for c in plain)


def shortened(name: str, longest: int) -> str:
    """Return the name. If it is too long, replace its end by a hash of the whole name."""
    if len(name) <= longest:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:HASH_LENGTH]
    return f"{name[: longest - HASH_LENGTH - 1]}-{digest}"


def renamed_message(name: str, shown_as: str, backend: str) -> str:
    """Return the warning about a name that the backend does not accept."""
    return (
        f"{backend} does not accept the name {name[:200]!r}: it is {shown_as!r} there. Similar names are "
        "changed in the same way"
    )


MAX_PART = 150
"""Bytes of a name in a path; the last ones are kept. File systems allow 255."""


def keep_file(content: Path, sha256: str, folder: Path, path: str) -> Path:
    """Copy a content to this path below a folder. Return the path of the copy.

    A copy that exists is not written again. A file with another content is not replaced: the new one then has
    the first digits of its sha256 in its name. No name leads out of the folder.
    """
    wanted = folder.joinpath(*safe_parts(path))
    beside = wanted.with_name(f"{wanted.stem}-{sha256[:12]}{wanted.suffix}")
    for target in (wanted, beside):
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            with replacing(target) as new:
                shutil.copyfile(content, new)
            return target
        if _has_content(target, sha256, content.stat().st_size):
            return target
    return beside


def safe_parts(path: str) -> list[str]:
    """Return the parts of an untrusted path. None of them leads out of a folder."""
    parts = [part for part in PurePosixPath(path.replace("\\", "/")).parts if part.strip("/. ")]
    return [_safe(part) for part in parts] or ["unnamed"]


def as_one_part(name: str) -> str:
    """Return an untrusted name as the name of one file or folder."""
    return "_".join(safe_parts(name))


def run_folder_name(run: str, name: str) -> str:
    """Return the name of the folder for a run: ``<name>-<run id>``, or the id if it contains the name."""
    run = as_one_part(run)
    name = re.sub(r"[^\w.+=@-]+", "_", name).strip("._")
    return run if not name or name in run else f"{name[:100]}-{run}"


def _safe(part: str) -> str:
    printable = re.sub(r"[\x00-\x1f:*?\"<>|]", "_", part)
    short = printable.encode("utf-8", "replace")[-MAX_PART:]
    return short.decode("utf-8", "ignore")


def _has_content(path: Path, sha256: str, size: int) -> bool:
    if not path.is_file() or path.stat().st_size != size:
        return False
    return file_sha256(path) == sha256
