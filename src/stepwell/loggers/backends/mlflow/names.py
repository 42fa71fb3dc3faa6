"""What MLflow takes: names, lengths, how much at once."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from stepwell.loggers.delivery.names import NOTHING, escape, shortened

T = TypeVar("T")

LONGEST_KEY = 250
LONGEST_PARAM = 6000
LONGEST_TAG = 5000
"""Newer servers take 8000."""
MOST_METRICS = 1000
MOST_PARAMS = 100
MOST_BYTES = 800_000
"""Of one request; a server refuses more than a million."""
_KEY = re.compile(r"[\w.\- :/]")
_PATH = re.compile(r"[\w.\- ()=+@~/]")


def key_of(name: str) -> str:
    """A metric, parameter or tag as MLflow takes it: the name itself, or one to be told from others."""
    return shortened(_normal(escape(name, lambda c: _KEY.match(c) is not None)), LONGEST_KEY)


def path_of(path: str) -> str:
    """The path of an artifact, likewise."""
    return "/".join(
        shortened(part, 150)
        for part in _normal(escape(path, lambda c: _PATH.match(c) is not None)).split("/")
    )


def _normal(name: str) -> str:
    """MLflow refuses what reads as another path: ``/a``, ``a//b``, ``a/``, ``./a``, ``..``, ``..a``."""
    parts = name.split("/")
    if len(parts) > 1 and not all(parts):
        # The slashes of empty parts, all but those that have something on both sides.
        return _normal(re.sub(r"^/+|/+$|(?<=/)/+", lambda f: "_x2F_" * len(f[0]), name))
    if name.startswith(".."):
        parts[0] = parts[0].replace(".", "_x2E_", 1)
    return "/".join("_x2E_" * len(p) if p in (".", "..") else p for p in parts) or NOTHING


def text_of_param(value: Any) -> str:
    """As MLflow's own ``log_param`` writes it; lists and dicts as JSON."""
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def cut(text: str, longest: int) -> str:
    """The text; where it is too long its beginning, with a mark that says so."""
    if len(text) <= longest:
        return text
    mark = f"… (cut: {len(text)} characters)"
    return text[: longest - len(mark)] + mark


def portions(things: Iterable[T], most: int) -> Iterator[list[T]]:
    """As many at a time as MLflow takes in one request."""
    portion: list[T] = []
    size = 0
    for thing in things:
        bytes_of_it = len(json.dumps(vars(thing), default=str)) + 40
        if portion and (len(portion) == most or size + bytes_of_it > MOST_BYTES):
            yield portion
            portion, size = [], 0
        portion.append(thing)
        size += bytes_of_it
    if portion:
        yield portion
