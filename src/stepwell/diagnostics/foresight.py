"""When to ask for the gradients of the next step, so that they are there when a collection needs them.

After a step its gradients may be gone: ``zero_grad`` may come before ``on_batch_end``. So they are taken
while the optimizer steps, but only of the steps that a collection will ask about. In the first batches
every step is taken, which tells how many batches make one (gradient accumulation); from then on the
optimizer is asked that many batches ahead of a collection, and left alone otherwise.
"""

from __future__ import annotations

MAX_LEARNING = 1024
"""Batches without a step that was seen; then each batch is taken for a step."""


class Foresight:
    """What is known of the steps of one optimizer.

    Attributes:
        every: a collection is made at batches whose index is a multiple of this.
        period: batches that make a step, once that is known.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self.period: int | None = None
        self._last: int | None = None
        self._step_at: int | None = None
        self._armed_at: int | None = None
        self._calls = 0
        self._has_taken = False

    @property
    def is_watching(self) -> bool:
        """Whether every batch has to be looked at: steps are being learnt, or are rarer than collections."""
        return self.period is None or self.period >= self.every

    def trusts(self, batch_idx: int, stepped: bool) -> bool:
        """Whether the gradients taken last are those of the latest step.

        Args:
            batch_idx: the batch that ends.
            stepped: whether gradients were taken since they were last asked for.
        """
        if self.is_watching:
            # A batch that was not shown may have made a step of its own.
            is_next = self._last is not None and batch_idx - self._last <= 1
            return is_next and (stepped or self._has_taken)
        if self._armed_at is None or self.period is None:
            return False
        has_taken = stepped or self._has_taken
        return has_taken and batch_idx - self._armed_at <= self.period

    def passes(self, batch_idx: int, stepped: bool) -> bool:
        """Take note that a batch ends; whether the gradients of the next step have to be asked for."""
        if not self.is_watching:
            self._has_taken = self._has_taken or stepped
            return self._is_time(batch_idx)
        is_first = self._last is None
        is_next = self._last is not None and batch_idx - self._last <= 1
        self._has_taken = is_next and (self._has_taken or stepped)
        self._last = batch_idx
        self._learn(batch_idx, stepped, is_next)
        if not self.is_watching:
            return self._is_time(batch_idx)
        return is_first or stepped

    def _learn(self, batch_idx: int, stepped: bool, is_next: bool) -> None:
        self._calls += 1
        if stepped:
            if self._step_at is not None and batch_idx > self._step_at:
                self.period = batch_idx - self._step_at
                if self.period >= self.every and not is_next:
                    # Only batches that collect are shown: there is none to get ready at.
                    self.period = 1
            self._step_at = batch_idx
        elif self.period is None and self._calls > MAX_LEARNING:
            self.period = 1

    def _is_time(self, batch_idx: int) -> bool:
        """Whether the next collection needs the step that comes next."""
        assert self.period is not None
        left = self.every - batch_idx % self.every
        if self._last is not None:
            # Learnt just now, at a step: where a collection comes before the next one, it is this one's.
            self._last = None
            if left < self.period:
                self._armed_at = batch_idx
                return False
        if left != self.period:
            return False
        self._armed_at = batch_idx
        self._has_taken = False
        return True
