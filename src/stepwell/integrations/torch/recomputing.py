"""Activation checkpointing (``torch.utils.checkpoint``): a forward pass that is done again in backward."""

from __future__ import annotations

import sys
from pathlib import PurePath
from types import FrameType
from typing import Any

import torch

NO_PASS = -1
_pass: Any = getattr(torch._C, "_current_graph_task_id", lambda: NO_PASS)
FILE = str(PurePath(torch.__file__).with_name("utils") / "checkpoint.py")
FUNCTION = "forward"
ENOUGH = "_StopRecomputationError"
NEAR = 12
"""So many functions away at most is what calls a model that is checkpointed, wrappers included."""


def is_recomputing() -> bool:
    """Whether this thread is in a backward pass, in which a model is called only to compute it again."""
    return bool(_pass() != NO_PASS)


def is_checkpointed() -> bool:
    """Whether gradients are off only because the pass is done again with them in backward."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(NEAR):
        if frame is None:
            return False
        if frame.f_code.co_name == FUNCTION and frame.f_code.co_filename == FILE:
            return True
        frame = frame.f_back
    return False


def is_enough(error: BaseException) -> bool:
    """Whether this exception only ends a pass of which no more is needed in backward."""
    return type(error).__name__ == ENOUGH
