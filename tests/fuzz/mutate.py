"""Damage to the bytes of a file, from a random number generator."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

INTEGERS = [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
"""Those next to which sizes, positions and times overflow."""

VALUES = [
    *(b"null", b"true", b"-1", b"0", b"1e400", b"NaN", b"0.5", b"[]", b"{}", b'""', b'"\\ud800"'),
    *(
        b"9" * 400,
        b"[" * 2000,
        b'{"a":' * 2000,
        b'"../../../outside"',
        b'"/etc/passwd"',
        b'"\\u0000"',
    ),
]
"""What may stand in JSON instead of something else."""

_VALUE = re.compile(rb'"(?:[^"\\\n]|\\.){0,200}"|-?\d[\d.eE+-]*|true|false|null')


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Damage a file in one to eight places."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        data = rng.choice(_DAMAGE)(data, rng)
    return data


def _place(data: bytes, rng: random.Random) -> int:
    """A position, four times of five where there is something: live segments are mostly zeros."""
    at = rng.randrange(len(data) + 1)
    if rng.random() < 0.2 or not data.strip(b"\0"):
        return at
    while at >= len(data) or not data[at]:
        # A run of zeros is skipped at once: to its next byte, or back to the beginning.
        rest = data[at:]
        at += len(rest) - len(rest.lstrip(b"\0"))
        if at >= len(data):
            at = rng.randrange(min(len(data), 4096))
            if not data[at] and not data[:4096].strip(b"\0"):
                return at
    return at


def _flip(data: bytes, rng: random.Random) -> bytes:
    at = _place(data, rng)
    return (
        data[:at] + bytes([b ^ 1 << rng.randrange(8) for b in data[at : at + 1]]) + data[at + 1 :]
    )


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: _place(data, rng)]


def _remove(data: bytes, rng: random.Random) -> bytes:
    at = _place(data, rng)
    return data[:at] + data[at + rng.choice((1, 7, 8, 100, 4096)) :]


def _repeat(data: bytes, rng: random.Random) -> bytes:
    at = _place(data, rng)
    return data[:at] + data[at : at + rng.choice((1, 8, 300, 5000))] * 2 + data[at:]


def _insert(data: bytes, rng: random.Random) -> bytes:
    at = _place(data, rng)
    return data[:at] + rng.randbytes(rng.choice((1, 3, 8, 2000))) + data[at:]


def _number(data: bytes, rng: random.Random) -> bytes:
    size = rng.choice((4, 8))
    at = _place(data, rng) // size * size
    number = rng.choice(INTEGERS) % 2 ** (8 * size)
    return data[:at] + number.to_bytes(size, "little") + data[at + size :]


def _erase(data: bytes, rng: random.Random) -> bytes:
    at, count = _place(data, rng), rng.choice((8, 64, 4096))
    return data[:at] + bytes(len(data[at : at + count])) + data[at + count :]


def _value(data: bytes, rng: random.Random) -> bytes:
    """Put another value into JSON."""
    spans = [match.span() for match in _VALUE.finditer(data, 0, 100_000)]
    if not spans:
        return _number(data, rng)
    begin, end = rng.choice(spans)
    return data[:begin] + rng.choice(VALUES) + data[end:]


_DAMAGE: list[Callable[[bytes, random.Random], bytes]] = [
    *(_flip, _cut, _remove, _repeat, _insert, _number, _erase, _value, _value)
]
