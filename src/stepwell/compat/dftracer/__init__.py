"""dftracer's names, recorded by ``stepwell.annotations`` and written by the dftracer export.

    from stepwell.compat.dftracer import ai, dft_fn, dftracer

    log = dftracer.initialize_log("trace.pfw")
    ...
    log.finalize()

With ``DFTRACER_ENABLE=0`` nothing is recorded through these names.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from stepwell.annotations import tree
from stepwell.annotations.node import Node
from stepwell.compat.dftracer.functions import dft_fn
from stepwell.compat.dftracer.log import (
    DFTRACER_ENABLE,
    EntityRelation,
    EntityRole,
    EntityStore,
    TagDType,
    TagType,
    TagValue,
    dftracer,
)
from stepwell.telemetry.events import name_of

__all__ = [
    "DFTRACER_ENABLE",
    "INIT_NAME",
    "ITER_COUNT_NAME",
    "CheckpointEvent",
    "CommunicationEvent",
    "ComputeEvent",
    "DFTracerAI",
    "DataEvent",
    "DataLoaderEvent",
    "DeviceEvent",
    "EntityRelation",
    "EntityRole",
    "EntityStore",
    "IOEvent",
    "OtherEvent",
    "PipelineEvent",
    "ProfileCategory",
    "TagDType",
    "TagType",
    "TagValue",
    "ai",
    "checkpoint",
    "comm",
    "compute",
    "data",
    "dataloader",
    "device",
    "dft_fn",
    "dftracer",
    "get_iter_block_name",
    "get_iter_handle_name",
    "pipeline",
]

ai = tree.ai if DFTRACER_ENABLE else tree.grow()
if not DFTRACER_ENABLE:
    # A separate tree, so that other parts of the program can still record with stepwell's own.
    ai.disable()
checkpoint = ai.checkpoint
comm = ai.comm
compute = ai.compute
data = ai.data
dataloader = ai.dataloader
device = ai.device
pipeline = ai.pipeline

INIT_NAME = "init"
ITER_COUNT_NAME = "count"


class _Word(str, Enum):
    """A name or category. Formats as the plain string."""

    def __str__(self) -> str:
        return str(self.value)


def _words(name: str, node: Node) -> Any:
    """Return the children of a node as an enum, without ``io``, which has its own."""
    keys = [key for key in vars(node) if key != "io"]
    return _Word(name, {key.upper(): key for key in keys}, module=__name__)  # type: ignore[call-overload]


ProfileCategory: Any = _words("ProfileCategory", ai)
ComputeEvent: Any = _words("ComputeEvent", ai.compute)
DataEvent: Any = _words("DataEvent", ai.data)
DataLoaderEvent: Any = _words("DataLoaderEvent", ai.dataloader)
CommunicationEvent: Any = _words("CommunicationEvent", ai.comm)
DeviceEvent: Any = _words("DeviceEvent", ai.device)
CheckpointEvent: Any = _words("CheckpointEvent", ai.checkpoint)
PipelineEvent: Any = _words("PipelineEvent", ai.pipeline)
OtherEvent: Any = _words("OtherEvent", ai.other)
IOEvent: Any = _words("IOEvent", ai.other.io)


def get_iter_block_name(name: str) -> str:
    """Return the name under which the body of a loop is recorded."""
    return name if name.endswith(".block") else f"{name}.block"


def get_iter_handle_name(name: str) -> str:
    """Return the name under which fetching the items of a loop is recorded."""
    return name if name.endswith(".iter") else f"{name}.iter"


class _AnyNode(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Node)


class DFTracerAI(metaclass=_AnyNode):
    """Creates a node outside the `ai` tree. Every node is an instance of this class."""

    def __new__(  # type: ignore[misc]
        cls,
        *,
        cat: str,
        name: str | None = None,
        epoch: int | None = None,
        step: int | None = None,
        image_idx: int | None = None,
        image_size: float | None = None,
        enable: bool = True,
    ) -> Node:
        """Return a node with this category, name (default: the category) and arguments."""
        category = name_of(cat)
        # Its own root, because attributes set on the root of `ai` apply to the whole run.
        node = Node(name_of(name or cat), category, Node(category, category))
        given = {"epoch": epoch, "step": step, "image_idx": image_idx, "image_size": image_size}
        node.update({key: value for key, value in given.items() if value is not None})
        if not (enable and DFTRACER_ENABLE):
            node.disable()
        return node
