"""Manual optimization: a training step that calls backward and the optimizers itself."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns as _now
from typing import TYPE_CHECKING, Any

import torch

from stepwell.integrations.lightning.parts import WHERE, optimizer_step
from stepwell.integrations.timing import Timed, TrainingThread
from stepwell.integrations.torch.watching import optimizer_names
from stepwell.integrations.torch.watching_loss import Loss, Losses
from stepwell.integrations.wrapping import BACKWARD, BACKWARD_TIME, FORWARD, FORWARD_TIME
from stepwell.journal import clock
from stepwell.journal.errors import report
from stepwell.telemetry.live import open_span
from stepwell.training.current import current
from stepwell.training.standard_spans import WORDS
from stepwell.vocabulary import StandardTrainingJobSpanName as Name

if TYPE_CHECKING:
    from stepwell.journal.lane import Lane


class ManualSteps:
    """The parts of such a step: all code before backward counts as forward.

    With several optimizers each one has a metric ``loss/<name>``, named after the part of the module that it
    trains. The loss is what ``manual_backward()`` is called on.
    """

    def __init__(self, thread: TrainingThread) -> None:
        self._thread = thread
        # Of one optimizer, or of several.
        self._loss: Loss | None = None
        self._losses: Losses | None = None
        self._is_forward = False
        # When an optimizer's step ended: the next forward may have begun then.
        self._since = 0

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy of the trainer gets a new, empty one.
        return ManualSteps, (self._thread,)

    def begin(self, module: Any, optimizers: list[Any]) -> None:
        """Start a fit with these optimizers."""
        self.end()
        if len(optimizers) == 1:
            self._loss = Loss(True)
            self._loss.begin(True)
        elif optimizers:
            parts = dict(module.named_children())
            names = optimizer_names(parts, list(parts.values()), None, optimizers)
            self._losses = Losses(True, dict(zip(names, optimizers, strict=True)))
            self._losses.begin(True)

    def end(self) -> None:
        """End the fit."""
        for losses in (self._loss, self._losses):
            if losses is not None:
                losses.finish()
        self._loss = self._losses = None

    def write_loss(self, step: int, lane: Lane | None) -> None:
        """Write the loss of a step whose training step returned none."""
        if self._loss is not None:
            self._loss.write(step, lane)

    def step(self, original: Any) -> Callable[..., Any]:
        """Around the training step."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if current.job is None:
                return original(*args, **kwargs)
            self._since = self._thread.enter(FORWARD)
            self._is_forward = True
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                self._leave(error)
                raise
            self._leave()
            return result

        return call

    def _leave(self, error: BaseException | None = None) -> None:
        if self._is_forward:
            self._is_forward = False
            FORWARD.__exit__(None if error is None else type(error), error, None)
            if current.job is not None:
                current.job.count_time(FORWARD_TIME, _now() - self._since)
        self._since = 0

    def backward(self, original: Any) -> Callable[..., Any]:
        """Around backward, which ends a forward."""
        recorded = Timed(original, self._thread, BACKWARD, BACKWARD_TIME)

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._is_forward:
                self._leave()
            elif self._since and current.job is not None:
                open_span(WORDS[Name.MODEL_FORWARD], None, self._since).stop()
                self._since = 0
            looked = self._backward_begins(args, kwargs)
            result = recorded(*args, **kwargs)
            if looked is not None:
                self._backward_ends(looked)
            return result

        return call

    def _backward_begins(self, args: Any, kwargs: Any) -> Any:
        """Note the loss; the result is for ``_backward_ends``."""
        try:
            loss = args[0] if args else kwargs.get("closure_loss")
            if current.job is None or not isinstance(loss, torch.Tensor):
                return None
            if self._loss is not None:
                self._loss.backward_begins((loss,))
            return None if self._losses is None else self._losses.backward_begins((loss,))
        except Exception as error:
            report(WHERE, error)
            return None

    def _backward_ends(self, looked: Any) -> None:
        try:
            if self._losses is not None:
                self._losses.backward_ends(looked)
        except Exception as error:
            report(WHERE, error)

    def _write_losses(self, optimizer: Any) -> None:
        """Write the loss of the step that this optimizer, one of several, has made."""
        try:
            loop = None if current.job is None else current.job.loop
            if self._losses is not None and loop is not None:
                self._losses.write(loop._step, self._thread.lane, optimizer)
        except Exception as error:
            report(WHERE, error)

    def update(self, original: Any) -> Callable[..., Any]:
        """Around an optimizer's step, behind which the next forward may begin."""
        recorded = optimizer_step(self._thread)(original)

        def call(*args: Any, **kwargs: Any) -> Any:
            self._leave()
            result = recorded(*args, **kwargs)
            self._since = _now()
            if self._losses is not None:
                self._write_losses(args[0])
            return result

        return call


clock.follow(globals())
