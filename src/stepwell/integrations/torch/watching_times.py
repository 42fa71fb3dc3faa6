"""How long the passes of a training took and how long it waited for batches, for its updates.

That is in the journal: it is added up from there when an update is due, so that no step pays for it.
"""

from __future__ import annotations

from stepwell.annotations.tree import ai
from stepwell.journal.format import CARRIED, LINK_WORD, NAME_MASK, SLOT_MASK, TIME_MASK
from stepwell.journal.lane import Lane
from stepwell.journal.state import local
from stepwell.training.job import PHASES
from stepwell.training.standard_spans import WORDS
from stepwell.training.training_loop import TrainingLoop
from stepwell.vocabulary import StandardTrainingJobSpanName as Name

BACKWARD = ai.compute.backward._word
STEP = ai.compute.step._word
ATTRIBUTES = {
    ai.compute.forward._word: PHASES[Name.MODEL_FORWARD],
    BACKWARD: PHASES[Name.MODEL_BACKWARD],
    ai.dataloader.fetch._word: PHASES[Name.DATA_LOADING],
}
INSIDE = (WORDS[Name.TRAINING_SINGLE_ITERATION], WORDS[Name.TRAINING_LOOP])
OUTSIDE = (BACKWARD, WORDS[Name.VALIDATION_LOOP], WORDS[Name.TESTING_LOOP])


class Times:
    """What the steps of a training loop spent in these, as far as the journal has been looked through."""

    __slots__ = ("_covered", "_lane", "_segment", "_slot", "_step", "_sums", "_told")

    def __init__(self) -> None:
        self._sums: dict[str, int] = {}
        # What the updates were given, by attribute.
        self._told: dict[str, int] = {}
        # Steps that these sums are of.
        self._covered = 0
        self._step = 0
        self._lane: Lane | None = None
        self._segment = self._slot = 0

    def begin(self, loop: TrainingLoop) -> None:
        """A training loop begins, in this thread."""
        self._sums.clear()
        self._told.clear()
        self._covered = 0
        self._mark(getattr(local, "lane", None), loop._step)

    def tell(self, loop: TrainingLoop, step: int) -> None:
        """An update is due, of all steps before this one."""
        lane: Lane | None = getattr(local, "lane", None)
        if lane is not None and lane is self._lane and step > self._step:
            self._add(lane, loop, step - self._step)
        self._mark(lane, step)
        if not self._covered:
            return
        phases, done = loop.progress.phases, step - loop.progress.start
        for attribute, total in self._sums.items():
            # Whoever records these phases by hand has them counted already.
            if phases.get(attribute) == self._told.get(attribute):
                phases[attribute] = self._told[attribute] = total * done // self._covered

    def _mark(self, lane: Lane | None, step: int) -> None:
        self._lane, self._step = lane, step
        if lane is not None:
            self._segment, self._slot = lane.seq_bits, lane.next

    def _add(self, lane: Lane, loop: TrainingLoop, steps: int) -> None:
        is_whole = lane.seq_bits == self._segment
        begin = self._slot if is_whole else 1
        rows = zip(
            lane.metas[begin : lane.next].tolist(),
            lane.starts[begin : lane.next].tolist(),
            lane.ends[begin : lane.next].tolist(),
            strict=True,
        )
        sums, stepped = self._sums, set()
        for meta, start, end in rows:
            word = meta & NAME_MASK
            attribute = ATTRIBUTES.get(word)
            if attribute is None:
                if word == STEP:
                    stepped.add(meta & SLOT_MASK)
            elif start and end and not end & CARRIED and _is_trained(lane, meta & SLOT_MASK, loop):
                sums[attribute] = sums.get(attribute, 0) + (end & TIME_MASK) - start
        # Of what went on in another segment, only the steps in that one can be looked at.
        self._covered += steps if is_whole else min(steps, len(stepped))


def _is_trained(lane: Lane, slot: int, loop: TrainingLoop) -> bool:
    """Whether what lies in this span is a part of training, and not of validation or of backward."""
    metas = lane.metas
    while slot:
        word = metas[slot] & NAME_MASK
        if word in INSIDE:
            return True
        if word == LINK_WORD:
            return lane.origin(slot) == loop.span.id
        if word in OUTSIDE:
            return False
        slot = metas[slot] & SLOT_MASK
    return False
