"""Exporters in a process of their own: what runs in that process.

It follows the folder of the process that trains, sends what is new, and tells on a pipe how far it
is while that process waits, which it says on its standard input. When training has ended, well or not, it
sends the rest and ends. If the receiver takes nothing, it gives up after a while and leaves a note.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

from stepwell.journal.document import PROCESS, read_json
from stepwell.journal.system import is_alive
from stepwell.telemetry.export_filter import ExportFilter
from stepwell.telemetry.exporter import Source, source_of
from stepwell.telemetry.exporter_loading import make_exporter
from stepwell.telemetry.feeding import FAILING, QUARANTINE_DELAY, STARTING, WAITING, Feed, feed_of
from stepwell.telemetry.priority import Priority
from stepwell.telemetry.run_document import RUN
from stepwell.telemetry.sidecar import BROKEN, DELIVERED, STOPPED, UNABLE, UNDELIVERED
from stepwell.telemetry.sidecar_notes import Notes, remove_note, write_note

POLL = 0.5
"""How often it looks for new records, in seconds."""
RETRY = 2.0
"""How often it tries again when training has ended and time is short."""
RUN_DOCUMENT_WAIT = 10.0
"""Another rank writes the name of the run, a moment later perhaps."""
WAITING_LINGERS = 10
"""So many times longer it waits for another process, which makes a database, say, than for one that fails."""
TERM_LINGER = 5.0
"""A scheduler that says SIGTERM kills half a minute later, or sooner."""
REPORT = 0.2
"""How often the trainer is told how far it is, in seconds, while it waits."""


def main(about: dict[str, Any]) -> NoReturn:
    """Run a sidecar; ``about`` is what ``Sidecar`` tells it."""
    trainer = TrainerLink(os.dup(1))
    trainer.start()
    _be_silent()
    notes = Notes(Path(about["folder"]), about["notes"])
    code = UNABLE
    try:
        following = Follow(about, notes, trainer)
        code = BROKEN
        code = following.run()
    except BaseException as error:
        problem = f"{type(error).__name__}: {error}"
        notes.write(f"the sidecar failed: {problem}")
        trainer.tell({"problem": problem})
    # At once: a thread is still waiting for what the trainer might say.
    os._exit(code)


def _be_silent() -> None:
    """Discard what an SDK prints: standard output is the pipe on which the trainer reads reports."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    # The trainer reads no more than what is said before this point.
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    os.close(nowhere)


class TrainerLink:
    """The pipes to the process that trains: what it asks for, and what it is told while it waits.

    Works from the first moment on, in threads, since imports and receivers may keep the main thread for long.

    Args:
        output: descriptor of the pipe to the trainer; None where no trainer listens.

    Attributes:
        commands: what the main thread is to do.
        priority: low, except while the trainer waits.
        feed: what is reported on; None before there is one.
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
        """Lower the priority, unless the trainer waits already: not every user can raise it again."""
        if not _has_input():
            self.priority.lower()
        for work in (self._listen, self._report):
            threading.Thread(target=work, daemon=True).start()

    def hurry(self) -> None:
        """The trainer waits."""
        self._is_waiting.set()
        self.priority.restore()

    def rest(self) -> None:
        """The trainer does not wait, or no longer."""
        self._is_waiting.clear()
        self.priority.lower()

    def state(self) -> dict[str, Any]:
        """Return how far it is, in plain values."""
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
        """Write one line to the trainer, which may be gone."""
        if self._output is None:
            return
        rest = json.dumps(facts).encode() + b"\n"
        with self._telling, contextlib.suppress(OSError):
            while rest:
                rest = rest[os.write(self._output, rest) :]

    def _listen(self) -> None:
        """A thread: takes what the trainer says, a line at a time."""
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
        """A thread: tells the trainer how far it is, for as long as it waits."""
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
            return  # It does not know yet where it goes on.
        self._is_to_count = False
        try:
            sent, left = feed.sent, feed.count_left()
        except Exception:  # A file is being replaced, or is damaged: it is for information only.
            return
        self.total = None if left is None else sent + left


def _has_input() -> bool:
    """Whether the trainer has said something that was not read yet."""
    try:
        return bool(select.select([0], [], [], 0)[0])
    except (OSError, ValueError):
        return False


class Follow:
    """Feeds one exporter from the folder of a process that trains."""

    def __init__(
        self, about: dict[str, Any], notes: Notes, trainer: TrainerLink | None = None
    ) -> None:
        self.about = about
        self.notes = notes
        self.trainer = trainer or TrainerLink()
        self.folder = Path(about["folder"])
        self.linger = float(about["linger"])
        self.closing = False
        self.stopped = False
        self.failures = 0
        self.failing = False
        self.labelled_at = 0
        self.tick_due = 0.0
        self.tick_pause = POLL
        self.exporter = make_exporter(about["class"], about["options"])
        self._wait_for_run_document()
        filter = ExportFilter.from_json(about["filter"])
        self.feed = feed_of(self.exporter, self.folder, filter, self._source(), about["name"])
        self.trainer.feed = self.feed

    def _wait_for_run_document(self) -> None:
        deadline = time.monotonic() + RUN_DOCUMENT_WAIT
        while read_json(self.folder.parent / RUN) is None and time.monotonic() < deadline:
            time.sleep(0.05)

    def _source(self) -> Source:
        return source_of(self.folder, read_json(self.folder / PROCESS) or {})

    # The loop

    def run(self) -> int:
        """Until training has ended and everything is sent, or longer makes no sense."""
        signal.signal(signal.SIGTERM, self._terminated)
        while not (self.closing or self.feed.over or self._is_trainer_gone()):
            more = self._step()
            self._tick()
            self._obey(
                self._next_command(0.0 if more else max(POLL, min(self.feed.pause(), RETRY)))
            )
        return self._finish()

    def _step(self) -> bool:
        more = self.feed.step()
        self._look_at_failures()
        return more

    def _tick(self) -> None:
        """Let the exporter do what has to be done now and then, if it has any such thing."""
        if self.feed.pause() or time.monotonic() < self.tick_due:
            return
        self.tick_due = time.monotonic() + POLL
        self.trainer.priority.keep()
        try:
            self._relabel()
            getattr(self.exporter, "tick", _nothing)()
        except Exception as error:
            self.tick_pause = min(2 * self.tick_pause, QUARANTINE_DELAY)
            self.tick_due = time.monotonic() + self.tick_pause
            self.notes.write(f"not delivered: {error}", "tick")
        else:
            self.tick_pause = POLL

    def _relabel(self) -> None:
        """The name and the labels of a run may come after it has begun."""
        changed = _changed_at(self.folder.parent / RUN)
        if changed == self.labelled_at:
            return
        self.labelled_at = changed
        source = self._source()
        if source != self.feed.source:
            self.feed.source = source
            getattr(self.exporter, "relabel", _nothing)(source)

    def _look_at_failures(self) -> None:
        """Note down when it begins to fail, and when that is over."""
        if self.feed.failures > self.failures:
            self.failures = self.feed.failures
            self.failing = True
            self.notes.write(f"not delivered, it is tried again: {self.feed.last_error}", "failed")
        elif self.failing and not self.feed.waiting and not self.feed.pause():
            self.failing = False
            self.notes.write("delivered again")

    def _is_trainer_gone(self) -> bool:
        return not is_alive(int(self.about["pid"]), int(self.about["start"]))

    # Commands

    def _next_command(self, timeout: float) -> list[str]:
        try:
            return self.trainer.commands.get(block=timeout > 0, timeout=timeout or None)
        except queue.Empty:
            return []

    def _obey(self, words: list[str]) -> None:
        if words[:1] == ["close"]:
            # Again, since what it waited for before may have ended in between.
            self.trainer.hurry()
            self.closing = True
        elif words[:1] == ["drain"]:
            self.trainer.hurry()
            delivered = self.feed.drain(time.monotonic() + float(words[2]))
            self._look_at_failures()
            self.trainer.rest()
            self._tell(drain=int(words[1]), delivered=delivered)

    def _terminated(self, *_: object) -> None:
        self.closing = self.stopped = True
        self.linger = min(self.linger, TERM_LINGER)

    # The end

    def _finish(self) -> int:
        """Send the rest, until there was no progress for as long as ``_patience`` says."""
        self.trainer.priority.restore()
        feed, since = self.feed, time.monotonic()
        progress = (feed.is_open, feed.sent)
        while not self._is_done(since + self._patience):
            self._look_at_failures()
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
        self._look_at_failures()
        remove_note(self.folder, self.about["notes"])
        self._tell(ended=True, delivered=True)
        return STOPPED if self.stopped and not self.feed.over else DELIVERED

    @property
    def _patience(self) -> float:
        """Seconds without progress after which it gives up: other processes get more time than failures."""
        is_waiting = self.feed.stage == WAITING and not self.stopped
        return WAITING_LINGERS * self.linger if is_waiting else self.linger

    def _is_done(self, deadline: float) -> bool:
        # A process that was killed is over when its open spans were given out as unfinished.
        drained = self.feed.drain(deadline, closing=True)
        return drained and (self.closing or self.feed.over)

    def _give_up(self) -> int:
        state = self._state()
        self.feed.close()
        self.notes.write(f"gave up: {self.feed.waiting} or more records were not delivered")
        write_note(self.folder, self.about, self.exporter, state)
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


def _nothing(*_: object) -> None:
    """In place of a method that an exporter does not have."""


if __name__ == "__main__":
    sys.exit("this is started by stepwell itself")
