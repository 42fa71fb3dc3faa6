"""The boundary between stepwell and the program that uses it: telemetry never breaks training.

Internal errors and calls in the wrong place are counted, logged once as a warning of the ``stepwell`` logger
and recorded as an event. With ``STEPWELL_STRICT=1`` they are raised instead, for tests.
"""

from __future__ import annotations

import functools
import os
import threading
from collections import Counter
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from stepwell._core.values import text_of

P = ParamSpec("P")
T = TypeVar("T")

PROBLEMS = "problems"
counts: Counter[str] = Counter()
"""Number of occurrences of each problem in this process."""
TELEMETRY_ERROR = "telemetry_data_error"
"""Name of the event that records a problem with the telemetry itself."""
MAX_RECORDED = 20
"""Events recorded for one kind of misuse; further ones are only counted."""
_quiet = False
_strict = False
_recorder: Callable[[str, dict[str, str]], None] | None = None
_recording = threading.local()


def set_recorder(record: Callable[[str, dict[str, str]], None]) -> None:
    """Call ``record`` with the name and attributes of an event for every problem from now on."""
    global _recorder
    _recorder = record


def set_quiet(quiet: bool) -> None:
    """Log warnings at level INFO, for all processes of a job but one: a thousand need not repeat them."""
    global _quiet
    _quiet = quiet


class StepwellError(ValueError, RuntimeError):
    """A wrong call. The message says what is wrong and what to do.

    It is both a ValueError and a RuntimeError, for programs that catch either of them.
    """


def never_raises(function: Callable[P, T]) -> Callable[P, T | None]:
    """Decorate a function: report an exception once and return None instead.

    ``StepwellError`` is raised: it tells the caller what to change.
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
    """Count an internal error; log and record the first one of its kind."""
    if is_strict():
        raise error
    key = f"{where}: {type(error).__name__}"
    counts[key] += 1
    counts[PROBLEMS] += 1
    if counts[key] == 1:
        message = text_of(error)
        _record("internal", f"{key}: {message}")
        log_warning(
            "There was a problem inside stepwell (%s: %s). Training is not affected; some records may "
            "be missing. Further problems of this kind are only counted.",
            key,
            message,
        )


def report_misuse(key: str, message: str) -> None:
    """Report a call that makes no sense at this point: log the first one, record it, and continue."""
    if is_strict():
        raise StepwellError(message)
    counts[key] += 1
    counts[PROBLEMS] += 1
    if counts[key] <= MAX_RECORDED:
        _record("misuse", message)
    if counts[key] == 1:
        log_warning("%s. Training is not affected.", message)


def _record(kind: str, message: str) -> None:
    # An error while the event is written must not write another one.
    if _recorder is None or getattr(_recording, "now", False):
        return
    _recording.now = True
    try:
        _recorder(TELEMETRY_ERROR, {"error_type": kind, "error_message": message[:2000]})
    except Exception:
        # Most likely the reported problem itself prevents the write.
        counts[PROBLEMS] += 1
    finally:
        _recording.now = False


def is_strict() -> bool:
    """Return whether problems are raised."""
    return _strict or os.environ.get("STEPWELL_STRICT") == "1"


def set_strict(strict: bool) -> None:
    """Raise problems from now on, as with ``STEPWELL_STRICT=1``."""
    global _strict
    _strict = strict


def warn_once(key: str, message: str, *args: object) -> None:
    """Log a warning the first time that it is called with this ``key``."""
    counts[key] += 1
    if counts[key] == 1:
        log_warning(message, *args)


def log_warning(message: str, *args: object) -> None:
    """Log a warning on the ``stepwell`` logger."""
    import logging

    logging.getLogger("stepwell").log(logging.INFO if _quiet else logging.WARNING, message, *args)
