"""Standard spans: starting them, finding the open one that an end belongs to, and times given by the user."""

from __future__ import annotations

import math
from typing import Any

from stepwell._core import clock
from stepwell._core.errors import report_misuse
from stepwell._core.values import number, shown
from stepwell.journal.state import state
from stepwell.telemetry.events import Attributes
from stepwell.telemetry.span_handle import Span, find_open, intern_name, is_unrecorded, open_span
from stepwell.vocabulary import StandardTrainingJobSpanName as Name

WORDS: dict[Name, int] = {name: intern_name(name) for name in Name}
PARTS = frozenset(
    WORDS[name]
    for name in (
        Name.DATA_LOADING,
        Name.MODEL_FORWARD,
        Name.ZERO_GRAD,
        Name.MODEL_BACKWARD,
        Name.OPTIMIZER_UPDATE,
    )
)
"""Spans that are parts of an iteration, and end with it."""
SETUP = (
    Name.DIST_INIT,
    Name.DATA_LOADER_INIT,
    Name.MODEL_INIT,
    Name.OPTIMIZER_INIT,
    Name.CHECKPOINT_LOAD,
)
"""Spans that come before a loop and never contain one."""
TOLERANCE = 1_000_000
"""Nanoseconds that a given time may lie in the future, because callers round to milliseconds."""


def start_span(
    name: Name,
    msec: float | None = None,
    attributes: Attributes | None = None,
    under: Span | None = None,
) -> Span:
    """Open a span. ``under`` is its parent if no span is open in this thread."""
    start = moment(msec, f"start of {name}", clock.BEFORE_BOOT) if msec else 0
    return open_span(WORDS[name], attributes, start, None, under)


def find_span(name: Name) -> Span | None:
    """Return the open span that an end belongs to: that of this thread, else the latest one."""
    mine = find_open(WORDS[name])
    if mine is not None or is_unrecorded(WORDS[name]):
        return mine
    others = [span for span in open_spans() if span.name_word == WORDS[name]]
    if not others:
        return None
    report_misuse(
        f"other thread {name}",
        f"{name} ended in another thread or task than it started in, so the latest open one is ended.",
    )
    return others[0]


def note_thread(span: Span) -> None:
    """Report a misuse if a span is about to end in another thread than it started in."""
    if not span.is_of_this_thread:
        report_misuse(
            f"other thread {span.name}",
            f"{span.name} ended in another thread than it started in. Use one thread for both.",
        )


def open_spans() -> list[Span]:
    """Return all open spans of this process that have a handle object, the latest first."""
    journal = state.journal
    spans: list[Span] = [] if journal is None else list(journal.objects.values())
    return sorted(spans, key=lambda span: (span.start, span.id), reverse=True)


def end_parts(iteration: Span, end: int) -> None:
    """End the parts of an iteration that are still open in this thread.

    Otherwise the next iteration would be nested in them, and so on.
    """
    journal = state.journal
    for span in [] if journal is None else list(journal.objects.values()):
        if span._parent is iteration and span.name_word in PARTS and span.is_of_this_thread:
            stop_span(span, max(end, span.start))
            report_misuse(
                f"open {span.name}",
                f"{span.name} is still open at the end of {iteration.name} and is ended with it. Call its "
                "on_…_end() before.",
            )


def end_setup(loop: Name) -> None:
    """End the setup spans that are still open in this thread, before a loop begins.

    Otherwise the loop would be nested in them.
    """
    for name in SETUP:
        span = find_open(WORDS[name])
        if span is not None:
            report_misuse(
                f"open {name}",
                f"{name} is still open at the start of {loop} and is ended there. "
                "Call its on_…_end() before.",
            )
            stop_span(span, clock.now())


def moment(msec: Any, what: str, earliest: int = 1) -> int:
    """Return the journal time of a time in milliseconds since the epoch; None and 0 mean now.

    The result is not before ``earliest``; by default the boot of the machine, when the clock began.
    """
    now = clock.now()
    if not msec:
        return now
    given, msec = msec, None if isinstance(msec, bool) else number(msec)
    if msec is None or not math.isfinite(msec):
        report_misuse(
            f"time of {what}",
            f"The {what} must be in milliseconds since the epoch, such as time.time() * 1000, got "
            f"{shown(given)}. The current time is used instead.",
        )
        return now
    then = clock.from_wall(round(msec * 1e6))
    if msec * 1e6 < clock.EARLIEST_WALL:
        report_misuse(
            f"ancient {what}",
            f"The {what} must be in milliseconds since the epoch, such as time.time() * 1000, got {msec!r}, "
            f"which is {(now - then) / 86400e9:.0f} days ago. The current time is used instead.",
        )
        return now
    if then > now + TOLERANCE:
        report_misuse(
            f"future {what}",
            f"The {what} is {msec!r} ms since the epoch, which is {(then - now) / 1e9:.3f} s in the future. "
            "The current time is used instead.",
        )
    return max(earliest, min(then or -1, now))


def stop_span(span: Span, end: int, error: BaseException | None = None) -> None:
    """End a span at this time, which must not be before its start."""
    if end < span.start:
        report_misuse(
            "early end", f"{span.name} ends before its start: its duration is set to 0 s."
        )
    span._stop(end, error)
