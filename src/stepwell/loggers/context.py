"""What a logger has between ``create_logger_context`` and ``destroy_logger_context``."""

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

from stepwell.journal.errors import StepwellError, misuse, quietly, report, warn_once
from stepwell.journal.journal import LOGGER
from stepwell.journal.state import current_journal, state
from stepwell.journal.threads import start_thread
from stepwell.loggers.items.readings import Readings
from stepwell.telemetry.place import find_place
from stepwell.telemetry.run import Run, active_run
from stepwell.telemetry.start import init

if TYPE_CHECKING:
    from stepwell.journal.journal import Journal
    from stepwell.loggers.audience import Audience
    from stepwell.loggers.items.watching import ModelStatistics

WORK = 30.0
"""Seconds that documents which were asked for have to be made before a context ends."""
FLUSH = 5.0
"""Seconds that values on an accelerator have to arrive before a context ends."""


class _Register:
    """The loggers of one process of a run: each has a number, and a key that says what it is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._kinds: Counter[str] = Counter()

    def add(self, to: str) -> tuple[int, str]:
        with self._lock:
            self._count += 1
            self._kinds[to] += 1
            number, same = self._count, self._kinds[to]
        return number, to if same == 1 else f"{to}-{same}"


_open_contexts: weakref.WeakSet[Context] = weakref.WeakSet()
"""Those that log and have not ended."""
_registers: weakref.WeakKeyDictionary[Journal, _Register] = weakref.WeakKeyDictionary()


def find_run(name: str | None, logs: bool) -> tuple[Run | None, bool]:
    """The active run, else a new one, and whether it is new.

    A worker that does not log, and of which no launcher says that it is one, starts none: it would be
    a run of its own.
    """
    if state.enabled:
        # A spawned child finds its parent's run when it first asks for the journal.
        current_journal()
    run = active_run()
    if run is not None:
        return run, False
    if not logs and find_place(os.environ).launcher == "single":
        return None, False
    return init(name), True


def place_rank() -> int:
    """The rank of this process as its launcher or its run says."""
    run = active_run()
    return find_place(os.environ).rank if run is None else run.rank


class Context:
    """One stretch of logging, on one worker.

    Attributes:
        run: the run that is recorded into; None when there is none on this worker.
        owns_run: whether the run was started for this.
        journal: what is written to; None when nothing is recorded.
        number: of the logger within its process, from 1; 0 for one that does not log here.
        key: what it is called within its process, such as ``mlflow`` or ``mlflow-2``.
        delivery: what brings the records to the backend; None where there is none.
        audience: who hears of what is logged, for the end; None where nothing is recorded.
        readings: what ``system``, ``carbon`` and ``execution_time`` ask.
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
        self.audience: Audience | None = None
        self.watched: list[ModelStatistics] = []
        self._readings: Readings | None = None
        self._is_over = False
        self._working: list[threading.Thread] = []
        self._undone: list[Callable[[], None]] = []
        if self.logs:
            self._readings = _readings(run)
        if run is not None and self.journal is None:
            self.logs = False
        if self.logs:
            _open_contexts.add(self)

    @property
    def readings(self) -> Readings:
        """They count from the beginning of the context."""
        if self._readings is None:
            self._readings = Readings()
        return self._readings

    @property
    def is_here(self) -> bool:
        """Whether this process created it, and did not merely inherit it."""
        return self.pid == os.getpid()

    # Its beginning

    def register(self, to: str) -> None:
        """Take a number among the loggers of this process."""
        if self.journal is not None:
            known = _registers.setdefault(self.journal, _Register())
            self.number, self.key = known.add(to)

    def announce(self, to: str, backend: Any) -> None:
        """Tell the journal that this logger begins, and where its records go."""
        if self.journal is None:
            return
        about = {"number": self.number, "to": to, "rank": self.rank}
        made_of = {} if backend is None else backend.description()
        self.journal.write_event(LOGGER, self.key, {**about, **made_of}, span=None)
        if self.run is not None:
            self.run.before_finish(self._run_ends)

    def deliver(self, backend: Any) -> None:
        """Have the backend fed from now on; nobody waits for it."""
        run = self.run
        if run is None or run._recorder is None or run._recorder.pid != self.pid:
            warn_once(
                f"no delivery {self.pid}",
                "this process was started by the one that records the run: what it logs is in the run "
                "folder, and goes to no backend",
            )
            return
        try:
            from stepwell.loggers.delivery.sending import start_delivery

            self.delivery = start_delivery(run, backend)
        except StepwellError as error:
            misuse(f"delivery {self.key}", str(error))
        except Exception as error:
            report(f"delivery of {self.key}", error)

    def work(self, task: Callable[[], None]) -> None:
        """Have something done in the background; without a thread (none can be had), at the end."""
        thread = start_thread(f"stepwell-logger-{self.key}", task)
        self._undone.append(task) if thread is None else self._working.append(thread)

    def _do(self, task: Callable[[], None]) -> None:
        try:
            task()
        except Exception as error:
            report(f"work of {self.key}", error)

    # Its end

    def pass_run_on(self) -> bool:
        """Let another logger of the run end the run, when it ends itself; return whether there is one."""
        _open_contexts.discard(self)
        for other in list(_open_contexts):
            if other.run is self.run and other.is_here:
                other.owns_run = True
                return True
        return False

    def _run_ends(self, status: str) -> None:
        self.end(status)

    @quietly
    def end(self, status: str) -> None:
        """Tell the journal how it ended; only the first word counts."""
        if self._is_over or self.journal is None or not self.is_here:
            return
        self._is_over = True
        _open_contexts.discard(self)
        self.complete()
        if state.journal is self.journal:
            self._settle()
            about = {"number": self.number, "status": status}
            self.journal.write_event(LOGGER, self.key, about, span=None)

    def complete(self, status: str = "") -> None:
        """Stop watching models, wait for what is being made, and say which metrics were left out."""
        for watch in self.watched:
            watch.close()
        self.watched.clear()
        deadline = time.monotonic() + WORK
        for thread in self._working:
            thread.join(max(0.0, deadline - time.monotonic()))
        while self._undone:
            self._do(self._undone.pop(0))
        audience, self.audience = self.audience, None
        if audience is not None:
            audience.warn_left_out()

    def _settle(self) -> None:
        """Have everything in the files that was logged: values that are still on an accelerator come, too."""
        if self.journal is not None:
            with contextlib.suppress(OSError):
                self.journal.write_back()
        recorder = None if self.run is None else self.run._recorder
        if recorder is not None and self.journal is not None and self.journal.scalars.pending:
            recorder.pump.flush(FLUSH)

    def flush(self, timeout: float) -> bool:
        """Have all delivered that was logged until now; whether it was in time."""
        if self.run is None or not self.logs or not self.is_here:
            return True
        deadline = time.monotonic() + timeout
        recorder = self.run._recorder
        in_folder = recorder is None or recorder.pump.flush(timeout)
        if self.delivery is None:
            return in_folder
        return bool(self.delivery.drain(max(0.0, deadline - time.monotonic()))) and in_folder


@quietly
def finish_contexts(contexts: Sequence[Context], status: str, timeout: float | None) -> None:
    """Have everything delivered that was logged in contexts that have ended, all at once."""
    from stepwell.telemetry.deliveries import finish_deliveries

    ended = [context for context in contexts if context.delivery is not None and context.is_here]
    deliveries = [context.delivery.delivery for context in ended]
    quiet = all(context.run is None or context.run.quiet for context in ended)
    finish_deliveries([each for each in deliveries if each is not None], status, timeout, quiet)


def _readings(run: Run | None) -> Readings:
    recorder = None if run is None else run._recorder
    about = {} if recorder is None else recorder.about
    return Readings(tells_for_node=not about.get("local_rank"))


def load_backend(name: str) -> Any:
    """A class by its dotted name."""
    module, _, own = name.rpartition(".")
    try:
        return getattr(import_module(module), own)
    except (ImportError, AttributeError, ValueError) as error:
        raise StepwellError(
            f"backend_class is {name!r}: {error}; write package.module.Class, as it is imported"
        ) from None
