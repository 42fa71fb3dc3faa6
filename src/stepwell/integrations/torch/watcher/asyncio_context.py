"""Training that continues in another asyncio task, as in the cells of a notebook.

Open spans belong to a task, but the training loop must enclose the spans of later tasks as well.
"""

from __future__ import annotations

from stepwell.journal import task_spans
from stepwell.journal.span_handle import UNRECORDED
from stepwell.journal.task_spans import TaskSpan
from stepwell.telemetry.span_handle import Span


def continue_inside(span: Span) -> None:
    """Make a span of another task the parent of new spans, if this task has no open span."""
    frame = span._frame
    if frame is not None and _is_open(frame) and _innermost() is None:
        task_spans.set_current(frame)


def set_aside(span: Span, aside: bool) -> None:
    """Stop (``aside=True``) or resume making an open span the parent of new spans."""
    frame = span._frame
    if frame is None:
        span._set_aside(aside)
    elif aside and task_spans.get_current() is frame:
        task_spans.set_current(frame.outer)
    elif not aside and _is_open(frame) and not _is_inside(frame):
        frame.outer = task_spans.get_current()
        task_spans.set_current(frame)


def _innermost() -> TaskSpan | None:
    frame = task_spans.get_current()
    while frame is not None and not _is_open(frame):
        frame = frame.outer
    return frame


def _is_inside(wanted: TaskSpan) -> bool:
    frame = task_spans.get_current()
    while frame is not None and frame is not wanted:
        frame = frame.outer
    return frame is not None


def _is_open(frame: TaskSpan) -> bool:
    return frame is not UNRECORDED and frame in frame.lane.frames
