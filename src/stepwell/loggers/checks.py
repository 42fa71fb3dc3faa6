"""Kinds of arguments that only loggers take; the others are in `stepwell._core.checks`."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stepwell._core.checks import Kind, never
from stepwell.loggers.targets import LogFreq

ALL_WORKERS = -1


def check_options(options: Iterable[tuple[str, Any]]) -> None:
    """Raise StepwellError for a name or an id that cannot be one. None is allowed."""
    for name, value in options:
        (ID if name.endswith("_id") else NAME).or_none(name, value)


def _name(value: Any) -> str:
    if not isinstance(value, os.PathLike):
        raise TypeError
    return str(value)


def _id(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError
    return str(value)


def _folder(value: Any) -> Path:
    if "\0" in os.fspath(value):
        raise ValueError
    return Path(value)


def _seconds(value: Any) -> float:
    seconds = math.nan if isinstance(value, str) else float(value)
    if math.isnan(seconds):
        raise ValueError
    return seconds


def _whole(value: Any, minimum: int) -> int:
    # True is an int for Python, and not a number of batches or a rank.
    number = minimum - 1 if isinstance(value, bool) else operator.index(value)
    if number < minimum:
        raise ValueError
    return number


def _workers(value: Any) -> frozenset[int] | None:
    is_list = isinstance(value, Iterable) and not isinstance(value, str | bytes)
    ranks = [_whole(rank, ALL_WORKERS) for rank in (value if is_list else [value])]
    if not ranks:
        raise ValueError
    return None if ALL_WORKERS in ranks else frozenset(ranks)


def _tags(value: Any) -> list[str]:
    if isinstance(value, str | bytes) or not all(isinstance(tag, str) for tag in value):
        raise TypeError
    return list(value)


NAME = Kind[str]("a string or None", lambda value: isinstance(value, str), _name)
ID = Kind[str](
    "the backend's own id as a string, or None",
    lambda value: isinstance(value, str) and value != "",
    _id,
)
FOLDER = Kind[Path]("a folder, such as 'mllogs'", never, _folder)
TAGS = Kind[list[str]]("a list of strings, such as ['baseline']", never, _tags)
TIMEOUT = Kind[float]("a number of seconds", never, _seconds)
LOG_FREQ = Kind[LogFreq](
    "'epoch', 'batch' or a positive integer (a number of batches)",
    lambda value: isinstance(value, str) and value in ("epoch", "batch"),
    lambda value: _whole(value, 1),
)
WORKERS = Kind["frozenset[int] | None"](
    "a rank (0 or more), a list of ranks, or -1 for all workers", never, _workers
)
"""The ranks that log; None: all of them."""
RANK = Kind[int](
    "the global rank of this worker (0 or more), or None to read it from the environment",
    never,
    lambda value: _whole(value, 0),
)
