"""The run's step, for loops in which nobody else counts.

It is the number of steps that the first optimizer has taken. As soon as anybody sets the step in another
way (``run.set_step``, ``ai.update(step=…)``, ``training_iteration()``) it is theirs for the rest of the run.
"""

from __future__ import annotations

from stepwell.integrations.torch.marks import Marks
from stepwell.journal.metrics import context, set_context
from stepwell.journal.state import state

OPTIMIZERS = Marks()
"""The annotated ones. Without any there is nothing to count, and metrics are numbered as ever."""


class CountedStep(int):
    """A step that was counted here. Whoever else sets one leaves a plain number."""


def begin() -> None:
    """Begin with step 0 where there is none yet."""
    if context.step is None and OPTIMIZERS and state.enabled:
        _set(0)


def advance() -> None:
    """The optimizer has taken a step: what follows belongs to the next one."""
    step = context.step
    if type(step) is CountedStep and state.enabled:
        _set(step + 1)


def _set(step: int) -> None:
    set_context(step, None)
    if context.step == step:
        context.step = CountedStep(step)
