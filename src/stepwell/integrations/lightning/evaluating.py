"""Validation and testing loops, and the sanity check before training."""

from __future__ import annotations

from collections.abc import Callable
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
        self._is_mode_known = False
        # The part whose loop is running, and the one whose hooks at the end are being called.
        self._running: calls.Part | None = None
        self._ending: calls.Part | None = None

    def forget(self) -> None:
        """The trainer has come to an end."""
        self._sanity.clear()
        self._running = self._ending = None

    def around_run(self, part: calls.Part) -> Callable[[Any], Callable[..., Any]]:
        """Wrap ``run`` of a loop, which creates the loaders first."""

        def around(original: Any) -> Callable[..., Any]:
            def run(*args: Any, **kwargs: Any) -> Any:
                self._running = part
                try:
                    result = original(*args, **kwargs)
                    self.finish()
                    return result
                finally:
                    self._running = None

            return run

        return around

    def around_reset(self, original: Any) -> Callable[..., Any]:
        """Wrap ``reset`` of a loop, which creates the iterators: the evaluation begins here."""

        def reset(*args: Any, **kwargs: Any) -> Any:
            if self._running is not None:
                self._start(self._running)
            return original(*args, **kwargs)

        return reset

    def _start(self, part: calls.Part) -> None:
        if current.job is None:
            return
        if self.trainer.sanity_checking:
            self._start_sanity(Name.VALIDATION_LOOP)
            return
        # What the user has started goes on until the user ends it.
        self._evaluating[part] = not _is_open(part)
        self._is_mode_known = False
        if self._evaluating[part]:
            calls.start_evaluation(part)

    def end(self, part: calls.Part) -> None:
        """Note that metrics are complete; what other callbacks do now still belongs to the loop."""
        self._ending = part

    def finish(self) -> None:
        """End the loop, unless it has ended: it returns, or a checkpoint is saved at its end."""
        part, self._ending = self._ending, None
        if part is None:
            return
        if self._sanity:
            self._end_sanity()
        elif self._evaluating.pop(part, False) and _is_open(part):
            calls.end_evaluation(part)

    def start_iteration(self, part: calls.Part) -> None:
        """One of its batches."""
        if self._sanity:
            self._start_sanity(Name.VALIDATION_SINGLE_ITERATION)
        elif part in self._evaluating:
            if not self._is_mode_known:
                self._note_mode(part)
            calls.start_evaluation_iteration(part)

    def end_iteration(self, part: calls.Part) -> None:
        """The batch is done."""
        if self._sanity:
            self._end_sanity()
        elif part in self._evaluating:
            calls.end_evaluation_iteration(part)

    def _note_mode(self, part: calls.Part) -> None:
        """Record when a model is evaluated in training mode: its module can override what sets the mode."""
        self._is_mode_known = True
        span = _span_of(part)
        if span is not None and self.trainer.lightning_module.training:
            span.add_attribute("model_mode", "train")

    def _start_sanity(self, name: Name) -> None:
        """The check before training is recorded, but is no validation: it is in no average."""
        span = calls.start(name)
        if span is not NO_SPAN:
            span.add_attribute("is_sanity_check", True)
        self._sanity.append((name, span))

    def _end_sanity(self) -> None:
        name, _ = self._sanity.pop()
        calls.end(name)


def _is_open(part: calls.Part) -> bool:
    return _span_of(part) is not None


def _span_of(part: calls.Part) -> Span | None:
    job = current.job
    if job is None:
        return None
    return (job.validation if part == "validation" else job.testing).span
