"""Manual optimization: a training step that calls backward and the optimizers itself."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns as _now
from typing import Any

from stepwell.integrations.lightning.parts import optimizer_step
from stepwell.integrations.timing import Timed, TrainingThread
from stepwell.integrations.wrapping import BACKWARD, BACKWARD_TIME, FORWARD, FORWARD_TIME
from stepwell.journal import clock
from stepwell.telemetry.live import open_span
from stepwell.training.current import current
from stepwell.training.standard_spans import WORDS
from stepwell.vocabulary import StandardTrainingJobSpanName as Name


class ManualSteps:
    """The parts of such a step: forward is what comes before backward."""

    def __init__(self, thread: TrainingThread) -> None:
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
        recorded = Timed(original, self._thread, BACKWARD, BACKWARD_TIME)

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
        recorded = optimizer_step(self._thread)(original)

        def call(*args: Any, **kwargs: Any) -> Any:
            self._leave()
            result = recorded(*args, **kwargs)
            self._since = _now()
            return result

        return call


clock.follow(globals())
