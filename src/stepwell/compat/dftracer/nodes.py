"""Words of the `ai` tree as enums, and nodes outside it."""

from __future__ import annotations

from enum import Enum
from typing import Any

from stepwell.annotations.node import Node
from stepwell.annotations.tree import ai
from stepwell.compat.dftracer.log import DFTRACER_ENABLE
from stepwell.telemetry.events import name_of

INIT_NAME = "init"
ITER_COUNT_NAME = "count"


class _Word(str, Enum):
    """A name or category: a str, also when it is formatted."""

    def __str__(self) -> str:
        return str(self.value)


def _words(name: str, node: Node) -> Any:
    """The children of a node as an enum; what is below ``io`` has one of its own."""
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
    """Return the name under which getting the items of a loop is recorded."""
    return name if name.endswith(".iter") else f"{name}.iter"


class _AnyNode(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Node)


class DFTracerAI(metaclass=_AnyNode):
    """Makes a node outside the `ai` tree; every node is an instance of it."""

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
        """Return a node of this category and name (without one: the category), with these arguments."""
        category = name_of(cat)
        # Below a root of its own: what is set on a root would hold for the whole run.
        node = Node(name_of(name or cat), category, Node(category, category))
        given = {"epoch": epoch, "step": step, "image_idx": image_idx, "image_size": image_size}
        node.update({key: value for key, value in given.items() if value is not None})
        if not (enable and DFTRACER_ENABLE):
            node.disable()
        return node
