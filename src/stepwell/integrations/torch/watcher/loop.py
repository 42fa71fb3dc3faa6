"""The training loop of a watch: how it begins, and the phase times in its updates."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from stepwell.annotations.tree import ai
from stepwell.diagnostics.config import TelemetryConfig
from stepwell.integrations.torch.watcher.epochs import EpochTracker, nothing
from stepwell.integrations.torch.watcher.flops import Operations, reconfigure
from stepwell.integrations.torch.watcher.loss import OptimizerLosses, StepLoss
from stepwell.journal.format import CARRIED, LINK_WORD, NAME_MASK, SLOT_MASK, TIME_MASK
from stepwell.journal.lane import Lane
from stepwell.journal.metrics import context
from stepwell.journal.state import local
from stepwell.training import calls
from stepwell.training.calls import current_job
from stepwell.training.job import PHASES, TrainingJob
from stepwell.training.standard_spans import WORDS
from stepwell.training.training_loop import TrainingLoop
from stepwell.vocabulary import StandardTrainingJobSpanName as Name


@dataclass(frozen=True)
class WatchOptions:
    """The checked arguments of ``watch``."""

    step: int = 0
    epoch: int = 0
    target_steps: int | None = None
    replicas: int | None = None
    loss: bool = True
    flops: bool | float = True
    peak: float | None = None
    diagnostics: TelemetryConfig | None = None
    describe: Callable[[], dict[str, int]] = dict


class LoopRecorder:
    """The training loop of a watch. ``step`` counts optimizer steps, including those before a resume."""

    # At most 30 attributes, including those of the subclass: CPython reads more than 30 more slowly.
    def __init__(self, options: WatchOptions, models: list[torch.nn.Module]) -> None:
        self._options = options
        self._model: Callable[[], Any] = weakref.ref(models[0]) if models else nothing
        self._loss: StepLoss | OptimizerLosses = StepLoss(options.loss)
        self._operations = Operations(options.flops, options.peak, self._model)
        self._epochs = EpochTracker(options.epoch)
        self._times = PhaseTimes()
        self._job: TrainingJob | None = None
        self._loop: TrainingLoop | None = None
        self._first_size: int | None = None
        self._replicas = 1
        self._every = 50
        self.step = options.step

    def _find_loop(self) -> TrainingLoop | None:
        """Return the loop that iterations are counted in. It begins with the first batch."""
        job = current_job()
        if job is None:
            return None
        if job is not self._job:
            self._job = job
            self._loop = None
            self._loss.begin(self._options.loss)
            self._first_size = None
            self._replicas = self._options.replicas or job.world_size
            self._every = job.config.log_every_n_train_iterations
            if self._epochs.number >= 0 and context.epoch is None:
                self._epochs.publish()
        if job.loop is None:
            calls.start_training(self.step, iterations_target=self._options.target_steps)
            self._loop = job.loop
            self._operations.begin(job, self._loop)
            if self._loop is not None:
                self._times.begin(self._loop)
                for name, value in self._options.describe().items():
                    self._loop.span.add_attribute(name, value)
        elif job.loop is not self._loop:
            # A loop of the user, whose iterations are not counted here.
            return job.loop if job.loop.inside is not None else None
        return self._loop

    def _look(self, loop: TrainingLoop) -> None:
        """Record the totals that are not counted per step: at intervals, and at the end."""
        progress = loop.progress
        progress.count_waiting()
        for name, value in self._epochs.describe().items():
            loop.span.add_attribute(name, value)
        job = self._job
        if self._first_size is None and job is not None:
            self._first_size = progress.samples
            if (
                progress.samples
                and progress.completed == 1
                and not job.config.ask("global_batch_size")
            ):
                reconfigure(job, global_batch_size_or_fn=progress.samples)
            if self.step % self._every:
                return
        if job is not None:
            self._operations.log_utilisation(job, loop)


# Phase times

BACKWARD = ai.compute.backward.name_word
STEP = ai.compute.step.name_word
ATTRIBUTES = {
    ai.compute.forward.name_word: PHASES[Name.MODEL_FORWARD],
    BACKWARD: PHASES[Name.MODEL_BACKWARD],
    ai.dataloader.fetch.name_word: PHASES[Name.DATA_LOADING],
}
INSIDE = (WORDS[Name.TRAINING_SINGLE_ITERATION], WORDS[Name.TRAINING_LOOP])
OUTSIDE = (BACKWARD, WORDS[Name.VALIDATION_LOOP], WORDS[Name.TESTING_LOOP])


class PhaseTimes:
    """The time that a training loop spends in forward, backward and data loading, for its updates.

    The times are summed from the journal when an update is due, so that no step pays for it.
    """

    __slots__ = ("_covered", "_lane", "_reported", "_segment", "_slot", "_step", "_sums")

    def __init__(self) -> None:
        self._sums: dict[str, int] = {}
        # The values in the last update, by attribute.
        self._reported: dict[str, int] = {}
        # Number of steps in the sums.
        self._covered = 0
        self._step = 0
        self._lane: Lane | None = None
        self._segment = self._slot = 0

    def begin(self, loop: TrainingLoop) -> None:
        """Begin a training loop, in this thread."""
        self._sums.clear()
        self._reported.clear()
        self._covered = 0
        self._mark(getattr(local, "lane", None), loop.step)

    def report(self, loop: TrainingLoop, step: int) -> None:
        """Set the phase times of the loop's next update, which covers all steps before this one."""
        lane: Lane | None = getattr(local, "lane", None)
        if lane is not None and lane is self._lane and step > self._step:
            self._add(lane, loop, step - self._step)
        self._mark(lane, step)
        if not self._covered:
            return
        phases, done = loop.progress.phases, step - loop.progress.start
        for attribute, total in self._sums.items():
            # If they differ, the user records this phase by hand, and it is counted already.
            if phases.get(attribute) == self._reported.get(attribute):
                phases[attribute] = self._reported[attribute] = total * done // self._covered

    def _mark(self, lane: Lane | None, step: int) -> None:
        self._lane, self._step = lane, step
        if lane is not None:
            self._segment, self._slot = lane.seq_bits, lane.next

    def _add(self, lane: Lane, loop: TrainingLoop, steps: int) -> None:
        is_whole = lane.seq_bits == self._segment
        begin = self._slot if is_whole else 1
        rows = zip(
            lane.metas[begin : lane.next].tolist(),
            lane.starts[begin : lane.next].tolist(),
            lane.ends[begin : lane.next].tolist(),
            strict=True,
        )
        sums, stepped = self._sums, set()
        for meta, start, end in rows:
            word = meta & NAME_MASK
            attribute = ATTRIBUTES.get(word)
            if attribute is None:
                if word == STEP:
                    stepped.add(meta & SLOT_MASK)
            elif start and end and not end & CARRIED and _is_trained(lane, meta & SLOT_MASK, loop):
                sums[attribute] = sums.get(attribute, 0) + (end & TIME_MASK) - start
        # After a change of segment, only the steps in the current segment can be read.
        self._covered += steps if is_whole else min(steps, len(stepped))


def _is_trained(lane: Lane, slot: int, loop: TrainingLoop) -> bool:
    """Return whether a span with this parent is part of training, not of validation or backward."""
    metas = lane.metas
    while slot:
        word = metas[slot] & NAME_MASK
        if word in INSIDE:
            return True
        if word == LINK_WORD:
            return lane.origin(slot) == loop.span.id
        if word in OUTSIDE:
            return False
        slot = metas[slot] & SLOT_MASK
    return False
