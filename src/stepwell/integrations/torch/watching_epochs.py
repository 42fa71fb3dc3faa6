"""Passes through the loader: which one is trained on, and in which epoch that is.

Another one may be begun beside it, to look at a batch; its batches are no iterations. The one that is trained
on gives way when another goes on without it, or when it is let go of.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from stepwell.journal.metrics import context, set_context

FEWEST_STOPPED = 10


class CountedEpoch(int):
    """An epoch that was counted here. Whoever else sets one leaves a plain number."""


class Epochs:
    """The epochs of a training.

    Attributes:
        number: the epoch under way, one less than the first before that.
        left_at: the step at which the loop was left last without an optimizer step, by ``break`` or an
            exception; None before that.
        complete: passes that came to the end of the loader.
        stopped: passes that were stopped before it, and ``batches`` that these had in all.
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
        # Steps that were made when it began; None before the first.
        self._begun_at: int | None = None
        self._leader: Callable[[], Any] = nothing
        # Of several iterations with one batch.
        self._first = self._latest = 0

    @property
    def is_led(self) -> bool:
        """Whether there is one that is trained on."""
        leader = self._leader()
        return leader is not None and leader._is_followed

    def go_on(self, before: int, now: int) -> None:
        """An iteration is followed by another one with the same batch."""
        self._first = self._first if before == self._latest else before
        self._latest = now

    def lead(self, batches: Any, inside: int, steps: int) -> bool:
        """Whether this pass through the loader is the one that is trained on; from now on, if so.

        ``inside`` is the iteration that is under way, 0 for none, and ``steps`` what was made so far.
        """
        leader = self._leader()
        if leader is not None and leader is not batches and leader._is_followed:
            if inside == self._latest:
                inside = self._first
            if batches._beside != inside:
                # The first batch of it, or the other one went on meanwhile.
                batches._beside = inside
                return False
            leader._stand_down()
        self._leader = weakref.ref(batches)
        if batches._epoch is None:
            # Where no step was made the epoch before was but a look at some batches.
            if steps != self._begun_at:
                self.number += 1
                self._begun_at = steps
            batches._epoch = self.number
        self.number = batches._epoch
        self.tell()
        return True

    def tell(self) -> None:
        """Say that this is the epoch, unless somebody else does."""
        if context.epoch is None or type(context.epoch) is CountedEpoch:
            set_context(None, self.number)
            if context.epoch == self.number:
                context.epoch = CountedEpoch(self.number)

    def leave(self, batches: int | None) -> None:
        """A pass is stopped after so many batches; None where that is not known."""
        if batches is not None:
            self.stopped += 1
            self.batches += batches

    def describe(self) -> dict[str, int]:
        """Return facts for the training loop, if many passes were stopped early."""
        if self.stopped < FEWEST_STOPPED:
            return {}
        return {
            "complete_passes": self.complete,
            "stopped_passes": self.stopped,
            "batches_of_stopped_passes": self.batches,
        }

    def retract(self, steps: int) -> None:
        """Return to the previous epoch if no step was made in this one: batches were only looked at."""
        if (
            steps == self._begun_at
            and self.number > self._lowest
            and type(context.epoch) is CountedEpoch
        ):
            set_context(None, self.number - 1)
            context.epoch = CountedEpoch(self.number - 1)

    def end(self) -> None:
        """Nobody follows any more."""
        leader, self._leader = self._leader(), nothing
        if leader is not None:
            leader._stand_down()


def nothing() -> None:
    """In place of a reference to something: there is none."""
    return None
