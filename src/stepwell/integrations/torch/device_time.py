"""How long an accelerator was busy with a pass: a pair of CUDA events, read later in the background.

The host's span of a forward or backward pass times the launch of its kernels only. The events are recorded
on the current stream; nobody waits for them. What they say is written as metric ``device_time/<pass>``, in
seconds, with the time at which the span began.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import torch

from stepwell.journal.errors import report
from stepwell.journal.scalars import TimeOnDevice
from stepwell.journal.state import current_lane

MAX_SPARE = 1000
_spare: list[Any] = []
_cuda: Any = torch.cuda


class Devices:
    """``possible`` says whether this PyTorch can have anything on a device that is timed by events."""

    __slots__ = ("possible",)

    def __init__(self) -> None:
        self.possible = torch.version.cuda is not None or torch.version.hip is not None


devices = Devices()


def is_any_on_device(tensors: Iterable[Any]) -> bool:
    """Whether work on the first of these tensors is timed by events."""
    if not _cuda.is_initialized():
        return False
    return any(tensor.is_cuda for tensor in islice(tensors, 1))


def new_event() -> Any:
    """An event that tells the time."""
    return _spare.pop() if _spare else _cuda.Event(enable_timing=True)


def can_record() -> bool:
    """Whether events may be recorded now: not into a graph that is being captured."""
    return not _cuda.is_current_stream_capturing()


class Timer:
    """Times what the current stream does from ``start`` to ``stop``."""

    __slots__ = ("_begin", "_journal", "_measured")

    def __init__(self, journal: Any, measured: TimeOnDevice) -> None:
        self._journal = journal
        self._measured = measured

    @classmethod
    def start(cls, kind: str) -> Timer | None:
        """Begin, for the span that was entered just now; None when that is not possible."""
        try:
            lane = current_lane()
            if lane is None or not can_record():
                return None
            begin = new_event()
            begin.record()
            clock = lane.starts[lane.parent_slot()]
            measured = TimeOnDevice.of(f"device_time/{kind}", lane, clock, begin, _give_back)
            return cls(lane.journal, measured)
        except Exception as error:
            report("device time", error)
            return None

    def stop(self) -> None:
        """End; the events are looked at when the device has got there."""
        try:
            end = new_event()
            end.record()
            self._journal.scalars.add_time(self._measured, end)
        except Exception as error:
            report("device time", error)


def _give_back(*events: Any) -> None:
    if len(_spare) < MAX_SPARE:
        _spare.extend(events)
