"""Validation and testing loops, and the sanity check before training."""

from __future__ import annotations

from typing import Any

from stepwell.telemetry.live import NO_SPAN, Span
from stepwell.training import calls
from stepwell.training.current import current
from stepwell.vocabulary import StandardTrainingJobSpanName as Name


class Evaluations:
    """Those of one trainer."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self._sanity: list[tuple[Name, Span]] = []
        self._evaluating: dict[str, bool] = {}

    def forget(self) -> None:
        """The trainer has come to an end."""
        self._sanity.clear()

    def start(self, part: calls.Part) -> None:
        """A validation or testing loop starts."""
        job = current.job
        if job is None:
            return
        if self.trainer.sanity_checking:
            self._start_sanity(Name.VALIDATION_LOOP)
            return
        evaluation = job.validation if part == "validation" else job.testing
        # What the user has started goes on until the user ends it.
        self._evaluating[part] = evaluation.span is None
        if evaluation.span is None:
            calls.start_evaluation(part)

    def end(self, part: calls.Part) -> None:
        """It ends."""
        if self._sanity:
            self._end_sanity()
        elif self._evaluating.pop(part, False):
            calls.end_evaluation(part)

    def start_iteration(self, part: calls.Part) -> None:
        """One of its batches."""
        if self._sanity:
            self._start_sanity(Name.VALIDATION_SINGLE_ITERATION)
        elif part in self._evaluating:
            calls.start_evaluation_iteration(part)

    def end_iteration(self, part: calls.Part) -> None:
        """The batch is done."""
        if self._sanity:
            self._end_sanity()
        elif part in self._evaluating:
            calls.end_evaluation_iteration(part)

    def _start_sanity(self, name: Name) -> None:
        """The check before training is recorded, but is no validation: it is in no average."""
        span = calls.start(name)
        if span is not NO_SPAN:
            span.add_attribute("is_sanity_check", True)
        self._sanity.append((name, span))

    def _end_sanity(self) -> None:
        name, _ = self._sanity.pop()
        calls.end(name)
