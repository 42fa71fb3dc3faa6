"""The loss of an optimizer step: the sum of the scalars that ``backward()`` was called on before it.

That is the number whose gradient the step uses, also with accumulated gradients; those that were thrown
away, as where a gradient scaler left the step out, are left out too. A value on the host is
read at once; one on an accelerator is fetched in the background, as any logged scalar.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from time import perf_counter_ns as _now
from typing import Any

import torch

from stepwell.integrations.torch.following import following
from stepwell.integrations.torch.patches import Patch, Patches, looks_like
from stepwell.journal import clock, metrics
from stepwell.journal.format import HEADER_BYTES, ROW_BYTES, STEP_BIAS
from stepwell.journal.state import current_lane

LOSS = "loss"
_is_traced = torch.compiler.is_dynamo_compiling
PATIENCE = 200_000_000
"""Nanoseconds for which values are held back, to be written many at once."""
MAX_HELD = 1000


class Loss:
    """The losses of the steps, written some at a time.

    As soon as anybody else logs a metric ``loss`` it is theirs for the rest of the run.
    """

    __slots__ = ("_due", "_held", "_lane", "_row", "_scaled", "_value", "_version", "is_on")

    def __init__(self, is_on: bool) -> None:
        self.is_on = is_on
        self._value: Any = None
        self._version = 0
        self._scaled: tuple[Any, torch.Tensor] | None = None
        self._held: list[tuple[int, int, float]] = []
        self._due = 0
        # Where rows of this thread are looked at for those of others.
        self._lane: Any = None
        self._row = 0

    def begin(self, is_on: bool) -> None:
        """A run begins; from here on somebody may log."""
        self.is_on = is_on
        self._held.clear()
        self._lane = current_lane()
        self._row = 0 if self._lane is None else self._lane.row_next

    def note_scaled(self, scaled: Any, plain: Any) -> None:
        """A gradient scaler has made one tensor out of another."""
        if isinstance(scaled, torch.Tensor) and isinstance(plain, torch.Tensor):
            self._scaled = weakref.ref(scaled), plain.detach()

    def add(self, outputs: Any) -> None:
        """A backward pass begins from these."""
        tensor = outputs[0]
        if len(outputs) != 1 or type(tensor) is not torch.Tensor or tensor.numel() != 1:
            return
        scaled = self._scaled
        if scaled is not None:
            self._scaled = None
            if scaled[0]() is tensor:
                tensor = scaled[1]
        value = self._value
        if tensor.is_cpu:
            self._value = tensor.item() if value is None else value + tensor.item()
        else:
            self._value = tensor.detach() if value is None else value + tensor.detach()
            self._version = self._value._version

    def keep(self, step: int) -> None:
        """An iteration is over that made this step: its loss is to be recorded."""
        value, self._value = self._value, None
        if type(value) is float:
            now = _now()
            self._held.append((now, step, value))
            if now >= self._due or len(self._held) >= MAX_HELD:
                self.write(now)
        elif isinstance(value, torch.Tensor) and not self._is_logged_by_others():
            # If it was changed in place meanwhile, it is the loss no more.
            if value._version == self._version:
                metrics.log({LOSS: value}, step)
            self._row = 0 if self._lane is None else self._lane.row_next

    def write(self, now: int = 0) -> None:
        """Write what was held back."""
        self._due = (now or clock.now()) + PATIENCE
        held = self._held
        if not held:
            return
        self._held = []
        lane = self._lane = current_lane()
        if lane is None or self._is_logged_by_others():
            return
        word = metrics.word_of(LOSS)
        for time, step, value in held:
            metrics.write_row(lane, time, value, step + STEP_BIAS, word, lane.number)
        self._row = lane.row_next

    def forget(self) -> None:
        """Nothing came of it."""
        self._value = self._scaled = None

    def _is_logged_by_others(self) -> bool:
        """Whether anybody else wrote such a row in this thread since the last look."""
        lane = self._lane
        if lane is None or lane.row_next < self._row:
            # A new segment, or another thread: what is in it is looked at next time.
            self._row = 0 if lane is None else lane.row_next
            return False
        words = [metrics.word_of(LOSS), *metrics._heard.get(LOSS, ())]
        found = any(_is_in_rows(lane, word, self._row) for word in words)
        self._row = lane.row_next
        if found:
            self.is_on = False
        return found


def _is_in_rows(lane: Any, word: int, begin: int) -> bool:
    """Whether a metric with this word for its name is among the rows from here on."""
    mark = word.to_bytes(8, "little")
    at = lane.rows.find(mark, begin, lane.row_next)
    while at >= 0:
        # The name is the last word of a row; elsewhere it is some other number.
        if (at + len(mark) - HEADER_BYTES) % ROW_BYTES == 0:
            return True
        at = lane.rows.find(mark, at + 1, lane.row_next)
    return False


def _scale(original: Callable[..., Any]) -> Callable[..., Any]:
    @looks_like(original)
    def scale(self: Any, outputs: Any) -> Any:
        scaled = original(self, outputs)
        follower = None if _is_traced() else following.follower
        if follower is not None and GRADIENTS.active:
            follower.loss_is_scaled(scaled, outputs)
        return scaled

    return scale


def _zero(original: Callable[..., Any]) -> Callable[..., Any]:
    """``zero_grad`` of an optimizer or a model."""

    @looks_like(original)
    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Of what a compiler looks at, nothing is to be left in its graph.
        follower = None if _is_traced() else following.follower
        if follower is not None and GRADIENTS.active:
            follower.gradients_are_dropped(self)
        return original(self, *args, **kwargs)

    return zero_grad


def _find(patches: Patches) -> Iterator[Patch]:
    yield Patch(torch.amp.grad_scaler.GradScaler, "scale", _scale)
    yield Patch(torch.optim.Optimizer, "zero_grad", _zero)
    yield Patch(torch.nn.Module, "zero_grad", _zero)


GRADIENTS = Patches(_find)
"""What else is done to gradients, or to what they are of."""
clock.follow(globals())
