"""The state of a logger between ``create_logger_context`` and ``destroy_logger_context``."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from stepwell._core.errors import StepwellError, never_raises, report, report_misuse, warn_once
from stepwell._core.threads import start_thread
from stepwell.journal.format import LOGGER
from stepwell.journal.state import current_journal, state
from stepwell.loggers.items.readings import Readings
from stepwell.telemetry.rank_info import find_rank_info
from stepwell.telemetry.run import Run, active_run, recorder_of
from stepwell.telemetry.start import borrow_run

if TYPE_CHECKING:
    from stepwell.journal.journal import Journal
    from stepwell.loggers.items.model_statistics import ModelStatistics
    from stepwell.loggers.targets import Targets

WORK = 30.0
"""Seconds that the end of a context waits for background work, such as provenance documents."""
FLUSH = 5.0
"""Seconds that the end of a context waits for values on an accelerator."""


_open_contexts: weakref.WeakSet[LoggerContext] = weakref.WeakSet()
"""Contexts that log and have not ended."""
_registered: weakref.WeakKeyDictionary[Journal, tuple[threading.RLock, Counter[str]]] = (
    weakref.WeakKeyDictionary()
)
"""The number of loggers of each type, by the journal that they write to. A forked child has another one."""


def find_run(name: str | None, logs: bool) -> tuple[Run | None, bool]:
    """Return the active run, or start one; and whether it is new.

    A worker that does not log and has no launcher starts none: it would not be part of the others' run.
    """
    if state.enabled:
        # A spawned child joins its parent's run when it first asks for the journal.
        current_journal()
    if active_run() is None and not logs and find_rank_info(os.environ).launcher == "single":
        return None, False
    return borrow_run(name)


def place_rank() -> int:
    """Return the rank of this process, from the active run or from the launcher."""
    run = active_run()
    return find_rank_info(os.environ).rank if run is None else run.rank


class LoggerContext:
    """One period of logging on one worker.

    Attributes:
        run: the run to record into; None if there is none on this worker.
        owns_run: whether this context has to finish the run.
        journal: the journal to write to; None if nothing is recorded.
        number: number of the logger in its process, from 1; 0 if it does not log here.
        key: its name in its process, such as ``mlflow`` or ``mlflow-2``.
        delivery: the delivery to the backend; None without a backend.
        targets: the targets of the logger, to report metrics that were left out; None if nothing is recorded.
        readings: the sources of ``system``, ``carbon`` and ``execution_time``.
    """

    def __init__(self, run: Run | None, owns_run: bool, rank: int, logs: bool) -> None:
        self.run = run
        self.owns_run = owns_run
        self.rank = rank
        self.logs = logs and run is not None and not run.disabled
        self.pid = os.getpid()
        self.journal: Journal | None = current_journal() if self.logs else None
        self.number = 0
        self.key = ""
        self.delivery: Any = None
        self.targets: Targets | None = None
        self.watched: list[ModelStatistics] = []
        self._readings: Readings | None = None
        self._has_ended = False
        self._threads: list[threading.Thread] = []
        self._postponed: list[Callable[[], None]] = []
        if self.logs:
            self._readings = _readings(run)
        if run is not None and self.journal is None:
            self.logs = False
        if self.logs:
            _open_contexts.add(self)

    @property
    def readings(self) -> Readings:
        """Readings of energy and time since the context was created."""
        if self._readings is None:
            self._readings = Readings()
        return self._readings

    @property
    def is_here(self) -> bool:
        """Whether this process created the context; False in a forked child."""
        return self.pid == os.getpid()

    # Start

    def register(self, to: str) -> None:
        """Set the number and the key of the logger in this process."""
        if self.journal is None:
            return
        lock, counts = _registered.setdefault(self.journal, (threading.RLock(), Counter()))
        with lock:
            counts[to] += 1
            self.number, same = sum(counts.values()), counts[to]
        self.key = to if same == 1 else f"{to}-{same}"

    def announce(self, to: str, backend: Any) -> None:
        """Record that this logger starts, and how to create its backend in another process."""
        if self.journal is None:
            return
        meta = {"number": self.number, "to": to, "rank": self.rank}
        description = {} if backend is None else backend.description()
        self.journal.write_event(LOGGER, self.key, {**meta, **description}, span=None)
        if self.run is not None:
            self.run.before_finish(self.end)

    def deliver(self, backend: Any) -> None:
        """Start to deliver to the backend, in the background."""
        run = self.run
        recorder = recorder_of(run)
        if run is None or recorder is None or recorder.pid != self.pid:
            warn_once(
                f"no delivery {self.pid}",
                "this process was started by the process that records the run: its records are in the run "
                "folder and are not delivered to a backend",
            )
            return
        try:
            from stepwell.loggers.delivery.feed import start_delivery

            self.delivery = start_delivery(run, backend)
        except StepwellError as error:
            report_misuse(f"delivery {self.key}", str(error))
        except Exception as error:
            report(f"delivery of {self.key}", error)

    def work(self, task: Callable[[], None]) -> None:
        """Run a task in the background. If no thread can be started, run it when the context ends."""
        thread = start_thread(f"stepwell-logger-{self.key}", task)
        self._postponed.append(task) if thread is None else self._threads.append(thread)

    # End

    def hand_over_run(self) -> bool:
        """Let another logger of the run finish the run when it ends. Return whether there is one."""
        _open_contexts.discard(self)
        for other in list(_open_contexts):
            if other.run is self.run and other.is_here:
                other.owns_run = True
                return True
        return False

    @never_raises
    def end(self, status: str) -> None:
        """Record how logging ended. Only the first call counts."""
        if self._has_ended or self.journal is None or not self.is_here:
            return
        self._has_ended = True
        _open_contexts.discard(self)
        self.complete()
        if state.journal is self.journal:
            self._write_back()
            meta = {"number": self.number, "status": status}
            self.journal.write_event(LOGGER, self.key, meta, span=None)

    def complete(self, status: str = "") -> None:
        """Stop watching models, wait for background work, and warn about metrics that were left out."""
        for watch in self.watched:
            watch.close()
        self.watched.clear()
        deadline = time.monotonic() + WORK
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        while self._postponed:
            never_raises(self._postponed.pop(0))()
        targets, self.targets = self.targets, None
        if targets is not None:
            targets.warn_left_out()

    def _write_back(self) -> None:
        """Write all records to the files, including values that are still on an accelerator."""
        if self.journal is not None:
            with contextlib.suppress(OSError):
                self.journal.write_back()
        recorder = recorder_of(self.run)
        if recorder is not None and self.journal is not None and self.journal.scalars.pending:
            recorder.pump.flush(FLUSH)

    def flush(self, timeout: float) -> bool:
        """Wait until all records so far are delivered. Return False after ``timeout`` seconds."""
        if self.run is None or not self.logs or not self.is_here:
            return True
        deadline = time.monotonic() + timeout
        recorder = recorder_of(self.run)
        in_folder = recorder is None or recorder.pump.flush(timeout)
        if self.delivery is None:
            return in_folder
        return bool(self.delivery.drain(max(0.0, deadline - time.monotonic()))) and in_folder


@never_raises
def finish_contexts(contexts: Sequence[LoggerContext], status: str, timeout: float | None) -> None:
    """Wait for the deliveries of contexts that have ended, all at the same time."""
    from stepwell.telemetry.deliveries import finish_deliveries

    ended = [context for context in contexts if context.delivery is not None and context.is_here]
    deliveries = [context.delivery.delivery for context in ended]
    quiet = all(context.run is None or context.run.quiet for context in ended)
    finish_deliveries([each for each in deliveries if each is not None], status, timeout, quiet)


def _readings(run: Run | None) -> Readings:
    recorder = recorder_of(run)
    document = {} if recorder is None else recorder.info
    return Readings(reads_node=not document.get("local_rank"))


def load_backend(name: str) -> Any:
    """Return a class by its dotted name."""
    module, _, own = name.rpartition(".")
    try:
        return getattr(import_module(module), own)
    except (ImportError, AttributeError, ValueError) as error:
        raise StepwellError(
            f"backend_class must be package.module.Class, got {name!r}: {error}"
        ) from None
