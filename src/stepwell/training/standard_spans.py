"""The standard spans that are open, and how a start finds its place and an end its start."""

from __future__ import annotations

import math
from typing import Any

from stepwell.journal import clock
from stepwell.journal.errors import misuse
from stepwell.journal.state import state
from stepwell.journal.values import number, shown
from stepwell.telemetry.attributes import Attributes
from stepwell.telemetry.live import Span, find_open, is_unrecorded, open_span, word_of
from stepwell.vocabulary import StandardTrainingJobSpanName as Name

WORDS: dict[Name, int] = {name: word_of(name) for name in Name}
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
"""What an iteration consists of, and what ends with it."""
SETUP = (
    Name.DIST_INIT,
    Name.DATA_LOADER_INIT,
    Name.MODEL_INIT,
    Name.OPTIMIZER_INIT,
    Name.CHECKPOINT_LOAD,
)
"""What comes before a loop, and never has one inside."""
TOLERANCE = 1_000_000
"""So far in the future a given time may lie, in nanoseconds: callers round to milliseconds."""


def start_span(
    name: Name,
    msec: float | None = None,
    attributes: Attributes | None = None,
    under: Span | None = None,
) -> Span:
    """Open a span; ``under`` is its parent where nothing is open in this thread."""
    start = moment(msec, f"start of {name}", clock.BEFORE_BOOT) if msec else 0
    return open_span(WORDS[name], attributes, start, None, under)


def find_span(name: Name) -> Span | None:
    """The open span of this kind that an end belongs to: this thread's, else the latest one."""
    mine = find_open(WORDS[name])
    if mine is not None or is_unrecorded(WORDS[name]):
        return mine
    others = [span for span in open_spans() if span._word == WORDS[name]]
    if not others:
        return None
    misuse(
        f"other thread {name}",
        f"{name} is ended in another thread or task than it was started in: the latest one "
        "that is open is ended",
    )
    return others[0]


def note_thread(span: Span) -> None:
    """Note it when a span is about to be ended in another thread than it was started in."""
    if not span.is_of_this_thread:
        misuse(
            f"other thread {span.name}",
            f"{span.name} is ended in another thread than it was started in: call both in one",
        )


def open_spans() -> list[Span]:
    """All spans of this process that are open and can be ended by their object, the latest first."""
    journal = state.journal
    spans: list[Span] = [] if journal is None else list(journal.objects.values())
    return sorted(spans, key=lambda span: (span.start, span.id), reverse=True)


def end_parts(iteration: Span, end: int) -> None:
    """End the parts of an iteration that were begun in this thread and that nobody ended.

    Else the next iteration would be inside of them, and so on for ever.
    """
    journal = state.journal
    for span in [] if journal is None else list(journal.objects.values()):
        if span._parent is iteration and span._word in PARTS and span.is_of_this_thread:
            stop_span(span, max(end, span.start))
            misuse(
                f"open {span.name}",
                f"{span.name} is still open when the {iteration.name} that it is in ends, and ends with "
                "it: call its on_…_end() before",
            )


def end_setup(loop: Name) -> None:
    """End what this thread was setting up and never ended, before a loop begins.

    Otherwise the loop would be inside it.
    """
    for name in SETUP:
        span = find_open(WORDS[name])
        if span is not None:
            misuse(
                f"open {name}",
                f"{name} is still open when {loop} begins, and ends there: call its on_…_end() before",
            )
            stop_span(span, clock.now())


def moment(msec: Any, what: str, earliest: int = 1) -> int:
    """An instant of the journal's clock, from milliseconds since the epoch; None and 0 mean now.

    None is earlier than ``earliest``: by default the start of the machine, when that clock began.
    """
    now = clock.now()
    if not msec:
        return now
    given, msec = msec, None if isinstance(msec, bool) else number(msec)
    if msec is None or not math.isfinite(msec):
        misuse(
            f"time of {what}",
            f"the {what} is given as {shown(given)}: write milliseconds since the epoch, such as "
            "time.time() * 1000; now is taken instead",
        )
        return now
    then = clock.from_wall(round(msec * 1e6))
    if msec * 1e6 < clock.EARLIEST_WALL:
        misuse(
            f"ancient {what}",
            f"the {what} is given as {msec!r}, which is {(now - then) / 86400e9:.0f} days ago: write "
            "milliseconds since the epoch, such as time.time() * 1000; now is taken instead",
        )
        return now
    if then > now + TOLERANCE:
        misuse(
            f"future {what}",
            f"the {what} is given as {msec!r} ms since the epoch, which is "
            f"{(then - now) / 1e9:.3f} s from now: now is taken instead",
        )
    return max(earliest, min(then or -1, now))


def stop_span(span: Span, end: int, error: BaseException | None = None) -> None:
    """Close a span at this instant, which must not lie before its start."""
    if end < span.start:
        misuse("early end", f"{span.name} is ended before it was started: it takes 0 s")
    span._stop(end, error)
