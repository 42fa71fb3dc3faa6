"""The operations of a watched training: counted once where nobody tells, and how well a device is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepwell.integrations.torch.flops import PassCount, can_count, peak_flops
from stepwell.journal.metrics import log
from stepwell.training.job import TrainingJob
from stepwell.training.merging import ResolvedConfig
from stepwell.training.settings import spoken
from stepwell.training.training_loop import TrainingLoop

MFU = "mfu"
COUNTED_STEP = 1
"""The step, from 0, whose operations are counted: by the first one it is known what is compiled."""


class Operations:
    """Floating point operations a sample, and what is said of them.

    Attributes:
        count: the pass that is being counted, if any.
        is_settled: whether nothing is left to be counted.
    """

    __slots__ = ("_given_peak", "_marks", "_model", "_peak", "_per_sample", "count", "is_settled")

    def __init__(self, flops: bool | float, peak: float | None, model: Callable[[], Any]) -> None:
        self.count: PassCount | None = None
        self.is_settled = flops is not True
        # As given, or counted.
        self._per_sample = 0 if isinstance(flops, bool) else int(flops)
        self._given_peak = peak
        self._peak: float | None = None
        self._model = model
        # Operations and time that utilisation was told of.
        self._marks = (0, 0)

    def begin(self, job: TrainingJob, loop: TrainingLoop | None) -> None:
        """A training loop begins."""
        self._marks = (0, 0)
        if loop is not None and self._per_sample:
            self._tell(job, loop)

    def start(self, model: Any, job: TrainingJob | None) -> None:
        """Count the pass that begins, if that can be done without changing it."""
        self.is_settled = True
        if job is not None and not job.ask("flops_per_sample") and can_count(model):
            self.count = PassCount()

    def finish(self, job: TrainingJob, loop: TrainingLoop, samples: int | None) -> None:
        """The pass is over, of so many samples; None or 0: nothing can be said of it."""
        count, self.count = self.count, None
        if count is None:
            return
        count.abort()
        if not count.total or not samples:
            return
        self._per_sample = count.total // samples
        self._tell(job, loop)
        progress = loop.progress
        if progress.flops_per_sample == self._per_sample:
            # Those before were alike.
            progress.flops += progress.samples * self._per_sample

    def abort(self) -> None:
        """Count no more."""
        if self.count is not None:
            self.count.abort()

    def _tell(self, job: TrainingJob, loop: TrainingLoop) -> None:
        """Let the job report throughput in operations, and note what is possible where that is known."""
        if not job.ask("flops_per_sample"):
            reconfigure(
                job, flops_per_sample_or_fn=self._per_sample, is_log_throughput_enabled_or_fn=True
            )
        self._peak = peak_flops(self._given_peak, self._model())
        if self._peak is not None:
            loop.span.add_attribute("peak_flops_per_gpu", self._peak)

    def log_utilisation(self, job: TrainingJob, loop: TrainingLoop) -> None:
        """Log which part of what is possible was done since the last time."""
        progress = loop.progress
        if not self._peak or not self._per_sample or progress.total <= self._marks[1]:
            return
        flops, total = progress.flops - self._marks[0], progress.total - self._marks[1]
        self._marks = (progress.flops, progress.total)
        if flops:
            log({MFU: flops * 1e9 / total / job.world_size / self._peak})


def reconfigure(job: TrainingJob, **fields: Any) -> None:
    """Let a job go on with these settings changed."""
    known = spoken(job.config)
    known["has_telemetry_config"] = True
    job.reconfigure(ResolvedConfig(**{**known, **fields}))
