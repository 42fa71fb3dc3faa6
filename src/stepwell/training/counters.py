"""Counters of a training job, in total and since the last update. Uses no spans and no clock."""

from __future__ import annotations

import math
from collections import deque
from operator import sub
from typing import Any

SECOND = 1e9
LOADING = "avg_dataloader_time_sec"
"""The attribute with the time of data loading."""
MAX_WINDOW = 100_000
"""Largest number of durations kept for percentiles; older ones are dropped."""


class Durations:
    """Number, sum and extremes of durations, in nanoseconds."""

    __slots__ = ("count", "longest", "shortest", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0
        self.shortest = 0
        self.longest = 0

    def add(self, took: int) -> None:
        if not self.count or took < self.shortest:
            self.shortest = took
        if took > self.longest:
            self.longest = took
        self.count += 1
        self.total += took

    def seconds(self, of: str = "iteration_time") -> dict[str, float]:
        """Return mean, extremes and sum as attributes; empty without durations."""
        if not self.count:
            return {}
        return {
            f"avg_{of}_sec": self.total / self.count / SECOND,
            f"min_{of}_sec": self.shortest / SECOND,
            f"max_{of}_sec": self.longest / SECOND,
            f"total_{of}_sec": self.total / SECOND,
        }


def percentile(ordered: list[int], share: float) -> int:
    """Return the nearest-rank percentile of sorted values; ``share`` is from 0 to 1."""
    rank = -int(-len(ordered) * share // 1)
    return ordered[max(0, rank - 1)]


def plus(first: int | None, second: int | None) -> int | None:
    """Return the sum, where None counts as unknown and is ignored; None if both are None."""
    if first is None or second is None:
        return first if second is None else second
    return first + second


Iteration = tuple[int, int, int, int]
"""Start and end on the journal's clock, samples and tokens."""


class Progress:
    """Iterations, samples, tokens and operations of one training loop, in total and since the last update.

    An iteration is an optimizer step. Passes that only accumulate gradients add to the next iteration.
    Iterations are collected in ``waiting``, as (start, end, samples, tokens), and counted together.
    """

    __slots__ = (
        "began",
        "best_rate",
        "completed",
        "first_end",
        "flops",
        "flops_per_sample",
        "gap_count",
        "gap_total",
        "last_end",
        "last_update",
        "longest",
        "next_update",
        "partial_passes",
        "partial_samples",
        "partial_time",
        "partial_tokens",
        "phases",
        "samples",
        "shortest",
        "start",
        "start_flops",
        "start_samples",
        "tokens",
        "total",
        "waiting",
        "window",
        "window_gaps",
        "worst_rate",
    )

    partial_samples: int | None
    partial_tokens: int | None

    def __init__(
        self, start: int, start_samples: int | None, every: int, began: int | None = None
    ) -> None:
        self.start = start
        # Start of the loop; None: the start of its first iteration.
        self.began = began
        self.start_samples = start_samples
        # Operations before the loop; None if unknown.
        self.start_flops: int | None = None if start else 0
        self.completed = 0
        self.samples = 0
        self.tokens = 0
        self.flops = 0
        self.flops_per_sample = 0
        # Iteration times in nanoseconds.
        self.total = 0
        self.shortest = 0
        self.longest = 0
        self.first_end = 0
        self.last_end = 0
        # Passes since the last optimizer step; their sizes are None if unknown.
        self._clear_partial()
        # Time from the end of an iteration to the start of the next.
        self.gap_total = 0
        self.gap_count = 0
        # Floating point operations per nanosecond of single iterations.
        self.best_rate = 0.0
        self.worst_rate = math.inf
        # Time in forward, backward and data loading, by attribute.
        self.phases: dict[str, int] = {}
        self.waiting: list[Iteration] = []
        self.window: deque[int] = deque(maxlen=MAX_WINDOW)
        self.window_gaps: deque[int] = deque(maxlen=MAX_WINDOW)
        self.close_window(every)

    def close_window(self, every: int) -> None:
        """Begin the window of the next update, which is due at the next multiple of ``every``."""
        self.expect_update(every)
        self.window.clear()
        self.window_gaps.clear()
        done = (self.completed, self.samples, self.tokens, self.flops, self.total)
        self.last_update = (*done, self.last_end)

    def expect_update(self, every: int) -> None:
        """Set the next update to the next multiple of ``every``."""
        self.next_update = (self.overall // every + 1) * every

    @property
    def overall(self) -> int:
        """Completed iterations, including those before this loop."""
        return self.start + self.completed + len(self.waiting)

    @property
    def samples_overall(self) -> int | None:
        """Samples trained on, including those before this loop; None if unknown."""
        if self.start_samples is None:
            return (self.samples or None) if not self.start else None
        return self.start_samples + self.samples

    @property
    def flops_overall(self) -> int | None:
        """Floating point operations, including those before this loop; None if unknown."""
        return None if self.start_flops is None else self.start_flops + self.flops

    def count_waiting(self) -> None:
        waiting = self.waiting
        if waiting:
            # Cleared first, so that an interrupt below cannot count an iteration twice.
            self.waiting = []
            starts, ends, samples, tokens = zip(*waiting, strict=True)
            self._pass(starts, ends)
            times = list(map(sub, ends, starts))
            if self.partial_passes:
                times[0] += self.partial_time
                self._clear_partial()
            if self.began is None:
                self.began = starts[0]
            if not self.first_end:
                self.first_end = ends[0]
            self._add(times, samples, sum(tokens))

    def accumulate(self, start: int, end: int, samples: int | None, tokens: int | None) -> None:
        """Add a pass that ended without an optimizer step."""
        self.count_waiting()
        self._pass((start,), (end,))
        self.partial_time += end - start
        self.hold(samples, tokens)

    def hold(self, samples: int | None, tokens: int | None) -> None:
        """Add the sizes of a pass to the next iteration."""
        self.partial_passes += 1
        self.partial_samples = plus(self.partial_samples, samples)
        self.partial_tokens = plus(self.partial_tokens, tokens)

    def count_unrecorded(self, samples: int, tokens: int) -> None:
        """Count an iteration without a time."""
        self._clear_partial()
        self.completed += 1
        self.samples += samples
        self.tokens += tokens
        self.flops += samples * self.flops_per_sample

    def _clear_partial(self) -> None:
        self.partial_passes = 0
        self.partial_time = 0
        self.partial_samples = self.partial_tokens = None

    def _add(self, times: list[int], samples: tuple[int, ...], tokens: int) -> None:
        shortest, longest = min(times), max(times)
        if not self.completed or shortest < self.shortest:
            self.shortest = shortest
        if longest > self.longest:
            self.longest = longest
        self.completed += len(times)
        self.total += sum(times)
        self.window.extend(times)
        all_samples = sum(samples)
        self.samples += all_samples
        self.tokens += tokens
        if self.flops_per_sample:
            work = self.flops_per_sample
            self.flops += all_samples * work
            if samples.count(samples[0]) == len(samples):
                # All have the same size, as usual: the shortest is the fastest.
                rates = [samples[0] * work / (took or 1) for took in (shortest, longest)]
            else:
                rates = [
                    size * work / (took or 1) for size, took in zip(samples, times, strict=True)
                ]
            self.best_rate = max(self.best_rate, *rates)
            self.worst_rate = min(self.worst_rate, *rates)

    def _pass(self, starts: tuple[int, ...], ends: tuple[int, ...]) -> None:
        """Add the gaps between passes."""
        before = (self.last_end, *ends[:-1])
        self.last_end = ends[-1]
        if not before[0]:
            # The first pass of a loop has no gap before it.
            starts, before = starts[1:], before[1:]
        gaps = list(map(sub, starts, before))
        if gaps and min(gaps) < 0:
            # A given start may be before the end of the last pass: then there is no gap.
            gaps = [max(0, gap) for gap in gaps]
        self.gap_total += sum(gaps)
        self.gap_count += len(gaps)
        self.window_gaps.extend(gaps)

    @property
    def since_update(self) -> int:
        """Iterations since the last update."""
        return self.completed - self.last_update[0]

    @property
    def _window_total(self) -> int:
        return self.total - self.last_update[4]

    # As attributes

    def attributes(self, world_size: int) -> dict[str, Any]:
        """Return the attributes of an update, except those that need the wall clock."""
        attributes: dict[str, Any] = {
            "train_iterations_start": self.start,
            "current_iteration": max(0, self.overall - 1),
            "num_iterations": self.completed,
            "interval": self.since_update,
        }
        # Each method adds to the same dict, which is faster: training waits for this.
        self._add_times(attributes)
        self._add_amounts(attributes)
        if self.total:
            self._add_rates(attributes)
            self._add_work_rates(attributes, self.total / SECOND, world_size)
        self._add_window_times(attributes)
        if self._window_total:
            self._add_window_rates(attributes, self._window_total / SECOND, world_size)
        return attributes

    def _add_times(self, attributes: dict[str, Any]) -> None:
        count = self.completed
        attributes["avg_iteration_time_sec"] = self.total / count / SECOND
        attributes["min_iteration_time_sec"] = self.shortest / SECOND
        attributes["max_iteration_time_sec"] = self.longest / SECOND
        attributes["total_iteration_time_sec"] = self.total / SECOND
        if self.gap_count:
            attributes["avg_between_iterations_time_sec"] = self.gap_total / self.gap_count / SECOND
        for name, total in self.phases.items():
            attributes[name] = total / count / SECOND

    def _add_amounts(self, attributes: dict[str, Any]) -> None:
        if self.start_samples is not None:
            attributes["train_samples_start"] = self.start_samples
        if self.samples:
            attributes["num_train_samples"] = self.samples
            mean = self.samples / self.completed
            attributes["avg_batch_size"] = int(mean) if mean.is_integer() else mean
        if self.tokens:
            attributes["train_tokens"] = self.tokens
        if self.flops_per_sample:
            if self.start_flops is not None:
                attributes["completed_floating_point_operations_overall"] = self.flops_overall
            attributes["total_flops"] = self.flops

    def _add_rates(self, attributes: dict[str, Any]) -> None:
        """Add samples and tokens per second of wall time, with and without data loading."""
        elapsed = self.last_end - (self.began or 0)
        without_data = elapsed - self.phases.get(LOADING, 0)
        for what, count in (("samples", self.samples), ("tokens", self.tokens)):
            if count and elapsed > 0:
                attributes[f"avg_{what}_per_second"] = count * SECOND / elapsed
            if count and 0 < without_data < elapsed:
                attributes[f"avg_{what}_per_second_without_data"] = count * SECOND / without_data

    def _add_work_rates(self, attributes: dict[str, Any], seconds: float, world_size: int) -> None:
        if self.flops:
            # 1 operation per nanosecond is 1e-3 TFLOP/s.
            attributes["avg_tflops"] = self.flops / seconds / 1e12
            attributes["train_throughput_per_gpu"] = self.flops / seconds / 1e12 / world_size
            attributes["train_throughput_per_gpu_max"] = self.best_rate / 1e3 / world_size
            attributes["train_throughput_per_gpu_min"] = self.worst_rate / 1e3 / world_size

    def _add_window_times(self, attributes: dict[str, Any]) -> None:
        ordered = sorted(self.window)
        attributes["window_iterations"] = count = self.since_update
        if ordered:
            attributes["window_avg_iteration_time_sec"] = self._window_total / count / SECOND
            attributes["window_p50_iteration_time_sec"] = percentile(ordered, 0.5) / SECOND
            attributes["window_p95_iteration_time_sec"] = percentile(ordered, 0.95) / SECOND
            attributes["window_max_iteration_time_sec"] = ordered[-1] / SECOND
        gaps = self.window_gaps
        if gaps:
            attributes["window_avg_between_iterations_time_sec"] = sum(gaps) / len(gaps) / SECOND
            attributes["window_max_between_iterations_time_sec"] = max(gaps) / SECOND

    def _add_window_rates(
        self, attributes: dict[str, Any], seconds: float, world_size: int
    ) -> None:
        _, samples, tokens, flops, _, last_end = self.last_update
        elapsed = self.last_end - (last_end or self.began or 0)
        if self.samples > samples and elapsed > 0:
            attributes["window_samples_per_second"] = (self.samples - samples) * SECOND / elapsed
        if self.tokens > tokens and elapsed > 0:
            attributes["window_tokens_per_second"] = (self.tokens - tokens) * SECOND / elapsed
        if self.flops > flops:
            attributes["window_throughput_per_gpu"] = (
                (self.flops - flops) / seconds / 1e12 / world_size
            )
