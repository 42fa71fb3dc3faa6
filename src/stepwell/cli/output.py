"""What commands print for scripts, and what they say when something is wrong."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import sys
import textwrap
from typing import Any


def print_json(value: Any) -> None:
    """Strict JSON on standard output, indented."""
    print(json.dumps(to_plain(value), indent=1, ensure_ascii=False, allow_nan=False))


def print_line(value: Any) -> None:
    """The same in a line of its own, at once, for who reads on."""
    print(json.dumps(to_plain(value), ensure_ascii=False, allow_nan=False), flush=True)


def to_plain(value: Any) -> Any:
    """What strict JSON has words for: non-finite numbers are null, paths text, dataclasses objects."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, dict):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_plain(item) for item in value]
    if hasattr(value, "item"):  # NumPy's numbers
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def complain(message: object) -> None:
    """Say what is wrong, on standard error: in a line, but on a terminal broken between words."""
    text = f"stepwell: {message}"
    if sys.stderr.isatty():
        width = max(20, shutil.get_terminal_size().columns)
        text = "\n".join(_wrapped(line, width) for line in text.split("\n"))
    print(text, file=sys.stderr)


def _wrapped(line: str, width: int) -> str:
    return textwrap.fill(line, width, subsequent_indent="  ", break_on_hyphens=False)
