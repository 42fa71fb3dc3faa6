"""MLflow's limits: characters in names, lengths, and the size of requests."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from stepwell.loggers.delivery.files import EMPTY_NAME, escape, shortened

T = TypeVar("T")

LONGEST_KEY = 250
LONGEST_PARAM = 6000
LONGEST_TAG = 5000
"""Newer servers allow 8000."""
MOST_METRICS = 1000
MOST_PARAMS = 100
MOST_BYTES = 800_000
"""Bytes of one request. A server refuses more than a million."""
_KEY = re.compile(r"[\w.\- :/]")
_PATH = re.compile(r"[\w.\- ()=+@~/]")


def key_of(name: str) -> str:
    """Return the name of a metric, parameter or tag; escaped and shortened if MLflow does not accept it."""
    return shortened(_normal(escape(name, lambda c: _KEY.match(c) is not None)), LONGEST_KEY)


def path_of(path: str) -> str:
    """Return the path of an artifact; escaped and shortened if MLflow does not accept it."""
    return "/".join(
        shortened(part, 150)
        for part in _normal(escape(path, lambda c: _PATH.match(c) is not None)).split("/")
    )


def _normal(name: str) -> str:
    """Escape names that MLflow refuses that are not normal paths: ``/a``, ``a//b``, ``./a``, ``..a``."""
    parts = name.split("/")
    if len(parts) > 1 and not all(parts):
        # Escape the slashes of empty parts: all except those with text on both sides.
        return _normal(re.sub(r"^/+|/+$|(?<=/)/+", lambda f: "_x2F_" * len(f[0]), name))
    if name.startswith(".."):
        parts[0] = parts[0].replace(".", "_x2E_", 1)
    return "/".join("_x2E_" * len(p) if p in (".", "..") else p for p in parts) or EMPTY_NAME


def text_of_param(value: Any) -> str:
    """Return the text that MLflow's ``log_param`` writes; lists and dicts as JSON."""
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def cut(text: str, longest: int) -> str:
    """Return the text; if it is too long, its beginning and a mark."""
    if len(text) <= longest:
        return text
    mark = f"… (cut: {len(text)} characters)"
    return text[: longest - len(mark)] + mark


def portions(things: Iterable[T], most: int) -> Iterator[list[T]]:
    """Split a batch into requests of the size that MLflow accepts."""
    portion: list[T] = []
    size = 0
    for thing in things:
        length = len(json.dumps(vars(thing), default=str)) + 40
        if portion and (len(portion) == most or size + length > MOST_BYTES):
            yield portion
            portion, size = [], 0
        portion.append(thing)
        size += length
    if portion:
        yield portion
