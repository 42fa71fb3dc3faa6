"""Validation, detected by evaluation mode, or by passes without gradients on another loader.

A validation begins when the model is put into evaluation mode, else when the other loader is iterated over.
It is over when the model is put into training mode, training continues, a checkpoint is saved, or the run
ends. Its end is its last forward pass or batch, whichever is later; or the switch to training mode, if that
follows soon: time for computing metrics is included, time for plots and preparations is not. Between its
passes the span is set aside, so that spans of the user are not inside it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from stepwell._core import clock
from stepwell.integrations.torch.observer import active
from stepwell.integrations.torch.patches import Patch, Patches
from stepwell.integrations.torch.watcher.asyncio_context import set_aside
from stepwell.integrations.torch.watcher.epochs import nothing
from stepwell.telemetry.span_handle import NO_SPAN, Span, open_span
from stepwell.training.calls import current
from stepwell.training.standard_spans import WORDS, stop_span
from stepwell.vocabulary import StandardTrainingJobSpanName as Name

_is_traced = torch.compiler.is_dynamo_compiling


class Validation:
    """The current validation.

    Attributes:
        span: its span, None if there is no validation.
        model: returns the model, unwrapped from a compiler or DistributedDataParallel; None if there is none.
    """

    __slots__ = ("_called", "_is_evaluated", "_latest", "_noted", "_step", "model", "span")

    def __init__(self, model: torch.nn.Module | None) -> None:
        self.span: Span | None = None
        self.model: Callable[[], Any] = nothing if model is None else weakref.ref(model)
        # Address of the model whose call is open.
        self._called = 0
        # Possible begin: the time, and the number of optimizer steps at that time.
        self._noted = 0
        self._step = -1
        self._is_evaluated = False
        # End of its last forward pass or batch so far.
        self._latest = 0

    def note(self, step: int, is_evaluated: bool) -> None:
        """Note a possible begin: the model is put into evaluation mode, or another loader is used."""
        if self.span is None and (self._step != step or is_evaluated > self._is_evaluated):
            self._noted, self._step, self._is_evaluated = clock.now(), step, is_evaluated

    def is_noted(self, step: int) -> bool:
        """Return whether a validation may have begun since the last optimizer step."""
        return self._step == step

    def begin(self, step: int, mode: str | None = None) -> None:
        """Begin at the noted time, unless the user records a validation or test."""
        job = current.job
        if job is None:
            return
        if job.validation.span is not None or job.testing.span is not None:
            self.end()
        elif self.span is None:
            start = self._noted if self._step == step else 0
            # Directly in the loop: an open span of the user may end before the validation does.
            parent = job.container if job.loop is None else job.loop.span
            span = open_span(WORDS[Name.VALIDATION_LOOP], None, start, parent)
            if span is not NO_SPAN:
                self.span = span
                self._latest = clock.now()
                if mode is not None:
                    span.add_attribute("model_mode", mode)
                set_aside(span, True)

    def forward_begins(self, model: Any, step: int, mode: str | None) -> None:
        """Begin a forward pass of the validation."""
        if self._called:
            return
        self.begin(step, mode)
        if self.span is not None:
            set_aside(self.span, False)
            self._called = id(model)

    def forward_ends(self, model: Any) -> None:
        """End a forward pass of the validation."""
        if self.span is not None and self._called == id(model):
            self._called = 0
            set_aside(self.span, True)
            self._latest = clock.now()

    def note_batch(self) -> None:
        """Note that a batch of the validation was fetched, or that there are no more."""
        if self.span is not None:
            self._latest = clock.now()

    def end(self, is_put_into_training: bool = False) -> None:
        """End the validation."""
        span, self.span = self.span, None
        is_called, self._called, self._step = self._called, 0, -1
        if span is not None and span.active:
            now, latest = clock.now(), self._latest
            # "Soon" is at most as long as the validation so far. A forward pass may have raised.
            is_soon = is_put_into_training and now - latest <= latest - span.start
            stop_span(span, now if is_called or is_soon else latest)


def _train(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replace ``train`` of a module, which ``eval`` calls as well."""

    @wraps(original)
    def train(self: Any, mode: bool = True) -> Any:
        observer = None if _is_traced() else active.observer
        if observer is not None and MODES.active:
            observer.mode_changes(self, mode)
        return original(self, mode)

    return train


MODES = Patches(lambda: [Patch(torch.nn.Module, "train", _train)])
