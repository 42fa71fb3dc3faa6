"""Which calls of ``log()`` count: every n-th batch, all batches, or only calls outside of batches.

A call in the loop over batches without ``batch_idx`` always counts, whatever the log_freq. This is an easy
mistake, so it is detected and gives one warning.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

from stepwell._core.errors import warn_once
from stepwell.journal.metrics import context

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
