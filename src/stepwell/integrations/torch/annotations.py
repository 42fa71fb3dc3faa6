"""``annotate``: record the spans of models, optimizers and loaders without changing the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from stepwell._core.errors import StepwellError
from stepwell.integrations.torch import collectives as _collectives
from stepwell.integrations.torch import hooks, instrumentation, loaders
from stepwell.integrations.torch import transfers as _transfers
from stepwell.integrations.torch.backward import BACKWARD
from stepwell.integrations.torch.patches import Patches

Undo = Callable[[], None]


class Annotations:
    """The handle of one ``annotate`` call. ``remove()``, or leaving ``with``, undoes it.

    It does not keep the annotated objects alive.
    """

    def __init__(self, undo: list[Undo]) -> None:
        self._undo = undo

    def remove(self) -> None:
        """Stop recording and remove all hooks and patches. A second call does nothing."""
        while self._undo:
            self._undo.pop()()

    def __enter__(self) -> Annotations:
        return self

    def __exit__(self, *exception: object) -> None:
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
        model: a module, which may be compiled or wrapped for distributed training; or a list of modules.
        optimizer: an optimizer or a list. Each step of the first one advances the run's step, unless the step
            is set in another way.
        loader: a DataLoader, another iterable whose class is written in Python, or a list of them.
        transfers: record copies between host and device.
        collectives: record calls of ``torch.distributed``.

    Records go to the run that is active at that moment. An object that is annotated twice is recorded once,
    until both handles are removed.
    """
    undo: list[Undo] = []
    try:
        for each in objects_of(model, torch.nn.Module, "model"):
            undo.append(hooks.annotate_model(each))
        for each in objects_of(optimizer, torch.optim.Optimizer, "optimizer"):
            undo.append(hooks.annotate_optimizer(each))
        for each in _loaders(loader):
            undo.append(loaders.annotate_loader(each))
        for patches in _patches(model is not None, transfers, collectives):
            undo.append(patches.install())
    except BaseException:
        Annotations(undo).remove()
        raise
    instrumentation.begin_steps()
    return Annotations(undo)


def _patches(has_model: bool, transfers: bool, collectives: bool) -> Iterator[Patches]:
    yield BACKWARD
    if has_model:
        yield hooks.COMPILATION
    if transfers:
        yield _transfers.TRANSFERS
    if collectives and torch.distributed.is_available():
        yield _collectives.COLLECTIVES


def objects_of(given: Any, kind: type, what: str) -> list[Any]:
    """Return the given objects as a list: none, one or several. Raise StepwellError for another type."""
    if given is None:
        return []
    is_single = isinstance(given, kind) or not isinstance(given, Iterable)
    objects = [given] if is_single else list(given)
    for each in objects:
        if not isinstance(each, kind):
            wanted = f"{kind.__module__.removesuffix('.modules.module')}.{kind.__name__}"
            raise StepwellError(
                f"{what} must be a {wanted} or a list of them, got {type(each).__name__}"
            )
    return objects


def _loaders(given: Any) -> list[Any]:
    if given is None:
        return []
    return list(given) if type(given) in (list, tuple) else [given]
