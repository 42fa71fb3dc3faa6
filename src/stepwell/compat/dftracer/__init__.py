"""The names of dftracer for what ``stepwell.annotations`` and the dftracer export have.

    from stepwell.compat.dftracer import ai, dft_fn, dftracer

    log = dftracer.initialize_log("trace.pfw")
    ...
    log.finalize()

With ``DFTRACER_ENABLE=0`` they record nothing.
"""

from __future__ import annotations

from stepwell.annotations import tree
from stepwell.compat.dftracer.functions import dft_fn
from stepwell.compat.dftracer.log import DFTRACER_ENABLE, dftracer
from stepwell.compat.dftracer.nodes import (
    INIT_NAME,
    ITER_COUNT_NAME,
    CheckpointEvent,
    CommunicationEvent,
    ComputeEvent,
    DataEvent,
    DataLoaderEvent,
    DeviceEvent,
    DFTracerAI,
    IOEvent,
    OtherEvent,
    PipelineEvent,
    ProfileCategory,
    get_iter_block_name,
    get_iter_handle_name,
)
from stepwell.compat.dftracer.tags import (
    EntityRelation,
    EntityRole,
    EntityStore,
    TagDType,
    TagType,
    TagValue,
)

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
    # A tree of its own: what else stepwell records in this process goes on.
    ai.disable()
checkpoint = ai.checkpoint
comm = ai.comm
compute = ai.compute
data = ai.data
dataloader = ai.dataloader
device = ai.device
pipeline = ai.pipeline
