"""The kinds of values that configurations and attributes hold, and how a wrong one is refused."""

from __future__ import annotations

import math
import operator
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

from stepwell.journal.errors import StepwellError
from stepwell.journal.values import number, shown

T = TypeVar("T")


@dataclass(frozen=True)
class Kind(Generic[T]):
    """What a value may be. ``take`` gives it in its plain form, and raises ValueError when it is wrong."""

    wanted: str
    """What to write instead of a wrong one: 'a whole number of at least 1'."""
    is_plain: Callable[[Any], bool]
    """Whether a value can be kept as it is; asked first, since nearly all can."""
    convert: Callable[[Any], T]
    """The value in its plain form; raises on one that is wrong."""

    def take(self, value: Any) -> T:
        """The value in its plain form. ValueError says what it is and what to write instead."""
        if self.is_plain(value):
            plain: T = value
            return plain
        try:
            return self.convert(value)
        except Exception:  # a stranger's object may raise anything when it is looked at
            raise ValueError(f"is {shown(value)}: write {self.wanted}") from None


class CheckPointStrategy(str, Enum):
    """Whether training waits for a checkpoint to be written."""

    SYNC = "sync"
    ASYNC = "async"

    def __str__(self) -> str:
        return str(self.value)

    def __format__(self, spec: str) -> str:
        return format(str(self.value), spec)


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of a message about a name that is not known: the nearest one that is, else all."""
    from difflib import get_close_matches

    known = sorted(names)
    found = get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {found[0]}?" if found else f"there are: {', '.join(known)}"


def refuse(problems: list[str], what: str) -> None:
    """Raise one StepwellError that names all problems, if there are any."""
    if len(problems) == 1:
        raise StepwellError(f"{what}: {problems[0]}")
    if problems:
        raise StepwellError(f"{what}: {len(problems)} problems\n- " + "\n- ".join(problems))


def _whole(value: Any, minimum: int) -> int:
    if isinstance(value, (bool, str)):
        raise TypeError
    # 6e9 is how a person writes a large count.
    integral = isinstance(value, float) and value.is_integer()
    found = int(value) if integral else operator.index(value)
    if found < minimum:
        raise ValueError
    return found


def _target(value: Any) -> Any:
    target = _whole(value, -sys.maxsize)
    if target == 0:
        raise ValueError
    return target if target > 0 else None


def _finite(value: Any, minimum: float) -> float:
    found = None if isinstance(value, bool) else number(value)
    if found is None or not math.isfinite(found) or found < minimum:
        raise ValueError
    return found


def _any_number(value: Any) -> float:
    found = None if isinstance(value, bool) else number(value)
    if found is None:
        raise ValueError
    return found


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
    # numpy's bool is no bool.
    if type(value).__name__ not in ("bool", "bool_"):
        raise TypeError
    return bool(value)


def _metadata(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError
    return {_text(key): item for key, item in value.items()}


def _strategy(value: Any) -> CheckPointStrategy:
    return CheckPointStrategy(_text(value).lower())


def _never(value: Any) -> bool:
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
    # What is not known is None, which counts as absent.
    "a whole number of at least 1",
    lambda value: type(value) is int and value >= 1,
    _target,
)
"""What training is meant to reach. Trainers that have no such number say -1, and -1 times the batch size."""
SECONDS = Kind[float](
    "a finite number of at least 0",
    lambda value: type(value) is float and 0.0 <= value < math.inf,
    lambda value: _finite(value, 0.0),
)
RATE = SECONDS
"""A rate or an average: held to the same range as seconds."""
NUMBER = Kind[float](
    "a number", lambda value: type(value) is float and math.isfinite(value), _any_number
)
"""Any number. One that is not finite counts as absent: JSON has no word for it."""
TEXT = Kind[str](
    "a text that is not blank", lambda value: type(value) is str and bool(value.strip()), _text
)
TEXTS = Kind["str | list[str]"]("a text or a list of texts", _never, _texts)
FLAG = Kind[bool]("True or False", lambda value: value is True or value is False, _flag)
METADATA = Kind["dict[str, Any]"](
    "a dict whose keys are texts, such as {'team': 'vision'}", _never, _metadata
)
MESSAGE = Kind[str]("a text", lambda value: type(value) is str, _message)
"""Any text, an empty one too: an exception may have nothing to say."""
PATH = Kind[str]("a path", lambda value: type(value) is str and value != "", _path)
STRATEGY = Kind[CheckPointStrategy](
    "CheckPointStrategy.SYNC or CheckPointStrategy.ASYNC",
    lambda value: type(value) is CheckPointStrategy,
    _strategy,
)
STRATEGY_NAME = Kind[str](
    "'sync' or 'async'",
    lambda value: type(value) is str and value in ("sync", "async"),
    lambda value: str(_strategy(value)),
)
