"""Validation, as far as it shows: the model in evaluation mode, or without gradients on another loader.

It begins when the model is put into evaluation mode or, failing that, when the other loader is gone through.
It ends with its last pass or its last batch, whichever is later, or when the model is put into training mode
soon after: computing metrics is part of it, plots and preparations are not. That it is over shows when the
model is put into training mode, when training goes on, when a checkpoint is saved, or when nothing follows.
In between it is set aside: spans of the user are no part of it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from stepwell.integrations.torch.following import following
from stepwell.integrations.torch.patches import Patch, Patches, looks_like
from stepwell.integrations.torch.watching_epochs import nothing
from stepwell.integrations.torch.watching_tasks import set_aside
from stepwell.journal import clock
from stepwell.telemetry.live import NO_SPAN, Span, open_span
from stepwell.training.current import current
from stepwell.training.standard_spans import WORDS, stop_span
from stepwell.vocabulary import StandardTrainingJobSpanName as Name

_is_traced = torch.compiler.is_dynamo_compiling


class Validation:
    """The validation that is under way.

    Attributes:
        span: its span; None while there is none.
        model: returns the model, without the wrapper of a compiler or of DistributedDataParallel; None if
            there is none.
    """

    __slots__ = ("_called", "_is_evaluated", "_latest", "_noted", "_step", "model", "span")

    def __init__(self, model: torch.nn.Module | None) -> None:
        self.span: Span | None = None
        self.model: Callable[[], Any] = nothing if model is None else weakref.ref(model)
        # The model whose call is under way, by its address.
        self._called = 0
        # When it began, should it turn out to be one: the time, and the optimizer steps until then.
        self._noted = 0
        self._step = -1
        self._is_evaluated = False
        # The latest time at which it certainly went on.
        self._latest = 0

    def note(self, step: int, is_evaluated: bool) -> None:
        """Note that a validation may begin now: in evaluation mode, or with another loader."""
        if self.span is None and (self._step != step or is_evaluated > self._is_evaluated):
            self._noted, self._step, self._is_evaluated = clock.now(), step, is_evaluated

    def is_noted(self, step: int) -> bool:
        """Whether one may have begun since the last optimizer step."""
        return self._step == step

    def begin(self, step: int, mode: str | None = None) -> None:
        """Begin at the time that was noted, unless the user records a validation or test."""
        job = current.job
        if job is None:
            return
        if job.validation.span is not None or job.testing.span is not None:
            self.end()
        elif self.span is None:
            start = self._noted if self._step == step else 0
            # In the loop itself: a span of the user's that is open just now may end before it does.
            parent = job.container if job.loop is None else job.loop.span
            span = open_span(WORDS[Name.VALIDATION_LOOP], None, start, parent)
            if span is not NO_SPAN:
                self.span = span
                self._latest = clock.now()
                if mode is not None:
                    span.add_attribute("model_mode", mode)
                set_aside(span, True)

    def forward_begins(self, model: Any, step: int, mode: str | None) -> None:
        """A model is called to be evaluated."""
        if self._called:
            return
        self.begin(step, mode)
        if self.span is not None:
            set_aside(self.span, False)
            self._called = id(model)

    def forward_ends(self, model: Any) -> None:
        """That call is over."""
        if self.span is not None and self._called == id(model):
            self._called = 0
            set_aside(self.span, True)
            self._latest = clock.now()

    def goes_on(self) -> None:
        """A batch of it has come, or there are no more."""
        if self.span is not None:
            self._latest = clock.now()

    def end(self, is_put_into_training: bool = False) -> None:
        """The model is trained on, or nothing follows."""
        span, self.span = self.span, None
        is_called, self._called, self._step = self._called, 0, -1
        if span is not None and span.active:
            now, latest = clock.now(), self._latest
            # Until the model is put into training mode at most as much again. A call may have raised.
            is_soon = is_put_into_training and now - latest <= latest - span.start
            stop_span(span, now if is_called or is_soon else latest)


def _train(original: Callable[..., Any]) -> Callable[..., Any]:
    """``train`` of a module, which ``eval`` calls, too."""

    @looks_like(original)
    def train(self: Any, mode: bool = True) -> Any:
        follower = None if _is_traced() else following.follower
        if follower is not None and MODES.active:
            follower.mode_changes(self, mode)
        return original(self, mode)

    return train


def _find(patches: Patches) -> Iterator[Patch]:
    yield Patch(torch.nn.Module, "train", _train)


MODES = Patches(_find)
