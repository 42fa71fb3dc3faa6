"""Which calls of ``log()`` count: every so many batches, on certain workers.

Also the trap that comes with it: a call inside the loop over batches that does not tell its batch counts
always. It is noticed, and said once.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from stepwell.journal.errors import StepwellError, warn_once
from stepwell.journal.metrics import context
from stepwell.journal.values import shown

LogFreq = int | Literal["epoch", "batch"]
Workers = int | list[int] | tuple[int, ...] | set[int] | frozenset[int]

DEFAULT: LogFreq = "epoch"
"""The log_freq of a logger that was given none; in a Lightning trainer it is ``"batch"``."""
ALL_WORKERS = -1
NEVER = 0
"""In the place of a number of batches: no call that tells its batch counts."""
SUSPICIOUS = 30
"""So many values of one metric within one epoch that did not tell their batch."""
SHORT_EPOCH = 1.0
"""Where nothing tells epochs apart: values that follow within so many seconds are no epochs."""
MOST_WATCHED = 1000
MOST_NAMED = 5
"""Metrics that a warning names."""


def check_log_freq(log_freq: Any) -> LogFreq:
    """A log_freq that makes sense; StepwellError for any other."""
    if isinstance(log_freq, str) and log_freq in ("epoch", "batch"):
        return "epoch" if log_freq == "epoch" else "batch"
    number = _whole(log_freq)
    if number is None or number < 1:
        raise StepwellError(
            f'log_freq is {shown(log_freq)}: write "epoch", "batch", or a number of batches '
            "from 1 on, such as log_freq=100"
        )
    return number


def every(log_freq: LogFreq | None) -> int:
    """Batches whose index is a multiple of this count; ``NEVER``: none of them does."""
    log_freq = log_freq or DEFAULT
    if isinstance(log_freq, str):
        return 1 if log_freq == "batch" else NEVER
    return log_freq


def check_workers(log_on_workers: Any) -> frozenset[int] | None:
    """The ranks that log; None: all of them. StepwellError for what names none."""
    several = isinstance(log_on_workers, Iterable) and not isinstance(log_on_workers, str | bytes)
    given = list(log_on_workers) if several else [log_on_workers]
    ranks = [_whole(rank) for rank in given]
    wrong = [one for one, rank in zip(given, ranks, strict=True) if rank is None or rank < -1]
    if wrong or not ranks:
        raise StepwellError(
            f"log_on_workers is {shown(log_on_workers)}: write a rank from 0 on, several of them "
            "as a list, or -1 for all workers"
        )
    if ALL_WORKERS in ranks:
        return None
    return frozenset(rank for rank in ranks if rank is not None)


def check_rank(rank: Any) -> int:
    """A global rank; StepwellError for what is none."""
    number = _whole(rank)
    if number is None or number < 0:
        raise StepwellError(
            f"rank is {shown(rank)}: write the global rank of this worker, a whole number from 0 "
            "on; without it, it is taken from the environment"
        )
    return number


def _whole(value: Any) -> int | None:
    """A whole number; a bool is none, though Python takes it for one."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    try:
        return operator.index(value)
    except Exception:  # an array of several numbers
        return None


def warn_left_out(names: Sequence[str], log_freq: LogFreq, logger: str) -> None:
    """Say that a logger has no value of these metrics, and which setting is the reason."""
    shown_names = ", ".join(repr(name[:200]) for name in names[:MOST_NAMED])
    if len(names) > MOST_NAMED:
        shown_names += f" and {len(names) - MOST_NAMED} more metrics"
    reason = "" if isinstance(log_freq, str) else f", never a multiple of {log_freq}"
    warn_once(
        f"left out {logger} {log_freq} {shown_names}",
        "%s: every value of %s was left out because log_freq=%r and batch_idx was given%s (inside a "
        "training iteration it is known): write log_freq='batch' or a number of batches, such as "
        "log_freq=10, to log values of batches. Values without batch_idx are always logged.",
        logger,
        shown_names,
        log_freq,
        reason,
    )


class ForgottenIndex:
    """Notices metrics that are logged in every batch without their ``batch_idx``.

    An epoch is over when the run's epoch changes, or when a ``batch_idx`` does not go on from the one
    before. Where neither is ever seen, only values in quick succession are suspicious.
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._since = 0.0
        self._epoch: int | None = None
        self._batch = -1
        self._knows_epochs = False
        self._is_said = False

    def batch(self, batch_idx: int) -> None:
        """A call told its batch."""
        if batch_idx < self._batch or batch_idx == 0 != self._batch:
            self._knows_epochs = True
            self._counts.clear()
        self._batch = batch_idx

    def count(self, identifier: str, log_freq: LogFreq) -> None:
        """A call outside of any batch, as far as it told."""
        if self._is_said:
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
                self._say(identifier, count, took, log_freq)
            self._counts.clear()

    def _say(self, identifier: str, count: int, took: float, log_freq: LogFreq) -> None:
        self._is_said = True
        warn_once(
            "forgotten batch_idx",
            "%r was logged %d times %s without batch_idx, so log_freq=%r has no effect on it. In the "
            "loop over batches, write log(…, batch_idx=batch_idx); once in an epoch, all is well.",
            identifier[:200],
            count,
            "in one epoch" if self._knows_epochs else f"in {took:.2g} s",
            log_freq,
        )
