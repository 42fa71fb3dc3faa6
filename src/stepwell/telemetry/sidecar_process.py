"""Exporters in a process of their own: what runs in that process.

It follows the folder of the process that trains, sends what is new, and answers on its standard output
when it is asked on its standard input how far it is. When training has ended, well or not, it sends
the rest and ends; if nobody takes it, it gives up after a while and leaves a note.
"""

from __future__ import annotations

import json
import os
import queue
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
from stepwell.telemetry.feeding import QUARANTINE_DELAY, feed_of
from stepwell.telemetry.modesty import Modesty
from stepwell.telemetry.run_document import RUN
from stepwell.telemetry.sidecar import BROKEN, DELIVERED, STOPPED, UNABLE, UNDELIVERED
from stepwell.telemetry.sidecar_notes import Notes, remove_note, write_note

POLL = 0.5
"""How often it looks for new records, in seconds."""
RETRY = 2.0
"""How often it tries again when training has ended and time is short."""
RUN_DOCUMENT_WAIT = 10.0
"""Another rank writes the name of the run, a moment later perhaps."""
TERM_LINGER = 5.0
"""A scheduler that says SIGTERM kills half a minute later, or sooner."""


def main(about: dict[str, Any]) -> NoReturn:
    """Run a sidecar; ``about`` is what ``Sidecar`` tells it."""
    modesty = Modesty()
    modesty.begin()
    _be_silent()
    notes = Notes(Path(about["folder"]), about["notes"])
    code = UNABLE
    try:
        following = Follow(about, notes, modesty)
        code = BROKEN
        code = following.run()
    except BaseException as error:
        problem = f"{type(error).__name__}: {error}"
        notes.write(f"the sidecar failed: {problem}")
        _answer({"problem": problem})
    # At once: a thread is still waiting for what the trainer might say.
    os._exit(code)


def _be_silent() -> None:
    """Leave its terminal to training."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    # The trainer reads no more than what is said before this point.
    os.dup2(nowhere, 2)
    os.close(nowhere)


class Follow:
    """Feeds one exporter from the folder of a process that trains."""

    def __init__(self, about: dict[str, Any], notes: Notes, modesty: Modesty | None = None) -> None:
        self.about = about
        self.notes = notes
        self.modesty = modesty or Modesty()
        self.folder = Path(about["folder"])
        self.linger = float(about["linger"])
        self.closing = False
        self.stopped = False
        self.commands: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
        self.failures = 0
        self.failing = False
        self.labelled_at = 0
        self.tick_due = 0.0
        self.tick_pause = POLL
        self.exporter = make_exporter(about["class"], about["options"])
        self._wait_for_run_document()
        filter = ExportFilter.from_json(about["filter"])
        self.feed = feed_of(self.exporter, self.folder, filter, self._source(), about["name"])

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
        threading.Thread(target=self._listen, daemon=True).start()
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
        self.modesty.keep()
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

    def _listen(self) -> None:
        """A thread: takes what the trainer says, a line at a time."""
        stream = open(0, "rb", buffering=0, closefd=False)
        while line := stream.readline():
            words = line.decode("utf-8", "replace").split()
            if words[:1] == ["close"] and self.failing:
                # Said from here, since the main thread may be waiting for a receiver.
                _answer({**self._state(), "failing": True})
            # From here too: the main thread may take long for want of a processor.
            self.modesty.hurry()
            self.commands.put(words)

    def _next_command(self, timeout: float) -> list[str]:
        try:
            return self.commands.get(block=timeout > 0, timeout=timeout or None)
        except queue.Empty:
            return []

    def _obey(self, words: list[str]) -> None:
        if words[:1] == ["close"]:
            self.closing = True
        elif words[:1] == ["drain"]:
            delivered = self.feed.drain(time.monotonic() + float(words[2]))
            self._look_at_failures()
            self.modesty.rest()
            _answer({**self._state(), "drain": int(words[1]), "delivered": delivered})

    def _terminated(self, *_: object) -> None:
        self.closing = self.stopped = True
        self.linger = min(self.linger, TERM_LINGER)

    # The end

    def _finish(self) -> int:
        """Send the rest, for as long as ``linger`` allows."""
        self.modesty.hurry()
        deadline = time.monotonic() + self.linger
        while not self._is_done(deadline):
            self._look_at_failures()
            if self.failing:
                _answer({**self._state(), "failing": True})
            if time.monotonic() >= deadline or not self.folder.is_dir():
                return self._give_up()
            time.sleep(min(RETRY, max(0.0, deadline - time.monotonic())) if self.failing else 0.05)
        self.feed.close()
        self._look_at_failures()
        remove_note(self.folder, self.about["notes"])
        _answer({**self._state(), "ended": True, "delivered": True})
        return STOPPED if self.stopped and not self.feed.over else DELIVERED

    def _is_done(self, deadline: float) -> bool:
        # A process that was killed is over when its open spans were given out as unfinished.
        drained = self.feed.drain(deadline)
        return drained and (self.closing or self.feed.over)

    def _give_up(self) -> int:
        self.feed.close()
        self.notes.write(f"gave up: {self.feed.waiting} or more records were not delivered")
        write_note(self.folder, self.about, self.exporter, self._state())
        _answer({**self._state(), "ended": True, "delivered": False})
        return UNDELIVERED

    def _state(self) -> dict[str, Any]:
        feed = self.feed
        return {
            "sent": feed.sent,
            "waiting": feed.waiting,
            "failures": feed.failures,
            "problem": feed.last_error if self.failing else None,
        }


def _changed_at(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _nothing(*_: object) -> None:
    """In place of a method that an exporter does not have."""


def _answer(told: dict[str, Any]) -> None:
    """One line to the trainer, who may be gone."""
    line = json.dumps(told).encode() + b"\n"
    try:
        os.write(1, line)
    except OSError:
        pass


if __name__ == "__main__":
    sys.exit("this is started by stepwell itself")
