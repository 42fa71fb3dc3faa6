"""Instrumented objects, and the step counted by the first instrumented optimizer.

The counted step is the number of steps that the first optimizer has made. Once the step is set in any other
way (``run.set_step``, ``ai.update(step=…)``, ``training_iteration()``), counting stops for the rest of the
run.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from stepwell.journal.metrics import context, set_context
from stepwell.journal.state import state


class Instrumentation:
    """The instrumentation of one object: its number of users, and a function that undoes it."""

    def __init__(self, ref: weakref.ref[Any]) -> None:
        self.ref = ref
        self.users = 0
        self.undo: Callable[[Any], None] | None = None


class InstrumentedObjects:
    """A set of objects by identity (not by ``__eq__``), each with its number of users. Keeps none alive."""

    def __init__(self) -> None:
        self._instrumented: dict[int, Instrumentation] = {}
        self._lock = threading.RLock()

    def add(
        self, thing: Any, instrument: Callable[[Any], Callable[[Any], None] | None]
    ) -> Callable[[], None]:
        """Add a user of an object. Return a function to call once, which removes the user.

        The first user causes a call of ``instrument(thing)``. The function that it returns is called when the
        last user is removed, with the object, or with None if that no longer exists.
        """
        key = id(thing)
        with self._lock:
            entry = self._instrumented.get(key)
            if entry is None:
                entry = Instrumentation(weakref.ref(thing, lambda _: self._forget(key)))
                self._instrumented[key] = entry
                try:
                    entry.undo = instrument(thing)
                except BaseException:
                    self._forget(key)
                    raise
            entry.users += 1
        return lambda: self._release(entry)

    def find(self, thing: Any) -> Instrumentation | None:
        """Return the instrumentation of an object. After its removal, the result has 0 ``users``."""
        entry = self._instrumented.get(id(thing))
        return entry if entry is not None and entry.ref() is thing else None

    def __contains__(self, thing: Any) -> bool:
        return self.find(thing) is not None

    def __bool__(self) -> bool:
        return bool(self._instrumented)

    def is_first(self, thing: Any) -> bool:
        """Return whether this object was instrumented before all others."""
        try:
            return next(iter(self._instrumented)) == id(thing)
        except (StopIteration, RuntimeError):
            # The set is empty, or another thread changes it now.
            return False

    def _release(self, entry: Instrumentation) -> None:
        with self._lock:
            entry.users -= 1
            if entry.users:
                return
            thing = entry.ref()
            if thing is not None:
                self._instrumented.pop(id(thing), None)
            if entry.undo is not None:
                entry.undo(thing)

    def _forget(self, key: int) -> None:
        self._instrumented.pop(key, None)


OPTIMIZERS = InstrumentedObjects()
"""The annotated optimizers. Without any, steps are not counted here."""


class CountedStep(int):
    """A step counted here; a step set in another way is a plain int."""


def begin_steps() -> None:
    """Begin with step 0, unless a step is set."""
    if context.step is None and OPTIMIZERS and state.enabled:
        _set_step(0)


def advance_step() -> None:
    """Add 1 to a counted step: the optimizer has made a step."""
    step = context.step
    if type(step) is CountedStep and state.enabled:
        _set_step(step + 1)


def _set_step(step: int) -> None:
    set_context(step, None)
    if context.step == step:
        context.step = CountedStep(step)
