"""Checkpoints of a watched training: ``torch.save`` and ``torch.distributed.checkpoint``.

A call in the training thread, inside the training loop, is recorded as a checkpoint save if it writes to a
file. Of nested calls, only the outermost one is recorded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any

import torch

from stepwell._core.errors import report
from stepwell.integrations.torch.observer import active
from stepwell.integrations.torch.patches import Patch, Patches
from stepwell.integrations.wrappers import record_save

DISTRIBUTED = ("torch.distributed.checkpoint", "torch.distributed.checkpoint.state_dict_saver")


def _save(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replace ``torch.save(obj, f)``."""

    @wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        file = args[1] if len(args) > 1 else kwargs.get("f")
        path = _path_of(file)
        step = None if path is None else _step()
        if step is None:
            return original(*args, **kwargs)
        return record_save(original, args, kwargs, step=step, path=path)

    return save


def _save_distributed(original: Callable[..., Any], strategy: str = "sync") -> Callable[..., Any]:
    """Replace ``save`` or ``async_save(state_dict, checkpoint_id=…)`` of ``torch.distributed.checkpoint``."""

    @wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        step = _step()
        if step is None:
            return original(*args, **kwargs)
        path = _path_of(kwargs.get("checkpoint_id"))
        return record_save(
            original, args, kwargs, step=step, path=path, is_whole=False, strategy=strategy
        )

    return save


def _step() -> int | None:
    """Return the optimizer steps so far, None if a save is not part of the watched training."""
    observer = active.observer
    try:
        return observer.save_begins() if observer is not None and SAVES.active else None
    except Exception as error:
        report("checkpoint", error)
        return None


def _path_of(file: Any) -> str | None:
    """Return the path of a file, None for a buffer in memory."""
    try:
        if not isinstance(file, str | os.PathLike):
            file = getattr(file, "name", None)
        return os.fsdecode(file) if isinstance(file, str | os.PathLike) else None
    except Exception:
        # ``name`` of a file object of another library may be a property that fails.
        return None


def _find() -> Iterator[Patch]:
    yield Patch(torch, "save", _save)
    yield Patch(torch.serialization, "save", _save)
    for name in DISTRIBUTED:
        # Not imported here, because that takes seconds: a program that uses it has imported it.
        module = sys.modules.get(name)
        if module is not None and hasattr(module, "async_save"):
            yield Patch(module, "save", _save_distributed)
            yield Patch(module, "async_save", partial(_save_distributed, strategy="async"))


SAVES = Patches(_find)
