"""Metrics: rows of (clock, step, value, name), each written once.

Also the context: ``set_context`` writes a row with the step and epoch from now on. Spans and events contain
neither; readers look them up by time, also for workers of this process.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from time import perf_counter_ns as _now
from typing import Any

from stepwell._core import clock
from stepwell._core.errors import never_raises, report, warn_once
from stepwell._core.values import number, text_of
from stepwell.journal.format import (
    CONTEXT_NAME,
    HEADER_BYTES,
    IMPLICIT_STEP,
    MAX_EPOCH,
    MAX_STEP,
    METRIC,
    METRIC_ROWS,
    OWNER_SHIFT,
    ROW,
    ROW_BYTES,
    ROW_HEAD,
    STEP_BIAS,
    context_word,
)
from stepwell.journal.lane import Lane
from stepwell.journal.names import OVERFLOW, names
from stepwell.journal.state import current_lane, local, state

_pack = ROW.pack_into
_head = ROW_HEAD.pack

_words: dict[Any, int] = {}
_counts: defaultdict[int, itertools.count[int]] = defaultdict(itertools.count)
"""The number of values of each metric, by name id, that were logged before any step was set."""
audience_words: dict[str, list[int]] = {}
"""Further name ids of a metric, one for each audience."""
MAX_COUNT = STEP_BIAS - 1
MAX_AT_ONCE = METRIC_ROWS // 2
MAX_NESTED = 32


class StepContext:
    """The present step and epoch of the process."""

    __slots__ = ("epoch", "step", "step_word")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget the step and the epoch."""
        self.step: int | None = None
        self.epoch: int | None = None
        self.step_word = 0
        _counts.clear()


context = StepContext()
clock.follow(globals())


def log(values: Mapping[str, Any], step: int | None = None) -> None:
    """Record numbers, such as ``{"loss": 0.3}``, at this step or at the current one.

    Nested dicts become names with slashes. A scalar on an accelerator is fetched later, in the
    background. ``stepwell.Image``, ``Histogram``, ``Table`` and ``Text``, figures, PIL images and
    DataFrames are converted immediately and stored as items; strings and lists are stored as values.
    """
    if not state.enabled:
        return
    try:
        lane: Lane = local.lane
        size = ROW_BYTES * len(values)
        # No call until the rows are reserved: a signal handler may log in between.
        row = lane.row_next
        if row + size > lane.row_limit:
            _log_slowly(values, step)
            return
        lane.row_next = row + size
        rows = lane.rows
        if step is None:
            step_word = context.step_word
        elif type(step) is int and -MAX_COUNT < step < MAX_COUNT:
            step_word = step + STEP_BIAS
        else:
            step_word = explicit_step_word(step)
        time = _now()
        head = _head(time, step_word) if step_word else b""
        nested = None
        for name, value in values.items():
            if type(value) is not float:
                value = _number(lane, name, value, step_word, time)
                if value is None:
                    nested = values
                    continue
            try:
                word = _words[name]
            except KeyError:
                word = _intern(name)
            if not step_word:
                head = _head(time, IMPLICIT_STEP | next(_counts[word]))
            _pack(rows, row, head, value, word)
            row += ROW_BYTES
        if nested is not None:
            _log_nested(nested, step)
    except AttributeError:
        # This thread has no lane yet, or the values are not a dict.
        _log_slowly(values, step)
    except Exception as error:
        if isinstance(values, Mapping):
            report("log", error)
        else:
            _log_slowly(values, step)


@never_raises
def _log_slowly(values: Any, step: int | None) -> None:
    """Log with a lane that has room for the values; warn if the values are not a dict."""
    if not isinstance(values, Mapping):
        warn_once(
            "log",
            'log() takes a dict such as {"loss": 0.3}, got %s. Nothing was recorded.',
            type(values).__name__,
        )
        return
    lane = current_lane()
    if lane is None or not values:
        return
    if len(values) > MAX_AT_ONCE:
        items = list(values.items())
        for i in range(0, len(items), MAX_AT_ONCE):
            log(dict(items[i : i + MAX_AT_ONCE]), step)
    elif lane.row_next + ROW_BYTES * len(values) <= lane.row_limit or lane.roll_metrics():
        log(values, step)
    else:
        lane.journal.drops["metrics"] += len(values)


@never_raises
def set_context(step: int | None, epoch: int | None) -> None:
    """Set the step and the epoch from now on; None leaves the previous one."""
    if epoch is not None:
        context.epoch = _bounded(epoch, MAX_EPOCH, "epoch")
    if step is not None:
        context.step = _bounded(step, MAX_STEP, "step")
        context.step_word = 0 if context.step is None else context.step + STEP_BIAS
    lane = _lane_with_rows()
    if lane is not None:
        row = lane.row_next
        lane.row_next = row + ROW_BYTES
        head = _head(_now(), context_word(context.step, context.epoch))
        _pack(lane.rows, row, head, 0.0, CONTEXT_NAME)


def logged_names() -> list[str]:
    """Return the names of all metrics that this process has logged, also into earlier journals."""
    return list({**_words, **audience_words})


def latest(name: str, lanes: list[Lane]) -> float | None:
    """Return the latest value of a metric in the live segments of these lanes; None if there is none."""
    words = [*audience_words.get(name, ()), *([_words[name]] if name in _words else [])]
    # Rows that the pump writes for another lane contain its number.
    owners = [0, *(lane.number + 1 << OWNER_SHIFT for lane in lanes)]
    marks = [(word | owner).to_bytes(8, "little") for word in words for owner in owners]
    values: list[tuple[int, float]] = []
    for lane in lanes:
        # Of a thread that has ended, the pump may unmap the segment at any moment.
        with contextlib.suppress(ValueError):
            values += _last_values(lane.rows, lane.row_next, marks)
    return max(values)[1] if values else None


def _last_values(rows: Any, end: int, marks: list[bytes]) -> Iterator[tuple[int, float]]:
    """Yield the time and value of the last row with each mark as its name word."""
    for mark in marks if rows is not None else ():
        row = _last_row(rows, end, mark)
        if row:
            head, value, _ = ROW.unpack_from(rows, row)
            yield ROW_HEAD.unpack(head)[0], value


def _last_row(rows: Any, end: int, mark: bytes) -> int:
    """Return the offset of the last row with these bytes as its name word; 0 if there is none."""
    while True:
        at = rows.rfind(mark, HEADER_BYTES, end)
        if at < 0:
            return 0
        row = at - (ROW_BYTES - 8)
        if (row - HEADER_BYTES) % ROW_BYTES == 0:
            return int(row)
        end = at + 7


def write_row(lane: Lane, time: int, value: float, step_word: int, word: int, owner: int) -> None:
    """Write a row on behalf of the lane with number ``owner``."""
    if lane.row_next >= lane.row_limit and not make_room(lane):
        return
    row = lane.row_next
    lane.row_next = row + ROW_BYTES
    _pack(lane.rows, row, _head(time, step_word), value, word | owner + 1 << OWNER_SHIFT)


def word_of(name: str) -> int:
    """Return the name id of a metric."""
    return _words.get(name) or _intern(name)


def audience_word(name: str, audience: str) -> int:
    """Return the name id of a metric for values that are meant for an audience."""
    word = names.intern(METRIC, name, audience)
    if word == names.ids[OVERFLOW[METRIC]]:
        return _intern(name)
    words = audience_words.setdefault(name, [])
    if word not in words:
        words.append(word)
    return word


def step_word_of(word: int) -> int:
    """Return the present step for a value of this metric; if none was ever set, the count of its values."""
    return context.step_word or IMPLICIT_STEP | next(_counts[word])


def _number(lane: Lane, name: str, value: Any, step_word: int, time: int) -> float | None:
    """Return the value as a float; None if it is recorded in another way."""
    if isinstance(value, Mapping):
        return None
    result = number(value)
    if result is None:
        word = word_of(name)
        lane.journal.take_odd_value(
            lane, name, value, step_word or IMPLICIT_STEP | next(_counts[word]), time, word
        )
    return result


@never_raises
def _log_nested(values: Mapping[str, Any], step: int | None) -> None:
    """Log the dicts among the values, with names joined by slashes."""
    for name, inner in values.items():
        if not isinstance(inner, Mapping):
            continue
        if f"{name}".count("/") >= MAX_NESTED:
            warn_once(
                "nested",
                "log(): dicts are nested too deeply at %.200s. Deeper values are not recorded.",
                name,
            )
            continue
        log({f"{name}/{key}": value for key, value in inner.items()}, step)


def _intern(name: Any) -> int:
    word = names.intern(METRIC, name if isinstance(name, str) else text_of(name))
    if word == names.ids[OVERFLOW[METRIC]]:
        warn_once(
            "too many metric names",
            "More than %d different metric names: further ones are recorded under one name. Use the "
            "step for values that vary, not the name.",
            len(names.ids),
        )
    elif isinstance(name, str):
        _words[name] = word
    return word


def explicit_step_word(step: Any) -> int:
    """Return the step word of a given step. Warn about a wrong one and return that of the current step."""
    try:
        result = int(step)
    except Exception:  # a string, NaN, or an object that raises
        result = MAX_COUNT + 1
    if -MAX_COUNT <= result <= MAX_COUNT:
        return result + STEP_BIAS
    warn_once(
        "step",
        "step must be a whole number below 2**62, got %.100s. The current step is used instead.",
        text_of(step),
    )
    return context.step_word


def _bounded(value: Any, limit: int, what: str) -> int | None:
    try:
        result = int(value)
    except Exception:  # a string, NaN, or an object that raises
        result = -1
    if 0 <= result <= limit:
        return result
    warn_once(
        what,
        "%s must be a whole number from 0 to %d, got %.100s. It is recorded as unknown.",
        what,
        limit,
        text_of(value),
    )
    return None


def _lane_with_rows() -> Lane | None:
    lane = current_lane()
    if lane is None or (lane.row_next >= lane.row_limit and not make_room(lane)):
        return None
    return lane


def make_room(lane: Lane) -> bool:
    """Take a new segment for metrics; return whether there is one. If not, a dropped value is counted."""
    if lane.roll_metrics():
        return True
    lane.journal.count_drop("metrics")
    return False
