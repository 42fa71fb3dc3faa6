"""Replacing attributes of PyTorch while something is annotated, and putting them back.

A set of patches is installed by its first user and taken away with its last one. If somebody else has
replaced the same attribute meanwhile, ours stays below theirs and passes every call on.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any

Around = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Makes the replacement of a function, given the function."""

_absent: Any = object()
_lock = threading.RLock()


class Patch:
    """One attribute of a class or module."""

    def __init__(self, owner: Any, name: str, around: Around) -> None:
        self.owner = owner
        self.name = name
        self._around = around
        self._own: Any = _absent
        self._made: Any = None

    def install(self) -> None:
        """Put the replacement in place."""
        own = vars(self.owner).get(self.name, _absent)
        if self._made is not None and own is not _absent and own is self._made:
            return
        original = getattr(self.owner, self.name)
        if self._made is not None and _wraps(original, self._made):
            # Still there, below what somebody put over it.
            return
        self._own = own
        self._made = self._around(original)
        setattr(self.owner, self.name, self._made)

    def remove(self) -> None:
        """Put back what was there."""
        if vars(self.owner).get(self.name) is not self._made:
            return
        if self._own is _absent:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self._own)
        self._made = None


class Patches:
    """Patches that come and go together; ``active`` says whether anybody uses them."""

    def __init__(self, find: Callable[[Patches], Iterable[Patch]]) -> None:
        self._find = find
        self._patches: dict[tuple[int, str], Patch] = {}
        self._users = 0
        self.active = False

    def install(self) -> Callable[[], None]:
        """Become a user of them; what is returned ends that."""
        with _lock:
            self._users += 1
            self.active = True
            if self._users == 1:
                # There may be more than before: modules that were imported meanwhile.
                for patch in self._find(self):
                    self._patches.setdefault((id(patch.owner), patch.name), patch)
                for patch in self._patches.values():
                    patch.install()
        return self._remove

    def _remove(self) -> None:
        with _lock:
            self._users -= 1
            if self._users == 0:
                self.active = False
                for patch in self._patches.values():
                    patch.remove()


def _wraps(function: Any, made: Any) -> bool:
    """Whether one function says that the other is below it."""
    while function is not None:
        if function is made:
            return True
        function = getattr(function, "__wrapped__", None)
    return False


def looks_like(original: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: a replacement with the name, the signature and the documentation of the original."""
    return functools.wraps(original)
