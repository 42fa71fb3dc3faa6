"""Training that goes on in another task than it began in, as in the cells of a notebook.

What a task has open is known to that task alone; the training loop is around what others do as well.
"""

from __future__ import annotations

from stepwell.journal import frames
from stepwell.journal.frames import Frame
from stepwell.journal.open_span import UNRECORDED
from stepwell.telemetry.live import Span


def go_on_inside(span: Span) -> None:
    """Be inside of this span, which is open in another task, where this task is inside of nothing."""
    frame = span._frame
    if frame is not None and _is_open(frame) and _innermost() is None:
        frames._set(frame)


def set_aside(span: Span, aside: bool) -> None:
    """Leave a span open without taking in what is opened next; or take that in again."""
    frame = span._frame
    if frame is None:
        span._set_aside(aside)
    elif aside and frames._get() is frame:
        frames._set(frame.outer)
    elif not aside and _is_open(frame) and not _is_inside(frame):
        frame.outer = frames._get()
        frames._set(frame)


def _innermost() -> Frame | None:
    frame = frames._get()
    while frame is not None and not _is_open(frame):
        frame = frame.outer
    return frame


def _is_inside(wanted: Frame) -> bool:
    frame = frames._get()
    while frame is not None and frame is not wanted:
        frame = frame.outer
    return frame is not None


def _is_open(frame: Frame) -> bool:
    return frame is not UNRECORDED and frame in frame.lane.frames
