"""Scalars on an accelerator: fetched in batches when they are ready, without blocking training.

The training thread queues a copy on the device and continues. On CUDA an event after the copy shows when it
can be read, so nothing waits for a device that hangs. Times between two events are read in the same way.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepwell._core.errors import report
from stepwell._core.threads import start_thread
from stepwell.journal.metrics import step_word_of, word_of, write_row

if TYPE_CHECKING:
    from stepwell.journal.journal import Journal
    from stepwell.journal.lane import Lane

MAX_PENDING = 100_000
EVERY = 0.2
LAST_WAIT = 2.0


@dataclass
class PendingScalar:
    """A logged scalar that was not fetched yet."""

    lane: Lane
    clock: int
    tensor: Any
    ready: Any
    step_word: int
    word: int

    def withdraw(self) -> None:
        """Discard the scalar, unless its row is written already."""
        self.word = 0


@dataclass
class PendingDeviceTime:
    """The time between two events of a device, which is not known yet."""

    lane: Lane
    clock: int
    begin: Any
    step_word: int
    word: int
    release: Callable[..., None]
    ready: Any = None

    @classmethod
    def of(
        cls, name: str, lane: Lane, clock: int, begin: Any, release: Callable[..., None]
    ) -> PendingDeviceTime:
        """Return a time that becomes a value of this metric; ``release`` receives the events afterwards."""
        word = word_of(name)
        return cls(lane, clock, begin, step_word_of(word), word, release)

    def seconds(self) -> float:
        """Return the time between the two events in seconds."""
        return float(self.begin.elapsed_time(self.ready)) / 1000.0


class DeviceScalars:
    """The scalars of one journal that are still on an accelerator."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.pending: deque[PendingScalar | PendingDeviceTime] = deque()
        self._lane: Lane | None = None
        self._thread: threading.Thread | None = None

    def add(self, lane: Lane, clock: int, tensor: Any, step_word: int, word: int) -> None:
        """Queue a copy of a scalar: the original may be changed in place."""
        if len(self.pending) >= MAX_PENDING:
            self.journal.count_drop("metrics")
            return
        copy = tensor.detach().clone()
        self.pending.append(PendingScalar(lane, clock, copy, _mark(tensor), step_word, word))

    def add_time(self, time: PendingDeviceTime, end: Any) -> None:
        """Queue a time until the device reaches its end event."""
        if len(self.pending) >= MAX_PENDING:
            self.journal.count_drop("metrics")
            return
        time.ready = end
        self.pending.append(time)
        if self.journal._keeps_segments:
            self.resolve_in_background()

    def resolve(self) -> None:
        """Fetch the scalars that are ready, with one copy per device, and write their rows."""
        by_device: dict[str, list[PendingScalar]] = {}
        times: list[PendingDeviceTime] = []
        for _ in range(len(self.pending)):
            item = self.pending.popleft()
            if item.ready is not None and not item.ready.query():
                self.pending.append(item)
            elif isinstance(item, PendingDeviceTime):
                times.append(item)
            else:
                by_device.setdefault(f"{item.tensor.device}", []).append(item)
        self._write_times(times)
        for items in by_device.values():
            try:
                values = fetch([item.tensor for item in items])
            except Exception as error:  # a device may fail in many ways
                self.journal.drops["metrics"] += len(items)
                report("device scalars", error)
                continue
            self._write(items, values)

    def _write_times(self, times: list[PendingDeviceTime]) -> None:
        for item in times:
            try:
                seconds = item.seconds()
            except Exception as error:  # a device may fail in many ways
                self.journal.count_drop("metrics")
                report("device times", error)
                continue
            self._write([item], [seconds])
            item.release(item.begin, item.ready)

    def _write(
        self, items: Sequence[PendingScalar | PendingDeviceTime], values: list[float]
    ) -> None:
        if self._lane is None:
            self._lane = self.journal.open_lane()
        for item, value in zip(items, values, strict=True):
            if not item.word:
                continue
            write_row(self._lane, item.clock, value, item.step_word, item.word, item.lane.number)

    def finish(self) -> None:
        """Fetch the rest. Values that a device does not return in time are dropped and counted."""
        deadline = time.monotonic() + LAST_WAIT
        self.resolve()
        while self.pending and time.monotonic() < deadline:
            time.sleep(0.01)
            self.resolve()
        self.journal.drops["metrics"] += len(self.pending)
        self.pending.clear()

    def resolve_in_background(self) -> None:
        """Start a thread that fetches scalars, for a process without a pump."""
        if self._thread is None:
            self._thread = start_thread("stepwell-scalars", self._run)

    def _run(self) -> None:
        while not self.journal.closed:
            time.sleep(EVERY)
            self.resolve()


def _mark(tensor: Any) -> Any:
    """Return an event whose ``query()`` is true once the device is at this point; None if not needed."""
    torch = sys.modules.get("torch")
    if tensor.device.type != "cuda" or torch is None or not torch.cuda.is_initialized():
        return None
    event = torch.cuda.Event()
    event.record()
    return event


def fetch(tensors: list[Any]) -> list[float]:
    """Return the values of one-element tensors of one device, with a single copy to the host."""
    import torch

    # MPS does not support float64.
    kind = torch.float32 if tensors[0].device.type == "mps" else torch.float64
    stacked = torch.stack([t.reshape(()).to(kind) for t in tensors])
    return [float(v) for v in stacked.tolist()]
