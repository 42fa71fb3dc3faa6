"""Wrapping methods of single objects, for as long as a trainer runs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class Wrappings:
    """Methods that were replaced on their objects; ``remove()`` puts all back.

    Classes are left alone, and so are other objects of them.
    """

    def __init__(self) -> None:
        self._wrapped: list[tuple[Any, str, Any]] = []

    def wrap(self, owner: Any, name: str, around: Callable[[Any], Callable[..., Any]]) -> None:
        """Replace a method by what ``around`` makes of it. What is not there stays away."""
        original = getattr(owner, name, None)
        if not callable(original):
            return
        made = functools.wraps(original)(around(original))
        self._wrapped.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, made)

    def remove(self) -> None:
        """Leave every object as it was before."""
        while self._wrapped:
            owner, name, before = self._wrapped.pop()
            if before is None:
                vars(owner).pop(name, None)
            else:
                setattr(owner, name, before)
