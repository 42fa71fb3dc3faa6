"""The time that a pass takes on an accelerator, measured by a pair of CUDA events.

The span of a forward or backward pass on the host measures only the launch of its kernels. The events are
recorded on the current stream and read later in the background, without waiting. The result is the metric
``device_time/<pass>``, in seconds, with the start time of the span.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import torch

from stepwell._core.errors import report
from stepwell.journal.scalars import PendingDeviceTime
from stepwell.journal.state import current_lane

MAX_SPARE = 1000
_spare: list[Any] = []
_cuda: Any = torch.cuda


class Devices:
    """``possible`` is whether this build of PyTorch supports devices with events (CUDA or ROCm)."""

    __slots__ = ("possible",)

    def __init__(self) -> None:
        self.possible = torch.version.cuda is not None or torch.version.hip is not None


devices = Devices()


def is_any_on_device(tensors: Iterable[Any]) -> bool:
    """Return whether the first of these tensors is on a device with events."""
    if not _cuda.is_initialized():
        return False
    return any(tensor.is_cuda for tensor in islice(tensors, 1))


def new_event() -> Any:
    """Return an event with timing, a used one if there is any."""
    return _spare.pop() if _spare else _cuda.Event(enable_timing=True)


def can_record() -> bool:
    """Return whether events may be recorded now, which they may not while a CUDA graph is captured."""
    return not _cuda.is_current_stream_capturing()


class Timer:
    """Measures the work of the current stream from ``start`` to ``stop``."""

    __slots__ = ("_begin", "_journal", "_measured")

    def __init__(self, journal: Any, measured: PendingDeviceTime) -> None:
        self._journal = journal
        self._measured = measured

    @classmethod
    def start(cls, kind: str) -> Timer | None:
        """Return a running timer for the span that was just entered, None if that is impossible."""
        try:
            lane = current_lane()
            if lane is None or not can_record():
                return None
            begin = new_event()
            begin.record()
            clock = lane.starts[lane.parent_slot()]
            measured = PendingDeviceTime.of(f"device_time/{kind}", lane, clock, begin, _reuse)
            return cls(lane.journal, measured)
        except Exception as error:
            report("device time", error)
            return None

    def stop(self) -> None:
        """Record the end event. Both events are read once the device has reached it."""
        try:
            end = new_event()
            end.record()
            self._journal.scalars.add_time(self._measured, end)
        except Exception as error:
            report("device time", error)


def _reuse(*events: Any) -> None:
    if len(_spare) < MAX_SPARE:
        _spare.extend(events)
