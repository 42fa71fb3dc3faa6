"""Names for backends that do not take every character: mapped so that the original can be told."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable

ESCAPE = re.compile(r"_x([0-9A-F]{1,6})_")
ALIKE = re.compile(r"_(?=x[0-9A-F]{1,6}(.))", re.DOTALL)
HASH_LENGTH = 12
NOTHING = "_x110000_"
"""Stands for an empty name; there is no such character."""


def escape(name: str, allowed: Callable[[str], bool]) -> str:
    """The name with each character that is not allowed written as ``_x7B_``; ``unescape`` undoes it.

    ``allowed`` must allow letters, digits and ``_``.
    """
    # An underscore that would read as the beginning of an escape is written as one itself.
    plain = ALIKE.sub(lambda f: "_" if f[1] != "_" and allowed(f[1]) else "_x5F_", name)
    return "".join(c if allowed(c) else f"_x{ord(c):X}_" for c in plain)


def unescape(name: str) -> str:
    """The name that ``escape`` was given."""
    return ESCAPE.sub(lambda found: _character(int(found[1], 16)), name)


def _character(code: int) -> str:
    return chr(code) if code <= sys.maxunicode else ""


def shortened(name: str, longest: int) -> str:
    """The name, its end replaced by a hash of the whole where it is too long."""
    if len(name) <= longest:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:HASH_LENGTH]
    return f"{name[: longest - HASH_LENGTH - 1]}-{digest}"


def in_words(name: str, shown_as: str, backend: str) -> str:
    """What to say about a name that had to be mapped."""
    return (
        f"{backend} does not take the name {name[:200]!r}: it is {shown_as!r} there, and likewise for "
        "other such names"
    )
