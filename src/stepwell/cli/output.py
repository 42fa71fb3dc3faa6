"""JSON output for scripts, and error messages."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import sys
import textwrap
from typing import Any


def print_json(value: Any) -> None:
    """Print a value as indented strict JSON."""
    print(json.dumps(to_plain(value), indent=1, ensure_ascii=False, allow_nan=False))


def print_line(value: Any) -> None:
    """Print a value as strict JSON in one line, and flush it for readers of a stream."""
    print(json.dumps(to_plain(value), ensure_ascii=False, allow_nan=False), flush=True)


def print_now(line: str) -> None:
    """Print a line and flush it, for readers of a pipe."""
    print(line, flush=True)


def to_plain(value: Any) -> Any:
    """Return a value as strict JSON types: non-finite numbers become None, paths text, dataclasses dicts.

    Unlike ``_core.values.plain`` it never cuts: scripts get everything.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, dict):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_plain(item) for item in value]
    if hasattr(value, "item"):  # a NumPy number
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def complain(message: object) -> None:
    """Print an error message to standard error: in one line, or wrapped in a terminal."""
    text = f"stepwell: {message}"
    if sys.stderr.isatty():
        width = max(20, shutil.get_terminal_size().columns)
        text = "\n".join(_wrapped(line, width) for line in text.split("\n"))
    print(text, file=sys.stderr)


def _wrapped(line: str, width: int) -> str:
    return textwrap.fill(line, width, subsequent_indent="  ", break_on_hyphens=False)
