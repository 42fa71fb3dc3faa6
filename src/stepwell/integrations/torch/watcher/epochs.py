"""Epochs: which iterator over the loader is trained on, and the number of its epoch.

Another iterator may be started alongside it to inspect a batch; its batches are not iterations. An iterator
takes over when it continues while the previous one does not, or when the previous one is dropped.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from stepwell.journal.metrics import context, set_context

FEWEST_STOPPED = 10


class CountedEpoch(int):
    """An epoch counted here; an epoch set in another way is a plain int."""


class EpochTracker:
    """The epochs of a training.

    Attributes:
        number: the current epoch; one less than the first before training begins.
        left_at: the step at which the loop was last left without an optimizer step, by ``break`` or an
            exception; None before that.
        complete: number of iterators that reached the end of the loader.
        stopped: number of iterators that were stopped before the end.
        batches: total number of batches of the stopped iterators.
    """

    __slots__ = (
        "_begun_at",
        "_first",
        "_latest",
        "_leader",
        "_lowest",
        "batches",
        "complete",
        "left_at",
        "number",
        "stopped",
    )

    def __init__(self, first: int) -> None:
        self.number = first - 1
        self._lowest = first
        self.left_at: int | None = None
        self.complete = self.stopped = self.batches = 0
        # Number of steps when the current epoch began; None before the first.
        self._begun_at: int | None = None
        self._leader: Callable[[], Any] = nothing
        # The first and the latest of several iterations with the same batch.
        self._first = self._latest = 0

    @property
    def is_led(self) -> bool:
        """Whether an iterator is trained on."""
        leader = self._leader()
        return leader is not None and leader.is_followed

    def continue_batch(self, before: int, now: int) -> None:
        """Note that an iteration is followed by another one with the same batch."""
        self._first = self._first if before == self._latest else before
        self._latest = now

    def lead(self, batches: Any, inside: int, steps: int) -> bool:
        """Return whether this iterator is trained on, and make it the leader if so.

        ``inside`` is the open iteration, 0 for none; ``steps`` is the number of steps so far.
        """
        leader = self._leader()
        if leader is not None and leader is not batches and leader.is_followed:
            if inside == self._latest:
                inside = self._first
            if batches.inspected_in != inside:
                # Its first batch, or the other iterator continued in between.
                batches.inspected_in = inside
                return False
            leader.stand_down()
        self._leader = weakref.ref(batches)
        if batches.epoch is None:
            # An iterator without a step did not count as an epoch: its batches were only inspected.
            if steps != self._begun_at:
                self.number += 1
                self._begun_at = steps
            batches.epoch = self.number
        self.number = batches.epoch
        self.publish()
        return True

    def publish(self) -> None:
        """Set the epoch of the run, unless it was set in another way."""
        if context.epoch is None or type(context.epoch) is CountedEpoch:
            set_context(None, self.number)
            if context.epoch == self.number:
                context.epoch = CountedEpoch(self.number)

    def leave(self, batches: int | None) -> None:
        """Count an iterator that is stopped early, after this many batches; None if unknown."""
        if batches is not None:
            self.stopped += 1
            self.batches += batches

    def describe(self) -> dict[str, int]:
        """Return attributes for the training loop, if many iterators were stopped early."""
        if self.stopped < FEWEST_STOPPED:
            return {}
        return {
            "complete_passes": self.complete,
            "stopped_passes": self.stopped,
            "batches_of_stopped_passes": self.batches,
        }

    def retract(self, steps: int) -> None:
        """Return to the previous epoch if no step was made in this one: batches were only inspected."""
        if (
            steps == self._begun_at
            and self.number > self._lowest
            and type(context.epoch) is CountedEpoch
        ):
            set_context(None, self.number - 1)
            context.epoch = CountedEpoch(self.number - 1)

    def end(self) -> None:
        """Stop observing the leading iterator."""
        leader, self._leader = self._leader(), nothing
        if leader is not None:
            leader.stand_down()


def nothing() -> None:
    """Return None, like a weak reference to an object that no longer exists."""
    return None
