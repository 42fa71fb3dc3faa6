"""The observer of a training: hooks and patches call it as training proceeds."""

from __future__ import annotations

from typing import Any, Protocol


class TrainingObserver(Protocol):
    """Receives the events of a training, from the hooks of models, optimizers and loaders.

    Attributes:
        is_counting: whether it counts floating point operations now.
        wants_forward: False while it needs no events about forward passes in training mode.
    """

    is_counting: bool
    wants_forward: bool

    def is_led_by(self, batches: Any) -> bool:
        """Return whether the batches of this iterator are trained on, rather than only inspected."""

    def is_in_another_task(self) -> None:
        """A batch is requested in an asyncio task, which may not be the one that training began in."""

    def batch_requested(self, thread: int) -> None:
        """The next batch is requested in this thread: the previous one is done."""

    def batch_ready(self, batch: Any, thread: int) -> None:
        """The next batch has arrived in this thread."""

    def epoch_ends(self) -> None:
        """The loader is exhausted."""

    def epoch_is_left(self, batches: int | None) -> None:
        """The loop was left early, by ``break`` or an exception, after this many batches if known."""

    def is_evaluating(self) -> bool:
        """Return whether batches that are not trained on are part of a validation."""

    def evaluation_continues(self) -> None:
        """A batch that is not trained on was fetched, or its loader is exhausted."""

    def other_loader_begins(self) -> bool:
        """Another loader is iterated over. Return whether that may be a validation."""

    def mode_changes(self, module: Any, mode: bool) -> None:
        """A module is put into training mode (True) or evaluation mode (False)."""

    def forward_begins(self, model: Any, args: Any) -> bool | None:
        """An annotated model is called. Return False if the call must not be recorded."""

    def forward_ends(self, model: Any) -> None:
        """The call of an annotated model has ended."""

    def loss_is_scaled(self, scaled: Any, plain: Any) -> None:
        """A gradient scaler has computed one tensor from another."""

    def gradients_are_dropped(self, owner: Any) -> None:
        """The gradients of a model or an optimizer are set to zero."""

    def backward_begins(self, outputs: Any) -> Any:
        """A backward pass begins. A result other than None is passed to ``backward_ends``."""

    def backward_ends(self, looked: Any) -> None:
        """The backward pass has ended; ``looked`` is the result of ``backward_begins``."""

    def count_backward(self) -> Any:
        """Return a context manager that counts the operations of a backward pass, or None."""

    def step_begins(self, optimizer: Any) -> None:
        """An annotated optimizer is about to make a step."""

    def step_ends(self, optimizer: Any) -> None:
        """An annotated optimizer has made a step."""

    def save_begins(self) -> int | None:
        """A checkpoint is about to be saved. Return the steps so far, None if it is not of this training."""

    def follows(self, loader: Any) -> bool:
        """Return whether the training iterates over this loader."""


class ActiveObserver:
    """Holds the ``observer`` of this process: the training of the active ``watch``, if any."""

    __slots__ = ("observer",)

    def __init__(self) -> None:
        self.observer: TrainingObserver | None = None


active = ActiveObserver()
