"""The job of this process. A run that is active has one as soon as a standard span is started in it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial

from stepwell.journal.state import state
from stepwell.telemetry.live import Span, watchers
from stepwell.telemetry.run import active_run
from stepwell.training.job import PHASES, TrainingJob
from stepwell.training.merging import ResolvedConfig
from stepwell.training.standard_spans import WORDS
from stepwell.training.training_loop import TrainingLoop

Switch = Callable[[bool, TrainingLoop | None], None]
"""Called with whether training is recorded, and with the training loop that is under way."""


class Current:
    """``job`` is the one that records now, None while there is none.

    ``config`` is what the next one is made with; ``is_off`` says that this rank is to record none.
    """

    def __init__(self) -> None:
        self.job: TrainingJob | None = None
        self.config = ResolvedConfig()
        self.is_off = False
        self.lock = threading.RLock()
        self._switches: list[Switch] = []

    def add_switch(self, switch: Switch) -> None:
        """Have this called now and whenever something of it changes."""
        self._switches.append(switch)
        switch(state.enabled and not self.is_off, None)

    def switch_off(self, is_off: bool) -> None:
        """Whether this rank leaves training out."""
        if is_off != self.is_off:
            self.is_off = is_off
            self._switch(state.enabled)

    def _switch(self, enabled: bool) -> None:
        # Another run, or none: what was known about the last one is of no use.
        self.job = None
        self._tell(enabled, None)

    def _tell(self, enabled: bool, loop: TrainingLoop | None) -> None:
        for switch in self._switches:
            switch(enabled and not self.is_off, loop)

    def note_loop(self, loop: TrainingLoop | None) -> None:
        """A training loop begins, or has ended."""
        self._tell(state.enabled, loop)

    def after_fork(self) -> None:
        """A child records spans of its own, but it is not in the loops of its parent."""
        # Another thread of the parent may have held it.
        self.lock = threading.RLock()
        if self.job is not None:
            self.job = TrainingJob(self.config, None, self.note_loop)
            self.note_loop(None)


current = Current()
state.switches.append(current._switch)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=current.after_fork)


def _count_phase(attribute: str, span: Span) -> None:
    if current.job is not None:
        current.job.count_phase(attribute, span)


for _name, _attribute in PHASES.items():
    watchers[WORDS[_name]] = partial(_count_phase, _attribute)


def current_job() -> TrainingJob | None:
    """The job of the active run; None when nothing is recorded."""
    if current.job is None and state.enabled and not current.is_off:
        # Two threads may be the first at once: both have to get the same one.
        with current.lock:
            if current.job is None:
                current.job = _new_job()
    return current.job


def _new_job() -> TrainingJob:
    run = active_run()
    job = TrainingJob(current.config, run, current.note_loop)
    if run is not None:
        run.before_finish(job.close)
    return job
