"""Validation, as far as it shows: forward passes in evaluation mode between two batches of training.

It begins with the first of them and ends with the last. That it was the last one shows only later, so in
between it is set aside: what the loop does meanwhile, such as saving a checkpoint, is no part of it.
"""

from __future__ import annotations

from typing import Any

from stepwell.integrations.torch.watching_tasks import set_aside
from stepwell.journal import clock
from stepwell.telemetry.live import NO_SPAN, Span, open_span
from stepwell.training.current import current
from stepwell.training.standard_spans import WORDS, stop_span
from stepwell.vocabulary import StandardTrainingJobSpanName as Name


class Validation:
    """The validation that is under way: ``span`` is None while there is none."""

    __slots__ = ("_last", "_model", "span")

    def __init__(self) -> None:
        self.span: Span | None = None
        # The model whose call is under way, by its address.
        self._model = 0
        self._last = 0

    def forward_begins(self, model: Any) -> None:
        """A model in evaluation mode is called: that is validation, unless the user says what it is."""
        job = current.job
        if self._model or job is None or job.loop is None:
            return
        if job.validation.span is not None or job.testing.span is not None:
            self.end()
            return
        if self.span is None:
            # In the loop itself: a span of the user's that is open just now may end before it does.
            span = open_span(WORDS[Name.VALIDATION_LOOP], parent=job.loop.span)
            self.span = None if span is NO_SPAN else span
        else:
            set_aside(self.span, False)
        self._model = id(model)

    def forward_ends(self, model: Any) -> None:
        """That call is over."""
        if self.span is not None and self._model == id(model):
            self._model = 0
            self._last = clock.now()
            set_aside(self.span, True)

    def end(self) -> None:
        """The model is trained on, or nothing follows."""
        span, self.span = self.span, None
        # One that was interrupted has no last pass.
        last, self._last = 0 if self._model else self._last, 0
        self._model = 0
        if span is not None and span.active:
            stop_span(span, last or clock.now())
