"""Which parameters FSDP1 (``FullyShardedDataParallel``) has cut up, and over which processes.

There a rank's parameters are plain tensors that hold a part of the whole, and nothing in them says so: only
the modules that wrap the model know.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from torch.utils.weak import WeakIdKeyDictionary

from stepwell.journal.errors import warn_once

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

_spread: Any = WeakIdKeyDictionary()


def note_flat_shards(model: Module) -> None:
    """Remember what the model's FSDP1 modules say about its parameters; free where there are none."""
    # Whoever has such a module has loaded this.
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        return
    for module in model.modules():
        if isinstance(module, fsdp.FullyShardedDataParallel):
            _note(module)


def _note(module: Any) -> None:
    try:
        handle = module._handle
        if handle is None or not handle.uses_sharded_strategy:
            return
        own = [handle.flat_param, *(handle.flat_param._params or ())]
        where = (handle.process_group,), handle.device.type
    except AttributeError as error:
        warn_once(
            "diagnostics: FSDP1",
            "this version of FullyShardedDataParallel does not tell how it spreads parameters (%s): "
            "norms are those of each rank's own part; fully_shard (FSDP2) has those of the whole",
            error,
        )
        return
    for parameter in own:
        _spread[parameter] = where


def flat_shard(parameter: Tensor | None) -> tuple[tuple[Any, ...], str] | None:
    """The process groups that have the other parts, and the kind of device they communicate on."""
    found: tuple[tuple[Any, ...], str] | None = _spread.get(parameter) if len(_spread) else None
    return found
