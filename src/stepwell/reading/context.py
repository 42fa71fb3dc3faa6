"""Which step and epoch it was at an instant, for records that do not say so themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell.journal.format import CONTEXT_NAME, EPOCH_MASK, STEP_SHIFT
from stepwell.reading.process import Process

Ints = NDArray[np.int64]


class ContextLog:
    """When the step and the epoch changed in a process; its workers share it, and its clock."""

    def __init__(self, process: Process) -> None:
        times, words = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
        for segment in process.of_kind("metrics"):
            clock, word, _, name = segment.columns
            changes = name == CONTEXT_NAME
            times.append(clock[changes])
            words.append(word[changes])
        clock, word = np.concatenate(times), np.concatenate(words)
        order = np.argsort(clock, kind="stable")
        self._clock = clock[order]
        self._word = word[order]

    @property
    def is_known(self) -> bool:
        """Whether a step or epoch was ever set."""
        return len(self._clock) > 0

    def at(self, clock: NDArray[Any]) -> tuple[Ints, Ints]:
        """Step and epoch at each of these instants, -1 for none."""
        if not len(self._clock):
            none = np.full(len(clock), -1, np.int64)
            return none, none
        index = np.searchsorted(self._clock, clock.astype(np.uint64), side="right")
        word = np.where(index > 0, self._word[np.maximum(index, 1) - 1], 0)
        step = (word >> STEP_SHIFT).astype(np.int64) - 1
        epoch = (word & EPOCH_MASK).astype(np.int64) - 1
        return step, epoch

    def latest(self) -> tuple[int | None, int | None]:
        """The step and epoch that it is now, or was last."""
        if not len(self._word):
            return None, None
        word = int(self._word[-1])
        step, epoch = (word >> STEP_SHIFT) - 1, (word & EPOCH_MASK) - 1
        return (step if step >= 0 else None), (epoch if epoch >= 0 else None)
