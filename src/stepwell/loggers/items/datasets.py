"""Describes datasets, with digests. The data itself is not copied: it may be larger than the disk."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stepwell._core.values import cut, plain, text_of
from stepwell.loggers.items.converters import ConvertedItem
from stepwell.telemetry.artifacts import file_sha256

LARGEST_DIGESTED = 256 << 20
"""The largest file or array, in bytes, whose digest is computed."""
MOST_FILES = 100_000
MOST_COLUMNS = 200


def dataset(item: Any, identifier: str, options: dict[str, Any]) -> Iterator[ConvertedItem]:
    """Describe a dataset, a data loader, a table, an array, a file, a folder, or a dict of these."""
    yield ConvertedItem(identifier, value=described(item))


def described(item: Any, depth: int = 0) -> dict[str, Any]:
    """Return a description of data."""
    if isinstance(item, str):
        return _place(item)
    if isinstance(item, os.PathLike):
        return _path(Path(item))
    description: dict[str, Any] = {"type": f"{type(item).__module__}.{type(item).__qualname__}"}
    if isinstance(item, Mapping) and depth < 2:
        description["parts"] = {
            text_of(name): described(value, depth + 1) for name, value in list(item.items())[:100]
        }
        return description
    for describe in (_mlflow, _loader, _table, _array, _hugging_face, _length):
        try:
            description |= describe(item)
        except Exception as error:  # an object that only resembles one of these
            description["not_described"] = f"{type(error).__name__}: {cut(text_of(error), 200)}"
    return description


def _place(text: str) -> dict[str, Any]:
    """Describe a path, or a name or address of data elsewhere."""
    if "://" in text or not os.path.exists(text):
        from stepwell._core.masking import mask

        return {"type": "reference", "source": mask(cut(text, 2000))}
    return _path(Path(text))


def _path(path: Path) -> dict[str, Any]:
    description: dict[str, Any] = {"path": str(path.absolute())}
    if path.is_file():
        size = path.stat().st_size
        description |= {"type": "file", "size": size}
        if size <= LARGEST_DIGESTED:
            description["sha256"] = file_sha256(path)
    elif path.is_dir():
        description |= {"type": "folder", **_folder(path)}
    else:
        description["type"] = "missing"
    return description


def _folder(path: Path) -> dict[str, Any]:
    """Return the number and size of the files, and a digest of their names and sizes, not their contents."""
    lines: list[str] = []
    total = 0
    for folder, folders, files in os.walk(path):
        folders.sort()
        for name in sorted(files):
            file = Path(folder, name)
            size = file.stat().st_size if file.is_file() else 0
            total += size
            lines.append(f"{file.relative_to(path).as_posix()} {size}")
        if len(lines) > MOST_FILES:
            return {"files_at_least": len(lines)}
    digest = hashlib.sha256("\n".join(sorted(lines)).encode("utf-8", "replace")).hexdigest()
    return {"files": len(lines), "size": total, "sha256_of_names_and_sizes": digest}


def _mlflow(item: Any) -> dict[str, Any]:
    """Return the description of an MLflow dataset."""
    if not (hasattr(item, "to_dict") and hasattr(item, "digest") and hasattr(item, "source")):
        return {}
    return {"mlflow": {key: text_of(value) for key, value in item.to_dict().items()}}


def _loader(item: Any) -> dict[str, Any]:
    if not (hasattr(item, "dataset") and hasattr(item, "batch_size")):
        return {}
    names = ("batch_size", "num_workers", "drop_last", "pin_memory")
    description = {name: plain(getattr(item, name)) for name in names if hasattr(item, name)}
    sampler = getattr(item, "sampler", None)
    if sampler is not None:
        description["sampler"] = type(sampler).__qualname__
    return {**description, "dataset": described(item.dataset, 1)}


def _table(item: Any) -> dict[str, Any]:
    if not (hasattr(item, "columns") and hasattr(item, "shape")):
        return {}
    kinds = item.dtypes
    kinds = [text_of(kind) for kind in (kinds.values if hasattr(kinds, "values") else kinds)]
    names = [text_of(name) for name in item.columns]
    columns = dict(list(zip(names, kinds, strict=False))[:MOST_COLUMNS])
    return {"shape": [int(size) for size in item.shape], "columns": columns}


def _array(item: Any) -> dict[str, Any]:
    if not (hasattr(item, "dtype") and hasattr(item, "shape")) or hasattr(item, "columns"):
        return {}
    description: dict[str, Any] = {
        "shape": [int(size) for size in item.shape],
        "dtype": text_of(item.dtype),
    }
    data = item.detach().cpu().contiguous() if hasattr(item, "detach") else item
    if getattr(data, "nbytes", LARGEST_DIGESTED + 1) <= LARGEST_DIGESTED:
        import numpy as np

        if hasattr(data, "detach"):
            import torch

            data = data.reshape(-1).view(torch.uint8)
        flat = np.ascontiguousarray(np.asarray(data))
        if flat.dtype.kind in "buifc":
            description["sha256"] = hashlib.sha256(flat.data.cast("B")).hexdigest()
    return description


def _hugging_face(item: Any) -> dict[str, Any]:
    if not (hasattr(item, "features") and hasattr(item, "_fingerprint")):
        return {}
    return {
        "fingerprint": text_of(item._fingerprint),
        "features": cut(text_of(item.features), 2000),
        "split": text_of(getattr(item, "split", None)),
    }


def _length(item: Any) -> dict[str, Any]:
    description: dict[str, Any] = {}
    if hasattr(item, "__len__"):
        description["length"] = len(item)
    for name in ("root", "transform", "target_transform", "split", "train"):
        value = getattr(item, name, None)
        if value is not None and not callable(getattr(type(item), name, None)):
            description[name] = (
                plain(value) if name in ("root", "train", "split") else cut(text_of(value), 500)
            )
    return description
