"""Hooks of PyTorch that note each entry that comes or goes while they are iterated over."""

from __future__ import annotations

import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch.nn.modules import module
from torch.optim import optimizer

changes: list[str] = []
"""Where entries came or went while the dict was iterated over: the lines of code, one text each."""
GLOBAL = {
    optimizer: ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"),
    module: ("_global_forward_pre_hooks", "_global_forward_hooks"),
}


class GuardedHooks(OrderedDict[Any, Any]):
    """As PyTorch's own, but strict: a change counts also at the last entry, where PyTorch misses it."""

    iterations = 0

    def values(self) -> Any:
        return self._guarded(lambda key: self[key])

    def items(self) -> Any:
        return self._guarded(lambda key: (key, self[key]))

    def __setitem__(self, key: Any, value: Any) -> None:
        if key not in self:
            self._change()
        super().__setitem__(key, value)

    def __delitem__(self, key: Any) -> None:
        self._change()
        super().__delitem__(key)

    def move_to_end(self, key: Any, last: bool = True) -> None:
        self._change()
        super().move_to_end(key, last)

    def _guarded(self, entry: Callable[[Any], Any]) -> Iterator[Any]:
        self.iterations += 1
        try:
            for key in list(self):
                if key in self:
                    yield entry(key)
        finally:
            self.iterations -= 1

    def _change(self) -> None:
        if self.iterations:
            changes.append("".join(traceback.format_stack(limit=12)))


def guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guard the hooks of all optimizers and modules that are made from now on, and those of all of them."""
    changes.clear()
    for owner, names in GLOBAL.items():
        monkeypatch.setattr(owner, "OrderedDict", GuardedHooks)
        for name in names:
            monkeypatch.setattr(owner, name, GuardedHooks(getattr(owner, name)))
