"""Metrics: rows of (clock, step, value, name), written once each.

Also the context: ``set_context`` writes a row that says which step and epoch it is from now on. Spans
and events carry none themselves; readers look it up by time, for this process and its workers alike.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping
from time import perf_counter_ns as _now
from typing import Any

from stepwell.journal import clock
from stepwell.journal.errors import quietly, report, warn_once
from stepwell.journal.format import (
    CONTEXT_NAME,
    HEADER_BYTES,
    IMPLICIT_STEP,
    MAX_EPOCH,
    MAX_STEP,
    METRIC_ROWS,
    OWNER_SHIFT,
    ROW,
    ROW_BYTES,
    ROW_HEAD,
    STEP_BIAS,
    context_word,
)
from stepwell.journal.lane import Lane
from stepwell.journal.names import METRIC, OVERFLOW, names
from stepwell.journal.state import current_lane, local, state
from stepwell.journal.values import number, text_of

_pack = ROW.pack_into
_head = ROW_HEAD.pack

_words: dict[Any, int] = {}
_counts: defaultdict[int, itertools.count[int]] = defaultdict(itertools.count)
"""How often each metric, by its name's id, was logged while no step was ever set."""
_heard: dict[str, list[int]] = {}
"""Further ids of a metric's name, by which it is told who was meant to hear of a value."""
MAX_COUNT = STEP_BIAS - 1
MAX_AT_ONCE = METRIC_ROWS // 2
MAX_NESTED = 32


class Context:
    """The step and epoch that the process is in."""

    __slots__ = ("epoch", "step", "step_word")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Back to "none was ever set"."""
        self.step: int | None = None
        self.epoch: int | None = None
        self.step_word = 0
        _counts.clear()


context = Context()
clock.follow(globals())


def log(values: Mapping[str, Any], step: int | None = None) -> None:
    """Record numbers, such as ``{"loss": 0.3}``, at this step or at the current one.

    Nested dicts become names with slashes. A scalar on an accelerator is fetched later, in the
    background. ``stepwell.Image``, ``Histogram``, ``Table`` and ``Text``, figures, PIL images and
    DataFrames are converted at once and kept as items, texts and lists as values.
    """
    if not state.enabled:
        return
    try:
        lane: Lane = local.lane
        size = ROW_BYTES * len(values)
        # No call from here to where the rows are ours: a signal handler may log in between.
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
            step_word = _explicit(step)
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
        # This thread has no lane yet, or the values are no dict.
        _log_slowly(values, step)
    except Exception as error:
        if isinstance(values, Mapping):
            report("log", error)
        else:
            _log_slowly(values, step)


@quietly
def _log_slowly(values: Any, step: int | None) -> None:
    """Find a lane with room for the values, or say why there is none."""
    if not isinstance(values, Mapping):
        warn_once(
            "log",
            'log() takes a dict such as {"loss": 0.3}, not %s: nothing was recorded',
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


@quietly
def set_context(step: int | None, epoch: int | None) -> None:
    """From now on this is the step, and the epoch unless that is None."""
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
    """Return the names of the metrics that this process has logged, in runs before this one too."""
    return list({**_words, **_heard})


def latest(name: str, lanes: list[Lane]) -> float | None:
    """The latest value of a metric among those that have not left memory yet."""
    words = [*_heard.get(name, ()), *([_words[name]] if name in _words else [])]
    found: list[tuple[int, float]] = []
    for lane in lanes:
        if lane.rows is None:
            continue
        for word in words:
            # What the pump writes for another lane says which.
            for mark in (word, *(word | other.number + 1 << OWNER_SHIFT for other in lanes)):
                row = _last_row(lane, mark.to_bytes(8, "little"))
                if row:
                    head, value, _ = ROW.unpack_from(lane.rows, row)
                    found.append((ROW_HEAD.unpack(head)[0], value))
    return max(found)[1] if found else None


def _last_row(lane: Lane, mark: bytes) -> int:
    """Where the last row with these bytes as its name word begins, 0 when there is none."""
    end = lane.row_next
    while True:
        at = lane.rows.rfind(mark, HEADER_BYTES, end)
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
    """The id of a metric's name."""
    return _words.get(name) or _intern(name)


def word_heard_by(name: str, audience: str) -> int:
    """The id of a metric's name that says for whom a value is; the metric is the same one."""
    word = names.intern(METRIC, name, audience)
    if word == names.ids[OVERFLOW[METRIC]]:
        return _intern(name)
    known = _heard.setdefault(name, [])
    if word not in known:
        known.append(word)
    return word


def step_word_of(word: int) -> int:
    """The current step for a value of this metric; where none was ever set, the count of its values."""
    return context.step_word or IMPLICIT_STEP | next(_counts[word])


def _number(lane: Lane, name: str, value: Any, step_word: int, time: int) -> float | None:
    """The value as a float; None when the journal takes care of it in some other way."""
    if isinstance(value, Mapping):
        return None
    result = number(value)
    if result is None:
        word = word_of(name)
        lane.journal.take_odd_value(
            lane, name, value, step_word or IMPLICIT_STEP | next(_counts[word]), time, word
        )
    return result


@quietly
def _log_nested(values: Mapping[str, Any], step: int | None) -> None:
    """Log the dicts among the values, their keys behind a slash."""
    for name, inner in values.items():
        if not isinstance(inner, Mapping):
            continue
        if f"{name}".count("/") >= MAX_NESTED:
            warn_once("nested", "log(): dicts are nested too deeply at %.200s: left out", name)
            continue
        log({f"{name}/{key}": value for key, value in inner.items()}, step)


def _intern(name: Any) -> int:
    word = names.intern(METRIC, name if isinstance(name, str) else text_of(name))
    if word == names.ids[OVERFLOW[METRIC]]:
        warn_once(
            "too many metric names",
            "more than %d different metric names: the rest are recorded under one name. "
            "Put what varies (a step, a file) into attributes or a step, not into the name.",
            len(names.ids),
        )
    elif isinstance(name, str):
        _words[name] = word
    return word


def _explicit(step: Any) -> int:
    try:
        result = int(step)
    except Exception:  # of a text, of NaN, or of an object that fails
        result = MAX_COUNT + 1
    if -MAX_COUNT <= result <= MAX_COUNT:
        return result + STEP_BIAS
    warn_once(
        "step",
        "step=%.100s is no whole number below 2**62: the current step is used instead",
        text_of(step),
    )
    return context.step_word


def _bounded(value: Any, limit: int, what: str) -> int | None:
    try:
        result = int(value)
    except Exception:  # of a text, of NaN, or of an object that fails
        result = -1
    if 0 <= result <= limit:
        return result
    warn_once(
        what,
        "%s %.100s is not a whole number from 0 to %d: recorded as unknown",
        what,
        text_of(value),
        limit,
    )
    return None


def _lane_with_rows() -> Lane | None:
    lane = current_lane()
    if lane is None or (lane.row_next >= lane.row_limit and not make_room(lane)):
        return None
    return lane


def make_room(lane: Lane) -> bool:
    """Take a new segment for the rows of a lane; return whether there is one. If not, a value is dropped."""
    if lane.roll_metrics():
        return True
    lane.journal.count_drop("metrics")
    return False
