"""Who hears of a record: the loggers that a call of ``log()`` counts for.

A metric's name is interned once for every group of loggers that hears of it, so that a value is one row of
the journal however many backends there are. Choosing is on the hot path: it is done with numbers that
were looked up when the context was created.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stepwell.journal.format import MAX_NAMES, NAME_SHIFT
from stepwell.journal.metrics import context, word_heard_by
from stepwell.journal.names import SPAN, names
from stepwell.journal.state import local
from stepwell.journal.values import text_of
from stepwell.loggers.frequency import ForgottenIndex, LogFreq, every
from stepwell.vocabulary import StandardTrainingJobSpanName as Name

if TYPE_CHECKING:
    from stepwell.journal.journal import Journal
    from stepwell.journal.lane import Lane

CATEGORY = "log:"
"""How the category of a metric's name begins: ``log:1+3`` is heard by the loggers 1 and 3."""

ITERATION = names.intern(SPAN, Name.TRAINING_SINGLE_ITERATION.value) << NAME_SHIFT


def current_batch() -> int | None:
    """The step of the training iteration that this thread is in; None outside of one."""
    lane: Lane | None = getattr(local, "lane", None)
    return context.step if lane is not None and lane.find(ITERATION) else None


class Words(dict[str, int]):
    """The ids of metrics' names for one group of loggers, made when they are first used."""

    def __init__(self, numbers: Sequence[int]) -> None:
        super().__init__()
        self.numbers = list(numbers)
        self._audience = CATEGORY + "+".join(map(str, numbers))

    def __missing__(self, name: str) -> int:
        word = word_heard_by(name if isinstance(name, str) else text_of(name), self._audience)
        if len(self) < MAX_NAMES:
            self[name] = word
        return word


class Audience:
    """The loggers of one call: their numbers, and how often each of them logs.

    Attributes:
        journal: where they are registered.
        everyone: the words that all of them hear.
        is_always_everyone: no call is ever left out by any of them.
    """

    __slots__ = (
        "_by_mask",
        "_forgotten",
        "_freq",
        "_members",
        "everyone",
        "is_always_everyone",
        "journal",
    )

    def __init__(self, journal: Journal | None, members: Sequence[tuple[int, LogFreq]]) -> None:
        self.journal = journal
        self.everyone = Words([number for number, _ in members])
        self._members = [(number, every(freq)) for number, freq in members]
        self.is_always_everyone = all(batches == 1 for _, batches in self._members)
        self._by_mask: dict[int, Words] = {(1 << len(members)) - 1: self.everyone}
        self._forgotten = ForgottenIndex()
        rare = [freq for _, freq in members if every(freq) != 1]
        self._freq: LogFreq = rare[0] if rare else "batch"

    def choose(self, identifier: str, batch_idx: int | None) -> Words | None:
        """Those that a call in this batch counts for; None: it counts for none."""
        if batch_idx is None:
            batch_idx = current_batch()
            if batch_idx is None:
                if not self.is_always_everyone:
                    self._forgotten.count(identifier, self._freq)
                return self.everyone
        else:
            self._forgotten.batch(batch_idx)
        mask, bit = 0, 1
        for _, batches in self._members:
            if batches and batch_idx % batches == 0:
                mask |= bit
            bit <<= 1
        if not mask:
            return None
        found = self._by_mask.get(mask)
        if found is None:
            chosen = [number for i, (number, _) in enumerate(self._members) if mask >> i & 1]
            found = self._by_mask[mask] = Words(chosen)
        return found
