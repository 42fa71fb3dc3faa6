"""Which loggers a call of ``log()`` counts for: by every n-th batch, all batches, or outside of batches only.

A metric's name is interned once for each group of loggers that take it. So a value is one row of the journal,
however many backends there are. Selecting the group is on the hot path: it uses numbers that were computed
when the context was created.

A call in the loop over batches without ``batch_idx`` always counts, whatever the log_freq. This is an easy
mistake, so it is detected and gives one warning.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from stepwell._core.errors import warn_once
from stepwell._core.values import text_of
from stepwell.journal.format import MAX_NAMES, NAME_SHIFT, SPAN
from stepwell.journal.metrics import audience_word, context
from stepwell.journal.names import names
from stepwell.journal.state import local
from stepwell.vocabulary import StandardTrainingJobSpanName as Name

if TYPE_CHECKING:
    from stepwell.journal.journal import Journal
    from stepwell.journal.lane import Lane

LogFreq = int | Literal["epoch", "batch"]
Workers = int | list[int] | tuple[int, ...] | set[int] | frozenset[int]

DEFAULT: LogFreq = "epoch"
"""The log_freq of a logger that was given none. In a Lightning trainer it is ``"batch"``."""
NEVER = 0
"""In place of a number of batches: no call with a ``batch_idx`` counts."""
SUSPICIOUS = 30
"""Values of one metric in one epoch without ``batch_idx`` that give a warning."""
SHORT_EPOCH = 1.0
"""Seconds per value. If epochs are unknown, only values that follow each other faster are suspicious."""
MOST_WATCHED = 1000
MOST_NAMED = 5
"""Metrics that a warning names."""
CATEGORY = "log:"
"""Prefix of the category of a metric's name: the loggers 1 and 3 take ``log:1+3``."""

ITERATION = names.intern(SPAN, Name.TRAINING_SINGLE_ITERATION.value) << NAME_SHIFT


def current_batch() -> int | None:
    """Return the step of the training iteration that this thread is in; None outside of one."""
    lane: Lane | None = getattr(local, "lane", None)
    return context.step if lane is not None and lane.find(ITERATION) else None


def every(log_freq: LogFreq | None) -> int:
    """Return n if batches 0, n, 2 n, … count; ``NEVER`` if no batch does."""
    log_freq = log_freq or DEFAULT
    if isinstance(log_freq, str):
        return 1 if log_freq == "batch" else NEVER
    return log_freq


def warn_left_out(names: Sequence[str], log_freq: LogFreq, logger: str) -> None:
    """Warn that a logger has no value of these metrics because of its log_freq."""
    shown_names = ", ".join(repr(name[:200]) for name in names[:MOST_NAMED])
    if len(names) > MOST_NAMED:
        shown_names += f" and {len(names) - MOST_NAMED} more metrics"
    reason = "" if isinstance(log_freq, str) else f", never a multiple of {log_freq}"
    warn_once(
        f"left out {logger} {log_freq} {shown_names}",
        "%s: every value of %s was left out because log_freq=%r and batch_idx was given%s (inside a "
        "training iteration, stepwell sets it). To log values of batches, set log_freq='batch' or a number "
        "of batches, such as log_freq=10. Values without batch_idx are always logged.",
        logger,
        shown_names,
        log_freq,
        reason,
    )


class ForgottenIndex:
    """Detects metrics that are logged in every batch without ``batch_idx``.

    An epoch ends when the run's epoch changes, or when a ``batch_idx`` is smaller than the one before. If
    neither ever happens, only values in quick succession are suspicious.
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._since = 0.0
        self._epoch: int | None = None
        self._batch = -1
        self._knows_epochs = False
        self._has_warned = False

    def batch(self, batch_idx: int) -> None:
        """Note a call with this ``batch_idx``."""
        if batch_idx < self._batch or batch_idx == 0 != self._batch:
            self._knows_epochs = True
            self._counts.clear()
        self._batch = batch_idx

    def count(self, identifier: str, log_freq: LogFreq) -> None:
        """Count a call without ``batch_idx``, outside of a training iteration."""
        if self._has_warned:
            return
        if context.epoch != self._epoch:
            self._epoch = context.epoch
            self._knows_epochs = True
            self._counts.clear()
        if not self._counts:
            self._since = time.monotonic()
        elif len(self._counts) > MOST_WATCHED:
            self._counts.clear()
        count = self._counts[identifier] = self._counts.get(identifier, 0) + 1
        if count >= SUSPICIOUS:
            took = time.monotonic() - self._since
            if self._knows_epochs or took < SHORT_EPOCH * count:
                self._warn(identifier, count, took, log_freq)
            self._counts.clear()

    def _warn(self, identifier: str, count: int, took: float, log_freq: LogFreq) -> None:
        self._has_warned = True
        warn_once(
            "forgotten batch_idx",
            "%r was logged %d times %s without batch_idx, so log_freq=%r has no effect on it. In the "
            "loop over batches, pass it: log(…, batch_idx=batch_idx). Values logged once per epoch need "
            "none.",
            identifier[:200],
            count,
            "in one epoch" if self._knows_epochs else f"in {took:.2g} s",
            log_freq,
        )


class NameIds(dict[str, int]):
    """The ids of metrics' names for one group of loggers, created when they are first used."""

    def __init__(self, numbers: Sequence[int]) -> None:
        super().__init__()
        self.numbers = list(numbers)
        self._category = CATEGORY + "+".join(map(str, numbers))

    def __missing__(self, name: str) -> int:
        word = audience_word(name if isinstance(name, str) else text_of(name), self._category)
        if len(self) < MAX_NAMES:
            self[name] = word
        return word


class Target(NamedTuple):
    """A logger that takes records: its number in the process, its log_freq (None: not given), its name."""

    number: int
    log_freq: LogFreq | None
    name: str


class Targets:
    """The loggers that one call writes for, and how often each of them logs.

    Attributes:
        journal: where they are registered.
        all_ids: the name ids for all of them together.
        takes_all: whether every call counts for every logger.
        left_out: metrics of which all loggers left out a value.
    """

    __slots__ = (
        "_by_mask",
        "_forgotten",
        "_freq",
        "_members",
        "_taken_before",
        "_targets",
        "all_ids",
        "journal",
        "left_out",
        "takes_all",
    )

    def __init__(
        self, journal: Journal | None, targets: Sequence[Target], before: Targets | None = None
    ) -> None:
        self.journal = journal
        self.all_ids = NameIds([target.number for target in targets])
        self._targets = targets
        self._members = [(target.number, every(target.log_freq)) for target in targets]
        self.takes_all = all(batches == 1 for _, batches in self._members)
        self._by_mask: dict[int, NameIds] = {(1 << len(targets)) - 1: self.all_ids}
        self._forgotten = ForgottenIndex()
        rare = [target.log_freq or DEFAULT for target in targets if every(target.log_freq) != 1]
        self._freq: LogFreq = rare[0] if rare else "batch"
        # Taken over from the targets before these: a log_freq may change at any time.
        self.left_out: set[str] = set() if before is None else before.left_out
        self._taken_before: set[str] = set() if before is None else before._taken()

    def select(self, identifier: str, batch_idx: int | None) -> NameIds | None:
        """Return the name ids for the loggers that a call in this batch counts for; None for no logger."""
        if batch_idx is None:
            batch_idx = current_batch()
            if batch_idx is None:
                if not self.takes_all:
                    self._forgotten.count(identifier, self._freq)
                return self.all_ids
        else:
            self._forgotten.batch(batch_idx)
        mask, bit = 0, 1
        for _, batches in self._members:
            if batches and batch_idx % batches == 0:
                mask |= bit
            bit <<= 1
        if not mask:
            return None
        ids = self._by_mask.get(mask)
        if ids is None:
            chosen = [number for i, (number, _) in enumerate(self._members) if mask >> i & 1]
            ids = self._by_mask[mask] = NameIds(chosen)
        return ids

    # Metrics that were left out

    def note_left_out(self, identifier: str, item: Any) -> None:
        """Note that a value of a metric, or of several metrics in a dict, was left out."""
        if isinstance(item, Mapping):
            for name, inner in item.items():
                self.note_left_out(f"{identifier}/{text_of(name)}", inner)
        elif len(self.left_out) < MOST_WATCHED:
            self.left_out.add(identifier)

    def warn_left_out(self) -> None:
        """Warn about metrics that a logger never got because of its log_freq.

        If the user has chosen the log_freq, only about metrics that no other logger got either.
        """
        taken = self._taken()
        loggers: dict[tuple[LogFreq, frozenset[str]], list[str]] = {}
        for position, target in enumerate(self._targets):
            if target.log_freq is None:
                missed = (self.left_out | taken) - self._taken(1 << position)
            else:
                missed = self.left_out - taken
            if missed:
                key = target.log_freq or DEFAULT, frozenset(missed)
                loggers.setdefault(key, []).append(target.name)
        for (log_freq, metrics), logger_names in loggers.items():
            warn_left_out(sorted(metrics), log_freq, ", ".join(logger_names))

    def _taken(self, mask: int = -1) -> set[str]:
        """Return the metrics that any of these loggers got."""
        # A copy: other threads may log.
        ids = [names for loggers, names in list(self._by_mask.items()) if loggers & mask]
        return self._taken_before.union(*ids)
