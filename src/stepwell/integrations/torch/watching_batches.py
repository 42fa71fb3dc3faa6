"""Loaders that cannot be followed where they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class Feed:
    """Goes through what has a built-in class (a list, a generator), so that it can be followed."""

    def __init__(self, items: Any) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __getattr__(self, name: str) -> Any:
        if name == "_items":
            raise AttributeError(name)
        return getattr(self._items, name)
