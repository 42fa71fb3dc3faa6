"""Argument checks: the kinds of values that callers pass, and one form of error message.

    COUNT.check("size", 0.5)  # StepwellError: size must be a whole number of at least 0, got 0.5

Use an existing kind, or make one with `one_of`. `refuse` raises one error for several problems.
"""

from __future__ import annotations

import math
import operator
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

from stepwell._core.errors import StepwellError
from stepwell._core.values import number, shown

T = TypeVar("T")


@dataclass(frozen=True)
class Kind(Generic[T]):
    """A kind of value.

    Attributes:
        wanted: the description in messages: "a whole number of at least 1".
        is_plain: returns whether a value needs no conversion. Called first, because most values need none.
        convert: returns the value in its plain form; raises any exception for a wrong value.
    """

    wanted: str
    is_plain: Callable[[Any], bool]
    convert: Callable[[Any], T]

    def take(self, value: Any) -> T:
        """Return the value in its plain form. Raise ValueError("must be …, got …") if it is wrong."""
        if self.is_plain(value):
            plain: T = value
            return plain
        try:
            return self.convert(value)
        except Exception:  # any object may raise anything when it is converted
            raise ValueError(f"must be {self.wanted}, got {shown(value)}") from None

    def check(self, name: str, value: Any) -> T:
        """Return the value in its plain form. Raise StepwellError("name must be …, got …") if it is wrong."""
        try:
            return self.take(value)
        except ValueError as error:
            raise StepwellError(f"{name} {error}") from None

    def or_none(self, name: str, value: Any) -> T | None:
        """Like `check`, but None is allowed and returned."""
        return None if value is None else self.check(name, value)


def one_of(*values: str) -> Kind[str]:
    """Return the kind of a string that is one of these."""
    wanted = " or ".join(
        [", ".join(map(repr, values[:-1])), repr(values[-1])]
        if len(values) > 1
        else [repr(values[0])]
    )

    def refuse_it(value: Any) -> str:
        raise ValueError

    return Kind(wanted, lambda value: isinstance(value, str) and value in values, refuse_it)


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the most similar valid name, else all names."""
    from difflib import get_close_matches

    valid = sorted(names)
    matches = get_close_matches(name, valid, n=1, cutoff=0.6)
    return f"did you mean {matches[0]}?" if matches else f"valid names: {', '.join(valid)}"


def refuse(problems: list[str], what: str) -> None:
    """Raise a StepwellError that lists all problems, if there are any."""
    if len(problems) == 1:
        raise StepwellError(f"{what}: {problems[0]}")
    if problems:
        raise StepwellError(f"{what}: {len(problems)} problems\n- " + "\n- ".join(problems))


def _whole(value: Any, minimum: int) -> int:
    if isinstance(value, (bool, str)):
        raise TypeError
    # People write large counts as 6e9.
    integral = isinstance(value, float) and value.is_integer()
    whole = int(value) if integral else operator.index(value)
    if whole < minimum:
        raise ValueError
    return whole


def _target(value: Any) -> Any:
    target = _whole(value, -sys.maxsize)
    if target == 0:
        raise ValueError
    return target if target > 0 else None


def _finite(value: Any, minimum: float) -> float:
    converted = None if isinstance(value, bool) else number(value)
    if converted is None or not math.isfinite(converted) or converted < minimum:
        raise ValueError
    return converted


def _any_number(value: Any) -> float:
    converted = None if isinstance(value, bool) else number(value)
    if converted is None:
        raise ValueError
    return converted


def _text(value: Any) -> str:
    if isinstance(value, Enum):
        value = value.value
    if not isinstance(value, str) or not value.strip():
        raise ValueError
    return str(value)


def _message(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return str(value)


def _path(value: Any) -> str:
    return os.fsdecode(value) or _text("")


def _texts(value: Any) -> str | list[str]:
    if isinstance(value, (list, tuple)) and value:
        return [_text(item) for item in value]
    return _text(value)


def _flag(value: Any) -> bool:
    # numpy.bool_ is not a subclass of bool.
    if type(value).__name__ not in ("bool", "bool_"):
        raise TypeError
    return bool(value)


def _metadata(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError
    return {_text(key): item for key, item in value.items()}


def never(value: Any) -> bool:
    """Return False: every value of the kind is converted."""
    return False


COUNT = Kind[int](
    "a whole number of at least 0",
    lambda value: type(value) is int and value >= 0,
    lambda value: _whole(value, 0),
)
POSITIVE = Kind[int](
    "a whole number of at least 1",
    lambda value: type(value) is int and value >= 1,
    lambda value: _whole(value, 1),
)
TARGET = Kind[int](
    # A negative number means unknown and becomes None.
    "a whole number of at least 1",
    lambda value: type(value) is int and value >= 1,
    _target,
)
"""A total to reach. Frameworks without one pass -1, or -1 times some size; both become None."""
SECONDS = Kind[float](
    "a finite number of at least 0",
    lambda value: type(value) is float and 0.0 <= value < math.inf,
    lambda value: _finite(value, 0.0),
)
RATE = SECONDS
"""A rate or an average: the same range as seconds."""
NUMBER = Kind[float](
    "a number", lambda value: type(value) is float and math.isfinite(value), _any_number
)
"""Any number. NaN and infinity pass, but count as absent: JSON cannot represent them."""
TEXT = Kind[str](
    "a non-blank string", lambda value: type(value) is str and bool(value.strip()), _text
)
TEXTS = Kind["str | list[str]"]("a string or a list of strings", never, _texts)
FLAG = Kind[bool]("True or False", lambda value: value is True or value is False, _flag)
METADATA = Kind["dict[str, Any]"](
    "a dict with string keys, such as {'team': 'vision'}", never, _metadata
)
MESSAGE = Kind[str]("a string", lambda value: type(value) is str, _message)
"""Any string, also an empty one, such as the message of an exception."""
PATH = Kind[str]("a path", lambda value: type(value) is str and value != "", _path)
