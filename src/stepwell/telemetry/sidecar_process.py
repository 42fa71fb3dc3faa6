"""The sidecar process: runs one exporter.

It follows the folder of the training process, sends new records, and reports its progress on a pipe while
that process waits for it; requests come on standard input. When training has ended, in whatever way, it
sends the rest and exits. If the receiver accepts nothing, it gives up after a while and leaves a note.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import select
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

from stepwell._core.files import read_json
from stepwell._core.system import is_alive
from stepwell.journal.format import PROCESS
from stepwell.telemetry.exporter import ExportFilter, Source, read_source
from stepwell.telemetry.exporter_config import make_exporter
from stepwell.telemetry.feed import (
    FAILING,
    QUARANTINE_DELAY,
    STARTING,
    WAITING,
    Feed,
    do_nothing,
    make_feed,
)
from stepwell.telemetry.forward import remove_note, write_note
from stepwell.telemetry.os_process import Priority
from stepwell.telemetry.run_document import RUN
from stepwell.telemetry.sidecar import BROKEN, DELIVERED, STOPPED, UNABLE, UNDELIVERED

POLL = 0.5
"""Seconds between two looks for new records."""
RETRY = 2.0
"""Seconds between retries when training has ended and time is short."""
RUN_DOCUMENT_WAIT = 10.0
"""Seconds to wait for run.json, which another rank may write a little later."""
WAITING_LINGERS = 10
"""Factor of ``linger`` while it waits for another process, which creates a database, for example."""
TERM_LINGER = 5.0
"""Seconds after SIGTERM: schedulers send SIGKILL half a minute later, or sooner."""
REPORT = 0.2
"""Seconds between progress reports while the trainer waits."""
FIRST_PAUSE = 60.0
LONGEST_PAUSE = 3600.0
"""Seconds before a line of the same kind is written to the log again: at first, and at most."""
MAX_LOG = 1 << 20


def main(setup: dict[str, Any]) -> NoReturn:
    """Run a sidecar; ``setup`` is the first line that ``Sidecar`` sends."""
    trainer = TrainerLink(os.dup(1))
    trainer.start()
    _discard_output()
    notes = SidecarLog(Path(setup["folder"]), setup["notes"])
    code = UNABLE
    try:
        worker = SidecarWorker(setup, notes, trainer)
        code = BROKEN
        code = worker.run()
    except BaseException as error:
        problem = f"{type(error).__name__}: {error}"
        notes.write(f"the sidecar failed: {problem}")
        trainer.tell({"problem": problem})
    # Immediately: a thread still waits for requests of the trainer.
    os._exit(code)


def _discard_output() -> None:
    """Discard the output of the SDK: standard output is the pipe for progress reports."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    # The trainer reads only errors printed before this point.
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    os.close(nowhere)


class TrainerLink:
    """The pipes to the training process: its requests, and progress reports while it waits.

    Works in threads from the start, because imports and receivers may block the main thread for long.

    Args:
        output: descriptor of the pipe to the trainer; None without a trainer.

    Attributes:
        commands: requests for the main thread.
        priority: low, except while the trainer waits.
        feed: the feed to report on; None before it exists.
    """

    def __init__(self, output: int | None = None) -> None:
        self._output = output
        self._telling = threading.Lock()
        self.commands: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
        self.priority = Priority()
        self.feed: Feed | None = None
        self.total: int | None = None
        self._is_to_count = False
        self._is_waiting = threading.Event()
        self._reported: dict[str, Any] = {}

    def start(self) -> None:
        """Lower the priority, unless the trainer already waits: not every user can raise it again."""
        if not _has_input():
            self.priority.lower()
        for work in (self._listen, self._report):
            threading.Thread(target=work, daemon=True).start()

    def hurry(self) -> None:
        """Raise the priority: the trainer waits."""
        self._is_waiting.set()
        self.priority.restore()

    def rest(self) -> None:
        """Lower the priority: the trainer does not wait."""
        self._is_waiting.clear()
        self.priority.lower()

    def state(self) -> dict[str, Any]:
        """Return the progress, as plain values."""
        feed = self.feed
        if feed is None:
            return {"stage": STARTING}
        stage = feed.stage
        return {
            "sent": feed.sent,
            "waiting": feed.waiting,
            "failures": feed.failures,
            "problem": feed.last_error if stage in (FAILING, WAITING) else None,
            "stage": stage,
            "total": self.total,
        }

    def tell(self, facts: dict[str, Any]) -> None:
        """Send a report to the trainer, if it still runs."""
        if self._output is None:
            return
        rest = json.dumps(facts).encode() + b"\n"
        with self._telling, contextlib.suppress(OSError):
            while rest:
                rest = rest[os.write(self._output, rest) :]

    def _listen(self) -> None:
        """Read the requests of the trainer, one per line. Runs in a thread."""
        stream = open(0, "rb", buffering=0, closefd=False)
        while line := stream.readline():
            words = line.decode("utf-8", "replace").split()
            if words[:1] == ["rest"]:
                self.rest()
            elif words[:1] == ["count"]:
                self._is_to_count = True
            else:
                self.hurry()
                self.commands.put(words)
        self.rest()

    def _report(self) -> None:
        """Report the progress to the trainer while it waits. Runs in a thread."""
        while self._is_waiting.wait():
            self.priority.keep()
            if self._is_to_count:
                self._count()
            state = self.state()
            if state != self._reported:
                self._reported = state
                self.tell(state)
            time.sleep(REPORT)

    def _count(self) -> None:
        feed = self.feed
        if feed is None or feed.stage in (STARTING, WAITING):
            return  # It does not know yet where to continue.
        self._is_to_count = False
        try:
            sent, left = feed.sent, feed.count_left()
        except (
            Exception
        ):  # A file is being replaced or is damaged. The count is only for information.
            return
        self.total = None if left is None else sent + left


class SidecarLog(logging.Handler):
    """A small log file of problems, created with its first line. Contains stepwell's warnings too.

    A line of the same kind is repeated only after one minute, then two, four, up to an hour.
    """

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(logging.WARNING)
        self.path = folder / f"{name}.log"
        self._kinds: dict[str, tuple[float, float]] = {}
        logging.getLogger("stepwell").addHandler(self)

    def write(self, text: str, kind: str | None = None) -> None:
        """Append a line with the time, unless one of this kind was written recently."""
        if kind is not None and not self._is_due(kind):
            return
        when = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        line = " ".join(f"{when} {text}".split()) + "\n"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        try:
            fd = os.open(self.path, flags, 0o644)
            try:
                if os.fstat(fd).st_size < MAX_LOG:
                    os.write(fd, line.encode("utf-8", "replace"))
            finally:
                os.close(fd)
        except OSError:
            pass  # The run folder is gone or full; there is nowhere else to write.

    def emit(self, record: logging.LogRecord) -> None:
        """Write a warning of stepwell in this process."""
        self.write(record.getMessage(), str(record.msg))

    def _is_due(self, kind: str) -> bool:
        now = time.monotonic()
        due, pause = self._kinds.get(kind, (0.0, FIRST_PAUSE))
        if now < due:
            return False
        self._kinds[kind] = (now + pause, min(2 * pause, LONGEST_PAUSE))
        return True


def _has_input() -> bool:
    """Return whether there is an unread request of the trainer."""
    try:
        return bool(select.select([0], [], [], 0)[0])
    except (OSError, ValueError):
        return False


class SidecarWorker:
    """Feeds one exporter from the folder of a training process."""

    def __init__(
        self, setup: dict[str, Any], notes: SidecarLog, trainer: TrainerLink | None = None
    ) -> None:
        self.setup = setup
        self.notes = notes
        self.trainer = trainer or TrainerLink()
        self.folder = Path(setup["folder"])
        self.linger = float(setup["linger"])
        self.closing = False
        self.stopped = False
        self.failures = 0
        self.failing = False
        self.labelled_at = 0
        self.tick_due = 0.0
        self.tick_pause = POLL
        self.exporter = make_exporter(setup["class"], setup["options"])
        self._wait_for_run_document()
        filter = ExportFilter.from_json(setup["filter"])
        self.feed = make_feed(self.exporter, self.folder, filter, self._source(), setup["name"])
        self.trainer.feed = self.feed

    def _wait_for_run_document(self) -> None:
        deadline = time.monotonic() + RUN_DOCUMENT_WAIT
        while read_json(self.folder.parent / RUN) is None and time.monotonic() < deadline:
            time.sleep(0.05)

    def _source(self) -> Source:
        return read_source(self.folder, read_json(self.folder / PROCESS) or {})

    # The loop

    def run(self) -> int:
        """Run until training has ended and everything is sent, or it gives up; return the exit code."""
        signal.signal(signal.SIGTERM, self._terminated)
        while not (self.closing or self.feed.over or self._is_trainer_gone()):
            more = self._step()
            self._tick()
            self._execute(
                self._next_command(0.0 if more else max(POLL, min(self.feed.pause(), RETRY)))
            )
        return self._finish()

    def _step(self) -> bool:
        more = self.feed.step()
        self._note_failures()
        return more

    def _tick(self) -> None:
        """Call the exporter's ``tick``, if it has one, at regular intervals."""
        if self.feed.pause() or time.monotonic() < self.tick_due:
            return
        self.tick_due = time.monotonic() + POLL
        self.trainer.priority.keep()
        try:
            self._relabel()
            getattr(self.exporter, "tick", do_nothing)()
        except Exception as error:
            self.tick_pause = min(2 * self.tick_pause, QUARANTINE_DELAY)
            self.tick_due = time.monotonic() + self.tick_pause
            self.notes.write(f"not delivered: {error}", "tick")
        else:
            self.tick_pause = POLL

    def _relabel(self) -> None:
        """Pass on a new name or new labels of the run."""
        changed = _changed_at(self.folder.parent / RUN)
        if changed == self.labelled_at:
            return
        self.labelled_at = changed
        source = self._source()
        if source != self.feed.source:
            self.feed.source = source
            getattr(self.exporter, "relabel", do_nothing)(source)

    def _note_failures(self) -> None:
        """Write a note when it begins to fail, and when it works again."""
        if self.feed.failures > self.failures:
            self.failures = self.feed.failures
            self.failing = True
            self.notes.write(f"not delivered, will retry: {self.feed.last_error}", "failed")
        elif self.failing and not self.feed.waiting and not self.feed.pause():
            self.failing = False
            self.notes.write("delivered again")

    def _is_trainer_gone(self) -> bool:
        return not is_alive(int(self.setup["pid"]), int(self.setup["start"]))

    # Commands

    def _next_command(self, timeout: float) -> list[str]:
        try:
            return self.trainer.commands.get(block=timeout > 0, timeout=timeout or None)
        except queue.Empty:
            return []

    def _execute(self, words: list[str]) -> None:
        if words[:1] == ["close"]:
            # Again, because a wait before may have ended in between.
            self.trainer.hurry()
            self.closing = True
        elif words[:1] == ["drain"]:
            self.trainer.hurry()
            delivered = self.feed.drain(time.monotonic() + float(words[2]))
            self._note_failures()
            self.trainer.rest()
            self._tell(drain=int(words[1]), delivered=delivered)

    def _terminated(self, *_: object) -> None:
        self.closing = self.stopped = True
        self.linger = min(self.linger, TERM_LINGER)

    # The end

    def _finish(self) -> int:
        """Send the rest, until there is no progress for ``_patience`` seconds; return the exit code."""
        self.trainer.priority.restore()
        feed, since = self.feed, time.monotonic()
        progress = (feed.is_open, feed.sent)
        while not self._is_done(since + self._patience):
            self._note_failures()
            if self.failing:
                self._tell(failing=True)
            left = since + self._patience - time.monotonic()
            if (feed.is_open, feed.sent) != progress and not self.stopped:
                progress, since = (feed.is_open, feed.sent), time.monotonic()
            elif left <= 0 or not self.folder.is_dir():
                return self._give_up()
            else:
                time.sleep(min(RETRY, left) if self.failing else 0.05)
        self.feed.close()
        self._note_failures()
        remove_note(self.folder, self.setup["notes"])
        self._tell(ended=True, delivered=True)
        return STOPPED if self.stopped and not self.feed.over else DELIVERED

    @property
    def _patience(self) -> float:
        """Seconds without progress after which it gives up: longer while it waits for another process."""
        is_waiting = self.feed.stage == WAITING and not self.stopped
        return WAITING_LINGERS * self.linger if is_waiting else self.linger

    def _is_done(self, deadline: float) -> bool:
        # A killed process is over when its open spans were delivered as unfinished.
        drained = self.feed.drain(deadline, closing=True)
        return drained and (self.closing or self.feed.over)

    def _give_up(self) -> int:
        state = self._state()
        self.feed.close()
        self.notes.write(f"gave up: at least {self.feed.waiting} records were not delivered")
        write_note(self.folder, self.setup, self.exporter, state)
        self._tell(ended=True, delivered=False)
        return UNDELIVERED

    def _tell(self, **answer: Any) -> None:
        self.trainer.tell({**self._state(), **answer})

    def _state(self) -> dict[str, Any]:
        is_late = self.failing or self.feed.stage == WAITING
        return {
            **self.trainer.state(),
            "problem": self.feed.last_error if is_late else None,
        }


def _changed_at(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


if __name__ == "__main__":
    sys.exit("this module is started by stepwell itself")
