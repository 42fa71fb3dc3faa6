"""The one boundary between the recorder and its host: telemetry never breaks training.

Whatever goes wrong inside, and whatever is called in a way that makes no sense, is counted, said once on
the ``stepwell`` logger and left as an event in the run. With ``STEPWELL_STRICT=1`` it is raised
instead, for tests.
"""

from __future__ import annotations

import functools
import os
import threading
from collections import Counter
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from stepwell.journal.values import text_of

P = ParamSpec("P")
T = TypeVar("T")

PROBLEMS = "problems"
counts: Counter[str] = Counter()
"""How often each internal problem came up in this process."""
TELEMETRY_ERROR = "telemetry_data_error"
"""Name of the event that tells of a problem with the telemetry itself."""
MAX_RECORDED = 20
"""So many events are left of one kind of misuse; then they are only counted."""
_quiet = False
_strict = False
_recording = threading.local()


def set_quiet(quiet: bool) -> None:
    """Whether warnings are for whoever asks only: a thousand ranks need not all say the same."""
    global _quiet
    _quiet = quiet


class StepwellError(ValueError, RuntimeError):
    """A wrong call: the message says what was wrong and what to write instead.

    It is both a ValueError and a RuntimeError: programs that catch either one work as before.
    """


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
    if is_strict():
        raise error
    key = f"{where}: {type(error).__name__}"
    counts[key] += 1
    counts[PROBLEMS] += 1
    if counts[key] == 1:
        told = text_of(error)
        _record("internal", f"{key}: {told}")
        say(
            "a problem inside stepwell (%s: %s); training is not affected, some records may be "
            "missing. Further ones of this kind are only counted.",
            key,
            told,
        )


def misuse(key: str, message: str) -> None:
    """A call that makes no sense where it stands: say so, leave a record, and go on."""
    if is_strict():
        raise StepwellError(message)
    counts[key] += 1
    counts[PROBLEMS] += 1
    if counts[key] <= MAX_RECORDED:
        _record("misuse", message)
    if counts[key] == 1:
        say("%s. Training is not affected.", message)


def _record(kind: str, message: str) -> None:
    from stepwell.journal.state import state

    journal = state.journal
    if journal is None or getattr(_recording, "now", False):
        return
    _recording.now = True
    try:
        about = {"error_type": kind, "error_message": message[:2000]}
        journal.write_event("event", TELEMETRY_ERROR, about)
    except Exception:
        # Whatever keeps it from being written is what it would have said.
        counts[PROBLEMS] += 1
    finally:
        _recording.now = False


def is_strict() -> bool:
    """Whether problems are raised."""
    return _strict or os.environ.get("STEPWELL_STRICT") == "1"


def set_strict(strict: bool) -> None:
    """Raise problems from now on, as with ``STEPWELL_STRICT=1``."""
    global _strict
    _strict = strict


def warn_once(key: str, message: str, *args: object) -> None:
    """Say this the first time that ``key`` comes up."""
    counts[key] += 1
    if counts[key] == 1:
        say(message, *args)


def say(message: str, *args: object) -> None:
    """Tell the person who trains, on the ``stepwell`` logger."""
    import logging

    logging.getLogger("stepwell").log(logging.INFO if _quiet else logging.WARNING, message, *args)
