"""Who hears of a record: the loggers that a call of ``log()`` counts for.

A metric's name is interned once for every group of loggers that hears of it, so that a value is one row of
the journal however many backends there are. Choosing is on the hot path: it is done with numbers that
were looked up when the context was created.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from stepwell.journal.format import MAX_NAMES, NAME_SHIFT
from stepwell.journal.metrics import context, word_heard_by
from stepwell.journal.names import SPAN, names
from stepwell.journal.state import local
from stepwell.journal.values import text_of
from stepwell.loggers.frequency import (
    DEFAULT,
    MOST_WATCHED,
    ForgottenIndex,
    LogFreq,
    every,
    warn_left_out,
)
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


class Hearer(NamedTuple):
    """A logger that hears of records: its number, its log_freq (None: not given), and what it is called."""

    number: int
    log_freq: LogFreq | None
    name: str


class Audience:
    """The loggers of one call: their numbers, and how often each of them logs.

    Attributes:
        journal: where they are registered.
        everyone: the words that all of them hear.
        is_always_everyone: no call is ever left out by any of them.
        left_out: metrics of which a value was left out by all of them.
    """

    __slots__ = (
        "_by_mask",
        "_forgotten",
        "_freq",
        "_heard_before",
        "_hearers",
        "_members",
        "everyone",
        "is_always_everyone",
        "journal",
        "left_out",
    )

    def __init__(
        self, journal: Journal | None, hearers: Sequence[Hearer], before: Audience | None = None
    ) -> None:
        self.journal = journal
        self.everyone = Words([hearer.number for hearer in hearers])
        self._hearers = hearers
        self._members = [(hearer.number, every(hearer.log_freq)) for hearer in hearers]
        self.is_always_everyone = all(batches == 1 for _, batches in self._members)
        self._by_mask: dict[int, Words] = {(1 << len(hearers)) - 1: self.everyone}
        self._forgotten = ForgottenIndex()
        rare = [hearer.log_freq or DEFAULT for hearer in hearers if every(hearer.log_freq) != 1]
        self._freq: LogFreq = rare[0] if rare else "batch"
        # What the audience before this one knew: a log_freq may be changed at any time.
        self.left_out: set[str] = set() if before is None else before.left_out
        self._heard_before: set[str] = set() if before is None else before._heard()

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

    # Metrics that were left out

    def leave_out(self, identifier: str, item: Any) -> None:
        """Note that a value of a metric, or of several in a dict, was left out."""
        if isinstance(item, Mapping):
            for name, inner in item.items():
                self.leave_out(f"{identifier}/{text_of(name)}", inner)
        elif len(self.left_out) < MOST_WATCHED:
            self.left_out.add(identifier)

    def warn_left_out(self) -> None:
        """Say which metrics a logger never heard of because of its log_freq.

        With a log_freq that the user has chosen, only metrics that no other logger heard of either.
        """
        heard = self._heard()
        loggers: dict[tuple[LogFreq, frozenset[str]], list[str]] = {}
        for position, hearer in enumerate(self._hearers):
            if hearer.log_freq is None:
                missed = (self.left_out | heard) - self._heard(1 << position)
            else:
                missed = self.left_out - heard
            if missed:
                key = hearer.log_freq or DEFAULT, frozenset(missed)
                loggers.setdefault(key, []).append(hearer.name)
        for (log_freq, metrics), called in loggers.items():
            warn_left_out(sorted(metrics), log_freq, ", ".join(called))

    def _heard(self, mask: int = -1) -> set[str]:
        """Return the metrics that any of these loggers has heard of."""
        # A copy: other threads may log.
        words = [names for heard_by, names in list(self._by_mask.items()) if heard_by & mask]
        return self._heard_before.union(*words)
