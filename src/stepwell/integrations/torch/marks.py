"""Which objects are annotated, without keeping them alive."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any


class Mark:
    """One annotated object: by how many users, and how that is undone."""

    def __init__(self, ref: weakref.ref[Any]) -> None:
        self.ref = ref
        self.users = 0
        self.undo: Callable[[Any], None] | None = None


class Marks:
    """A set of objects by identity, whatever their ``__eq__`` says, each with a count of its users."""

    def __init__(self) -> None:
        self._marks: dict[int, Mark] = {}
        self._lock = threading.RLock()

    def add(
        self, thing: Any, do: Callable[[Any], Callable[[Any], None] | None]
    ) -> Callable[[], None]:
        """Mark an object; ``do`` is done for the first mark, and what that returns with the last one.

        That gets the object, or None when it is gone. Returns what takes this mark away, once.
        """
        key = id(thing)
        with self._lock:
            mark = self._marks.get(key)
            if mark is None:
                mark = self._marks[key] = Mark(weakref.ref(thing, lambda _: self._forget(key)))
                try:
                    mark.undo = do(thing)
                except BaseException:
                    self._forget(key)
                    raise
            mark.users += 1
        return lambda: self._release(mark)

    def find(self, thing: Any) -> Mark | None:
        """The mark of an object; it has no users any more when that is unmarked."""
        mark = self._marks.get(id(thing))
        return mark if mark is not None and mark.ref() is thing else None

    def __contains__(self, thing: Any) -> bool:
        return self.find(thing) is not None

    def __bool__(self) -> bool:
        return bool(self._marks)

    def is_first(self, thing: Any) -> bool:
        """Whether of the objects that are marked this is the one that was marked first."""
        try:
            return next(iter(self._marks)) == id(thing)
        except (StopIteration, RuntimeError):
            # Nothing is marked, or another thread marks something just now.
            return False

    def _release(self, mark: Mark) -> None:
        with self._lock:
            mark.users -= 1
            if mark.users:
                return
            thing = mark.ref()
            if thing is not None:
                self._marks.pop(id(thing), None)
            if mark.undo is not None:
                mark.undo(thing)

    def _forget(self, key: int) -> None:
        self._marks.pop(key, None)
