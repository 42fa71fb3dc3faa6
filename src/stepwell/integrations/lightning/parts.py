"""The parts of an iteration: getting the batch, forward, backward and the optimizer's step.

These run for every batch: each is a span that is entered and left, with as little around it as can be.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter_ns as _now
from typing import Any

from stepwell.integrations.wrapping import (
    BACKWARD,
    BACKWARD_TIME,
    FORWARD,
    FORWARD_TIME,
    LOADING,
    LOADING_TIME,
    UPDATE,
)
from stepwell.journal import clock, known
from stepwell.journal.lane import Lane
from stepwell.journal.span import Span, withdraw
from stepwell.telemetry.live import open_span
from stepwell.training.current import current
from stepwell.training.standard_spans import WORDS
from stepwell.vocabulary import StandardTrainingJobSpanName as Name

WHERE = "lightning"
Around = Callable[[Any], Callable[..., Any]]


class Thread:
    """The thread that a trainer trains in: ``lane`` is where it writes, None while that is not known."""

    __slots__ = ("lane",)

    def __init__(self) -> None:
        self.lane: Lane | None = None

    def enter(self, span: Span) -> int:
        """Enter a span in it; when it began."""
        lane = self.lane
        start = 0 if lane is None else known.enter(lane, span._word)
        if not start:
            start = _now()
            span.__enter__()
        return start

    def leave(self, span: Span) -> int:
        """Leave it again, well; when it ended."""
        lane = self.lane
        end = 0 if lane is None else known.leave(lane, span._word)
        if not end:
            span.__exit__(None, None, None)
            end = _now()
        return end

    def timed(self, span: Span, attribute: str) -> Around:
        """Record each call of a method, and count its time in the loop under this name."""

        def around(original: Any) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                job = current.job
                if job is None:
                    return original(*args, **kwargs)
                start = self.enter(span)
                try:
                    result = original(*args, **kwargs)
                except BaseException as error:
                    span.__exit__(type(error), error, None)
                    raise
                job.count_time(attribute, self.leave(span) - start)
                return result

            return call

        return around

    def forward(self, original: Any) -> Callable[..., Any]:
        """Record a forward pass."""
        return self.timed(FORWARD, FORWARD_TIME)(original)

    def backward(self, original: Any) -> Callable[..., Any]:
        """Record a backward pass."""
        return self.timed(BACKWARD, BACKWARD_TIME)(original)

    def optimizer_step(self, original: Any) -> Callable[..., Any]:
        """Record the step itself: what Lightning calls first inside of it is forward and backward."""

        def call(optimizer: Any, closure: Any, *args: Any, **kwargs: Any) -> Any:
            if current.job is None:
                return original(optimizer, closure, *args, **kwargs)
            entered = False

            def then_step(*args: Any, **kwargs: Any) -> Any:
                nonlocal entered
                result = closure(*args, **kwargs)
                # Some optimizers look at the loss several times: all of that is the step.
                if not entered:
                    entered = True
                    self.enter(UPDATE)
                return result

            try:
                result = original(optimizer, then_step, *args, **kwargs)
            except BaseException as error:
                if entered:
                    UPDATE.__exit__(type(error), error, None)
                raise
            if entered:
                self.leave(UPDATE)
            return result

        return call


class Fetches:
    """The fetch of each batch, between two methods that a loop calls around it."""

    __slots__ = ("_start", "_thread")

    def __init__(self, thread: Thread) -> None:
        self._thread = thread
        self._start = 0

    def before(self, original: Any) -> Callable[[], None]:
        """Around what is called before it."""

        def call() -> None:
            original()
            if current.job is not None:
                self._start = self._thread.enter(LOADING)

        return call

    def after(self, original: Any) -> Callable[[], None]:
        """Around what is called after it, also when it failed."""

        def call() -> None:
            start, self._start = self._start, 0
            error = sys.exc_info()[1] if start else None
            if start and (error is None or not _is_passing(error, sys._getframe(1))):
                end = self._thread.leave(LOADING)
                if current.job is not None:
                    current.job.count_time(LOADING_TIME, end - start)
            elif isinstance(error, StopIteration):
                # There was no further batch.
                withdraw(LOADING)
            elif error is not None:
                LOADING.__exit__(type(error), error, None)
            original()

        return call


def _is_passing(error: BaseException, frame: Any) -> bool:
    """Whether an exception goes through this frame, rather than being handled farther out."""
    trace = error.__traceback__
    return trace is not None and trace.tb_frame is frame


class ManualSteps:
    """A training step that calls backward and the optimizers itself: forward is what comes before."""

    def __init__(self, thread: Thread) -> None:
        self._thread = thread
        self._is_forward = False
        # When an optimizer's step ended: the next forward may have begun then.
        self._since = 0

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
        recorded = self._thread.backward(original)

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._is_forward:
                self._leave()
            elif self._since and current.job is not None:
                open_span(WORDS[Name.MODEL_FORWARD], None, self._since).stop()
                self._since = 0
            return recorded(*args, **kwargs)

        return call

    def update(self, original: Any) -> Callable[..., Any]:
        """Around an optimizer's step, behind which the next forward may begin."""
        recorded = self._thread.optimizer_step(original)

        def call(*args: Any, **kwargs: Any) -> Any:
            self._leave()
            result = recorded(*args, **kwargs)
            self._since = _now()
            return result

        return call


clock.follow(globals())
