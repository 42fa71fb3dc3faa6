"""The one boundary between the recorder and its host: telemetry never breaks training.

Whatever goes wrong inside is counted and said once on the ``stepwell`` logger. With
``STEPWELL_STRICT=1`` it is raised instead, for tests.
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

PROBLEMS = "problems"
counts: Counter[str] = Counter()
"""How often each internal problem came up in this process."""
_quiet = False


def set_quiet(quiet: bool) -> None:
    """Whether warnings are for whoever asks only: a thousand ranks need not all say the same."""
    global _quiet
    _quiet = quiet


class StepwellError(Exception):
    """A wrong call: the message says what was wrong and what to write instead."""


def quietly(function: Callable[P, T]) -> Callable[P, T | None]:
    """Decorator: an exception inside is reported once and becomes None.

    ``StepwellError`` passes: it tells the caller what to change.
    """

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return function(*args, **kwargs)
        except StepwellError:
            raise
        except Exception as error:
            report(function.__qualname__, error)
            return None

    return guarded


def report(where: str, error: Exception) -> None:
    """Count an internal problem, and say it the first time."""
    if os.environ.get("STEPWELL_STRICT") == "1":
        raise error
    key = f"{where}: {type(error).__name__}"
    counts[key] += 1
    counts[PROBLEMS] += 1
    if counts[key] == 1:
        say(
            "a problem inside stepwell (%s: %s); training is not affected, some records may be "
            "missing. Further ones of this kind are only counted.",
            key,
            error,
        )


def warn_once(key: str, message: str, *args: object) -> None:
    """Say this the first time that ``key`` comes up."""
    counts[key] += 1
    if counts[key] == 1:
        say(message, *args)


def say(message: str, *args: object) -> None:
    """Tell the person who trains, on the ``stepwell`` logger."""
    import logging

    logging.getLogger("stepwell").log(logging.INFO if _quiet else logging.WARNING, message, *args)
