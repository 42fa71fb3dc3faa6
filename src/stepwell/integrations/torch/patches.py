"""Patches: attributes of PyTorch that are replaced while something is annotated.

A set of patches is installed by its first user and removed with its last one. If other code has replaced
the same attribute in between, our replacement stays below theirs and passes every call on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

Around = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Returns the replacement of a function."""

_absent: Any = object()
_lock = threading.RLock()


class Patch:
    """One attribute of a class or module."""

    def __init__(self, owner: Any, name: str, around: Around) -> None:
        self.owner = owner
        self.name = name
        self._around = around
        self._own: Any = _absent
        self._replacement: Any = None

    def install(self) -> None:
        """Put the replacement in place."""
        own = vars(self.owner).get(self.name, _absent)
        if self._replacement is not None and own is not _absent and own is self._replacement:
            return
        original = getattr(self.owner, self.name)
        if self._replacement is not None and _wraps(original, self._replacement):
            # Still installed, below a replacement by other code.
            return
        self._own = own
        self._replacement = self._around(original)
        setattr(self.owner, self.name, self._replacement)

    def remove(self) -> None:
        """Restore the original, unless other code has replaced the attribute since."""
        if vars(self.owner).get(self.name) is not self._replacement:
            return
        if self._own is _absent:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self._own)
        self._replacement = None


class Patches:
    """A set of patches that are installed together; ``active`` while it has users.

    ``find`` is called by the first user: it may patch modules that were not imported before.
    """

    def __init__(self, find: Callable[[], Iterable[Patch]]) -> None:
        self._find = find
        self._patches: dict[tuple[int, str], Patch] = {}
        self._users = 0
        self.active = False

    def install(self) -> Callable[[], None]:
        """Add a user, and install the patches for the first one. Return a function that removes the user."""
        with _lock:
            self._users += 1
            self.active = True
            if self._users == 1:
                for patch in self._find():
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


def _wraps(function: Any, replacement: Any) -> bool:
    """Return whether a function is, or wraps, ``replacement``."""
    while function is not None:
        if function is replacement:
            return True
        function = getattr(function, "__wrapped__", None)
    return False
