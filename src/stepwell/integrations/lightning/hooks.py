"""Wrappers of Lightning methods for parts of a batch that are not a call of their own: fetch and update."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from stepwell.integrations.timing import TrainingThread
from stepwell.integrations.wrappers import LOADING, LOADING_TIME, UPDATE
from stepwell.journal.span import withdraw
from stepwell.training.calls import current

WHERE = "lightning"


def optimizer_step(thread: TrainingThread) -> Callable[[Any], Callable[..., Any]]:
    """Return a wrapper that records the optimizer step without its closure (forward and backward)."""

    def around(original: Any) -> Callable[..., Any]:
        def call(optimizer: Any, closure: Any, *args: Any, **kwargs: Any) -> Any:
            if current.job is None:
                return original(optimizer, closure, *args, **kwargs)
            entered = False

            def then_step(*args: Any, **kwargs: Any) -> Any:
                nonlocal entered
                result = closure(*args, **kwargs)
                # Some optimizers call the closure several times: the later calls are part of the step.
                if not entered:
                    entered = True
                    thread.enter(UPDATE)
                return result

            try:
                result = original(optimizer, then_step, *args, **kwargs)
            except BaseException as error:
                if entered:
                    UPDATE.__exit__(type(error), error, None)
                raise
            if entered:
                thread.leave(UPDATE)
            return result

        return call

    return around


class Fetches:
    """Records the fetch of each batch, between two methods that a loop calls before and after it.

    ``is_counted``: whether the time is added to the phases of training.
    """

    __slots__ = ("_is_counted", "_start", "_thread")

    def __init__(self, thread: TrainingThread, is_counted: bool) -> None:
        self._thread = thread
        self._is_counted = is_counted
        self._start = 0

    def before(self, original: Any) -> Callable[[], None]:
        """Wrap the method that is called before a fetch."""

        def call() -> None:
            original()
            if current.job is not None:
                self._start = self._thread.enter(LOADING)

        return call

    def after(self, original: Any) -> Callable[[], None]:
        """Wrap the method that is called after a fetch, even if the fetch failed."""

        def call() -> None:
            start, self._start = self._start, 0
            error = sys.exc_info()[1] if start else None
            if start and (error is None or not _is_passing(error, sys._getframe(1))):
                end = self._thread.leave(LOADING)
                phases = self._thread.phases
                if phases is not None and self._is_counted:
                    phases[LOADING_TIME] = phases.get(LOADING_TIME, 0) + end - start
            elif isinstance(error, StopIteration):
                # There was no further batch.
                withdraw(LOADING)
            elif error is not None:
                LOADING.__exit__(type(error), error, None)
            original()

        return call


def _is_passing(error: BaseException, frame: Any) -> bool:
    """Return whether an exception passes through this frame, rather than being handled farther out."""
    trace = error.__traceback__
    return trace is not None and trace.tb_frame is frame
