"""Who follows training beside what is recorded of it: the one ``watch`` that is on, if any."""

from __future__ import annotations

from typing import Any, Protocol


class Follower(Protocol):
    """Is told what training does, as it does it.

    ``is_counting`` is true while it counts operations, ``minds_forward`` is false while it need not be told
    of forward calls in training.
    """

    is_counting: bool
    minds_forward: bool

    def is_led_by(self, batches: Any) -> bool:
        """Whether a batch that is asked for here is one to be trained on, rather than to be looked at."""

    def is_in_another_task(self) -> None:
        """A batch is asked for in a task, perhaps not in the one that training began in."""

    def batch_is_asked_for(self, thread: int) -> None:
        """In this thread the next batch is asked for: the one before is done with."""

    def batch_is_there(self, batch: Any, thread: int) -> None:
        """In this thread the next batch has come."""

    def epoch_ends(self) -> None:
        """There are no more batches."""

    def epoch_is_left(self, batches: int | None) -> None:
        """Nobody wants more batches: the loop was left early, perhaps by an exception."""

    def is_evaluating(self) -> bool:
        """Whether batches that are not trained on are part of a validation."""

    def evaluation_goes_on(self) -> None:
        """Note that a batch was fetched that is not trained on, or that there are no more of them."""

    def other_loader_begins(self) -> bool:
        """Note that another loader is iterated over; return whether that may be a validation."""

    def mode_changes(self, module: Any, mode: bool) -> None:
        """A module is put into training mode, or into evaluation mode."""

    def forward_begins(self, model: Any, args: Any) -> bool | None:
        """An annotated model is called, from outside of any; False: the call is not to be recorded."""

    def forward_ends(self, model: Any) -> None:
        """That call is over."""

    def loss_is_scaled(self, scaled: Any, plain: Any) -> None:
        """A gradient scaler has made one tensor out of another."""

    def gradients_are_dropped(self, owner: Any) -> None:
        """The gradients of a model or an optimizer are set to zero."""

    def backward_begins(self, outputs: Any) -> Any:
        """A backward pass begins; the result is for ``backward_ends``, which is not called with None."""

    def backward_ends(self, looked: Any) -> None:
        """That backward pass has ended."""

    def count_backward(self) -> Any:
        """A context that counts the operations of a backward pass; None: they are not counted."""

    def step_begins(self, optimizer: Any) -> None:
        """An annotated optimizer is about to make a step."""

    def step_ends(self, optimizer: Any) -> None:
        """It has made it."""

    def save_begins(self) -> int | None:
        """Prepare for a checkpoint; return the steps so far, None if it belongs to another training."""

    def follows(self, loader: Any) -> bool:
        """Whether the batches of this loader are those that are trained on."""


class Following:
    """``follower`` is the one of this process."""

    __slots__ = ("follower",)

    def __init__(self) -> None:
        self.follower: Follower | None = None


following = Following()
