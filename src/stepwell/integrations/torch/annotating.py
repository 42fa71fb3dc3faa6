"""``annotate``: what it is given, what it switches on, and how that is undone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any

import torch

from stepwell.integrations.torch import collectives as _collectives
from stepwell.integrations.torch import (
    compilation,
    loading,
    models,
    optimizers,
    steps,
)
from stepwell.integrations.torch import transfers as _transfers
from stepwell.integrations.torch.backward import BACKWARD
from stepwell.integrations.torch.patches import Patches
from stepwell.journal.errors import StepwellError

Undo = Callable[[], None]


class Annotations:
    """What one call of ``annotate`` switched on. ``remove()`` switches it off; so does leaving ``with``.

    It keeps none of the annotated objects alive.
    """

    def __init__(self, undo: list[Undo]) -> None:
        self._undo = undo

    def remove(self) -> None:
        """Leave everything as it was before. Doing so twice is harmless."""
        while self._undo:
            self._undo.pop()()

    def __enter__(self) -> Annotations:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()

    def __repr__(self) -> str:
        return f"<torch annotations{'' if self._undo else ', removed'}>"


def annotate(
    model: torch.nn.Module | Iterable[torch.nn.Module] | None = None,
    optimizer: Any = None,
    loader: Any = None,
    *,
    transfers: bool = True,
    collectives: bool = True,
) -> Annotations:
    """Record forward, backward, optimizer steps, batches, transfers and collectives from now on.

    Args:
        model: a module, also compiled or wrapped for distribution; or a list of them.
        optimizer: an optimizer, or a list. Each step of the first one advances the run's step,
            as long as nobody else sets it.
        loader: a DataLoader or whatever else of a class of Python is gone through; or a list.
        transfers: record copies between host and device.
        collectives: record calls of ``torch.distributed``.

    Records go to whatever run is active when they happen. Annotating an object again changes
    nothing; it stays annotated until each of the handles has been removed.
    """
    undo: list[Undo] = []
    try:
        for one in _each(model, torch.nn.Module, "model"):
            undo.append(models.annotate_model(one))
        for one in _each(optimizer, torch.optim.Optimizer, "optimizer"):
            undo.append(optimizers.annotate_optimizer(one))
        for one in _loaders(loader):
            undo.append(loading.annotate_loader(one))
        for patches in _patches(model is not None, transfers, collectives):
            undo.append(patches.install())
    except BaseException:
        Annotations(undo).remove()
        raise
    steps.begin()
    return Annotations(undo)


def _patches(has_model: bool, transfers: bool, collectives: bool) -> Iterator[Patches]:
    yield BACKWARD
    if has_model:
        yield compilation.COMPILATION
    if transfers:
        yield _transfers.TRANSFERS
    if collectives and torch.distributed.is_available():
        yield _collectives.COLLECTIVES


def _each(given: Any, kind: type, what: str) -> list[Any]:
    """The objects that were given: none, one, or several."""
    if given is None:
        return []
    found = [given] if isinstance(given, kind) or not isinstance(given, Iterable) else list(given)
    for one in found:
        if not isinstance(one, kind):
            raise StepwellError(
                f"annotate({what}=…) is given {type(one).__name__}: write a "
                f"{kind.__module__.removesuffix('.modules.module')}.{kind.__name__}, or a list of them"
            )
    return found


def _loaders(given: Any) -> list[Any]:
    if given is None:
        return []
    return list(given) if type(given) in (list, tuple) else [given]
