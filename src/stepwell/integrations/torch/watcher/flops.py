"""Floating point operations of a training, and model FLOPs utilisation (MFU).

Operations are counted once, by PyTorch's own formulas, while a regular training pass runs: nothing is
computed twice and no number changes. Compiled models are not counted, because counting would make them run
uncompiled.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils.flop_counter import flop_registry

from stepwell._core.environment import warn_setting
from stepwell._core.errors import warn_once
from stepwell.journal.metrics import log
from stepwell.training.job import TrainingJob
from stepwell.training.resolved_config import ResolvedConfig
from stepwell.training.settings import changed_fields
from stepwell.training.training_loop import TrainingLoop

_cuda: Any = torch.cuda

PEAK = "STEPWELL_PEAK_FLOPS"


class OperationCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, adds up the operations of all operators that PyTorch has a formula for."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        # For a tensor that is sharded over ranks, the shape is that of the whole tensor.
        result = func(*args, **kwargs)
        formula = flop_registry.get(getattr(func, "_overloadpacket", None))
        if formula is not None:
            try:
                self.total += int(formula(*args, **kwargs, out_val=result))
            except Exception as error:
                warn_once("flops", "The operations of %s are not counted: %s", func, error)
        return result


class PassCount:
    """Counts the operations of one training pass: forward between the hooks, backward as a whole.

    ``counter`` has the ``total``; it is the context manager to enter around a backward pass.
    """

    def __init__(self) -> None:
        self.counter = OperationCounter()
        self._depth = 0

    def begin_forward(self) -> None:
        """Start counting a forward call, which may be inside another one."""
        self._depth += 1
        if self._depth == 1:
            self.counter.__enter__()  # type: ignore[no-untyped-call]

    def end_forward(self) -> None:
        """Stop counting with the end of the outermost forward call."""
        if self._depth:
            self._depth -= 1
            if not self._depth:
                self._leave()

    def abort(self) -> None:
        """Stop counting at any point: after an interrupt no hook is called."""
        if self._depth:
            self._depth = 0
            self._leave()

    def _leave(self) -> None:
        if _get_current_dispatch_mode() is self.counter:
            self.counter.__exit__(None, None, None)  # type: ignore[no-untyped-call]


def can_count(model: torch.nn.Module) -> bool:
    """Return whether a pass of this model can be counted without changing its behaviour."""
    if _get_current_dispatch_mode() is not None or torch._C._get_tracing_state():
        return False
    if _cuda.is_initialized() and _cuda.is_current_stream_capturing():
        return False
    return not is_compiled(model)


def is_compiled(model: torch.nn.Module) -> bool:
    """Return whether the model, a part of it, or any function in this process has been compiled."""
    for part in model.modules():
        if hasattr(part, "_orig_mod") or part._compiled_call_impl is not None:
            # The attribute may hold our wrapper or the compiled call: both mean that it is compiled.
            return True
    return was_anything_compiled()


def was_anything_compiled() -> bool:
    """Return whether a function was compiled in this process; the model may call it."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters.get("frames"))


def peak_flops(given: float | None, model: torch.nn.Module | None) -> float | None:
    """Return the peak operations per second of the model's device, None if unknown.

    The source is ``given``, else ``STEPWELL_PEAK_FLOPS``, else the name of the GPU.
    """
    if given is not None:
        return given
    text = os.environ.get(PEAK, "").strip()
    if text:
        try:
            peak = float(text)
            if 0 < peak < float("inf"):
                return peak
        except ValueError:
            pass
        warn_setting(PEAK, text, "operations per second, such as 989e12")
    if model is None or not _cuda.is_initialized():
        return None
    parameter = next(model.parameters(), None)
    if parameter is None or not parameter.is_cuda:
        return None
    return find_peak(_cuda.get_device_name(parameter.device))


# Peak operations per second

TERA = 1e12

PEAKS: tuple[tuple[str, float], ...] = (
    (r"GB300|B300", 2500),
    (r"GB200|B200", 2250),
    (r"B100\b", 1750),
    (r"GH200|H200", 989),
    (r"H100.*NVL", 835),
    (r"H100.*PCIe", 756),
    (r"H100\b", 989),
    (r"H800", 989),
    (r"H20\b", 148),
    (r"A100\b|A800\b", 312),
    (r"A30\b", 165),
    (r"A40\b", 149.7),
    (r"RTX A6000", 154.8),
    (r"A10G", 70),
    (r"A10\b", 125),
    (r"L40S", 362),
    (r"L40\b", 181),
    (r"L4\b", 121),
    (r"V100\b", 125),
    (r"T4\b", 65),
    (r"RTX 5090", 209.5),
    (r"RTX 4090", 165.2),
    (r"RTX 3090", 71),
    (r"MI355X", 2500),
    (r"MI325X|MI300X", 1307),
    # One of its two halves, each of which is a device.
    (r"MI250X", 191.5),
)
"""Dense peak TFLOP/s in 16 bits (bfloat16 or float16), by patterns of GPU names; the first match counts.

The figures are those of the manufacturers, copied by hand: where they matter, pass ``peak_flops=``. By
convention MFU refers to 16 bits, whatever the precision of the training.
"""


def find_peak(name: str) -> float | None:
    """Return the peak operations per second of a GPU by its name, None if it is not in the table."""
    for pattern, teras in PEAKS:
        if re.search(pattern, name):
            return teras * TERA
    return None


MFU = "mfu"
COUNTED_STEP = 1
"""The step (from 0) whose operations are counted. After the first one, the compiled functions are known."""


class Operations:
    """The floating point operations per sample of a training, and its utilisation of the device.

    Attributes:
        count: the pass that is counted now, if any.
        is_settled: whether nothing is left to count.
    """

    __slots__ = ("_given_peak", "_marks", "_model", "_peak", "_per_sample", "count", "is_settled")

    def __init__(self, flops: bool | float, peak: float | None, model: Callable[[], Any]) -> None:
        self.count: PassCount | None = None
        self.is_settled = flops is not True
        # Given or counted; 0 while unknown.
        self._per_sample = 0 if isinstance(flops, bool) else int(flops)
        self._given_peak = peak
        self._peak: float | None = None
        self._model = model
        # Operations and time at the last log of the utilisation.
        self._marks = (0, 0)

    def begin(self, job: TrainingJob, loop: TrainingLoop | None) -> None:
        """Begin a training loop."""
        self._marks = (0, 0)
        if loop is not None and self._per_sample:
            self._configure(job, loop)

    def start(self, model: Any, job: TrainingJob | None) -> None:
        """Count the pass that begins, if that does not change its behaviour."""
        self.is_settled = True
        if job is not None and not job.config.ask("flops_per_sample") and can_count(model):
            self.count = PassCount()

    def finish(self, job: TrainingJob, loop: TrainingLoop, samples: int | None) -> None:
        """End the counted pass, which had this many samples; None or 0 discards the count."""
        count, self.count = self.count, None
        if count is None:
            return
        count.abort()
        if not count.counter.total or not samples:
            return
        self._per_sample = count.counter.total // samples
        self._configure(job, loop)
        progress = loop.progress
        if progress.flops_per_sample == self._per_sample:
            # Assume that the steps before needed as many.
            progress.flops += progress.samples * self._per_sample

    def abort(self) -> None:
        """Stop counting."""
        if self.count is not None:
            self.count.abort()

    def _configure(self, job: TrainingJob, loop: TrainingLoop) -> None:
        """Make the job report throughput in operations, and record the peak of the device if known."""
        if not job.config.ask("flops_per_sample"):
            reconfigure(
                job, flops_per_sample_or_fn=self._per_sample, is_log_throughput_enabled_or_fn=True
            )
        self._peak = peak_flops(self._given_peak, self._model())
        if self._peak is not None:
            loop.span.add_attribute("peak_flops_per_gpu", self._peak)

    def log_utilisation(self, job: TrainingJob, loop: TrainingLoop) -> None:
        """Log the share of the peak that was used since the last call."""
        progress = loop.progress
        if not self._peak or not self._per_sample or progress.total <= self._marks[1]:
            return
        flops, total = progress.flops - self._marks[0], progress.total - self._marks[1]
        self._marks = (progress.flops, progress.total)
        if flops:
            log({MFU: flops * 1e9 / total / job.world_size / self._peak})


def reconfigure(job: TrainingJob, **fields: Any) -> None:
    """Change these fields of a job's configuration."""
    config = changed_fields(job.config)
    config["has_telemetry_config"] = True
    job.reconfigure(ResolvedConfig(**{**config, **fields}))
