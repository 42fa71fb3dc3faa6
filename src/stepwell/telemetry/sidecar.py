"""Exporters in a process of their own: the side of the process that trains.

An SDK in a thread of the training process would take the interpreter from it again and again. So
such exporters read the run folder from a spawned process, the *sidecar*. It survives a kill -9 of
this process, ends by itself soon after it, and holds none of its files, pipes or devices.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from stepwell.journal.errors import StepwellError, say, warn_once
from stepwell.journal.system import process_start
from stepwell.journal.threads import start_thread
from stepwell.telemetry.deliveries import STALL, DeliveryProgress
from stepwell.telemetry.export_filter import ExportFilter
from stepwell.telemetry.feeding import FAILING, STARTING, WAITING, name_of
from stepwell.telemetry.os_process import is_held_up, measure_work
from stepwell.telemetry.priority import restore_priority
from stepwell.telemetry.sidecar_notes import forward_command

# It must find what this process finds, and nothing that merely lies in the working folder.
BOOT = """
import sys
import threading
sys.path[:] = [place for place in sys.path if place]
import json
about = json.loads(open(0, "rb", buffering=0, closefd=False).readline())
sys.path[:] = about["path"]
from stepwell.telemetry.sidecar_process import main
main(about)
"""
NO_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
NOT_FOR_IT = ("STEPWELL_EXPORTERS", "STEPWELL_STRICT", "PYTHONWARNINGS")
LINGER = 60.0
MOST_DEATHS = 4
MOST_KILLS = 32
"""It is not started again after this many failures of its own, or kills by a signal."""
DELIVERED, BROKEN, UNDELIVERED, UNABLE, STOPPED = 0, 1, 3, 4, 5
"""How a sidecar ends: all is delivered; it failed; it gave up; it was unable to begin; somebody ended it
while there may be more to come."""
LONG_PATIENCE = 60.0
"""Seconds that nothing may happen while it waits for another rank, for a processor or for the disk, or starts
where the system does not say how busy a process is."""

_used_names: Counter[tuple[str, str]] = Counter()
_left: list[subprocess.Popen[bytes]] = []


class Sidecar:
    """One exporter in a process of its own, which follows this process's folder."""

    def __init__(self, exporter: Any, folder: Path, filter: ExportFilter) -> None:
        self.exporter = exporter
        self.folder = Path(folder).absolute()
        self.pid = os.getpid()
        self.name = name_of(exporter)
        self._about = self._describe(filter)
        self._process: subprocess.Popen[bytes] | None = None
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._has_told_all = False
        # The pump starts it again while training; others may wait for it.
        self._lock = threading.RLock()
        self._starts = 0
        self._deaths = 0
        self._kills = 0
        self._asked = 0
        self._deadline = 0.0
        self._told: dict[str, Any] = {}
        self._closing = False
        self._closed = False
        self._delivered = False

    def _describe(self, filter: ExportFilter) -> dict[str, Any]:
        made_of = self.exporter.description()
        if str(made_of["class"]).startswith("__main__."):
            raise StepwellError(
                f"{self.name} runs in a process of its own, which cannot import the script that is "
                "running: put its class into a module"
            )
        _used_names[(str(self.folder), self.name)] += 1
        number = _used_names[(str(self.folder), self.name)]
        base = re.sub(r"[^\w-]", "_", self.name)[:40] + ("" if number == 1 else f"-{number}")
        return {
            **made_of,
            "filter": filter.to_json(),
            "folder": str(self.folder),
            "name": self.name,
            "notes": f"export-{base}",
            "linger": float(getattr(self.exporter, "linger", LINGER)),
            "pid": self.pid,
            "start": process_start(self.pid),
            "path": [place or os.getcwd() for place in sys.path if isinstance(place, str)],
        }

    # How it goes, as far as it told

    @property
    def sent(self) -> int:
        """How many records it had sent when it was last asked."""
        return int(self._told.get("sent", 0))

    @property
    def failures(self) -> int:
        """How many of its tries had failed when it was last asked."""
        return int(self._told.get("failures", 0))

    @property
    def last_error(self) -> str | None:
        """The latest failure in words."""
        problem = self._told.get("problem")
        return None if problem is None else str(problem)

    @property
    def process_id(self) -> int | None:
        """The process id of the sidecar, None when there is none."""
        return None if self._process is None else self._process.pid

    def __repr__(self) -> str:
        return f"<exporter {self.name} in process {self.process_id}: {self.sent} records sent>"

    # What its owner calls

    def start(self) -> None:
        """Start the process, without waiting for it."""
        if self._process is None and not self._closed and self.pid == os.getpid():
            self._spawn()

    def ask(self, timeout: float, closing: bool = False) -> None:
        """Have all sent that was recorded until now, and end with ``closing``."""
        if not self._is_here:
            return
        with self._lock:
            self._closing = closing
            self._deadline = time.monotonic() + timeout
            self._asked += 1
            self._pass_on()

    def look(self) -> DeliveryProgress:
        """Return how far it is with what it was last asked for; one that has died is started again."""
        if not self._is_here:
            return DeliveryProgress(True, True)
        with self._lock:
            return self._look()

    def _look(self) -> DeliveryProgress:
        if self._process is not None:
            has_ended = self._process.poll() is not None
            self._take_answers(until_end=has_ended)
            if has_ended and not self._is_answered:
                self._pass_on()
        process, told = self._process, self._told
        if process is None or self._is_answered:
            is_delivered = self._delivered if process is None else bool(told.get("delivered"))
            return DeliveryProgress(True, is_delivered, self.sent, self._total)
        stage = str(told.get("stage", STARTING))
        work = measure_work(process.pid)
        is_unclear = stage == WAITING or (stage == STARTING and work is None)
        is_slow = stage != FAILING and is_held_up(process.pid)
        patience = LONG_PATIENCE if is_unclear or is_slow else STALL
        return DeliveryProgress(False, False, self.sent, self._total, work or 0.0, stage, patience)

    def count(self) -> None:
        """Have it count what it has left."""
        if self._is_here and self._process is not None:
            self._tell("count")

    def hurry(self) -> None:
        """Give it the priority of this process, also while it is still starting."""
        if not self._is_here:
            return
        with self._lock:
            if self._revive():
                self._tell("hurry")
                self._raise()

    def keep_running(self) -> None:
        """Start it again if it has died. One that got SIGTERM is left alone: the job is probably ending."""
        if not self._is_here or self._closing:
            return
        with self._lock:
            process = self._process
            if process is not None and process.poll() not in (None, DELIVERED, STOPPED):
                self._revive()

    def rest(self) -> None:
        """Lower its priority again."""
        if self._is_here and self._process is not None:
            self._tell("rest")

    def leave(self, reason: str) -> None:
        """Wait no longer: it goes on by itself, and what is missing is said."""
        if not self._is_here:
            return
        is_delivered = self.look().is_delivered
        self._closed = True
        process = self._process
        if process is None:
            return  # It is done, or it was said why not.
        if not is_delivered and (reason or self.last_error):
            self._complain(reason, goes_on=not self._told.get("ended") and process.poll() is None)
        _leave(process)

    def _complain(self, reason: str, goes_on: bool) -> None:
        total, waiting = self._total, self._told.get("waiting")
        missing = (
            f"is missing at least {waiting:,} records" if waiting else "may be missing records"
        )
        if total is not None and total > self.sent:
            missing = f"is missing {total - self.sent:,} of {total:,} records"
        linger = self._about["linger"]
        background = f" delivery goes on in the background for up to {linger:g} s, and"
        say(
            "%s %s (%s);%s `%s` delivers the rest.",
            self.name,
            missing,
            self.last_error or reason,
            background if goes_on else "",
            forward_command(self.folder, self.name, self.exporter),
        )

    @property
    def _is_here(self) -> bool:
        """Whether this process started it, and has not ended it."""
        return self.pid == os.getpid() and not self._closed

    @property
    def _total(self) -> int | None:
        return self._told.get("total")

    # The process

    def _spawn(self) -> None:
        self._starts += 1
        _reap()
        if not sys.executable or getattr(sys, "frozen", False):
            self._deaths += 1
            self._cannot("there is no Python interpreter to start it with")
            return
        try:
            # Neither a terminal nor a pipe of this process: `train.py | tee log` must end with it.
            self._process = subprocess.Popen(
                [sys.executable, "-c", BOOT, f"stepwell {self.name} sidecar of {self.folder}"],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=_environment(),
                start_new_session=True,
            )
        except (OSError, ValueError, MemoryError, subprocess.SubprocessError) as error:
            self._deaths += 1
            self._cannot(str(error))
            return
        self._has_told_all = False
        self._answers = queue.SimpleQueue()
        self._listen(self._process.stdout)
        for fact in ("stage", "total"):
            self._told.pop(fact, None)
        self._tell(json.dumps(self._about))

    def _cannot(self, reason: str) -> None:
        self._process = None
        self._told = {**self._told, "problem": reason}
        warn_once(
            f"sidecar {self.folder} {self.name}",
            "exporter %s cannot be started (%s): training goes on. `%s` sends everything later.",
            self.name,
            reason,
            forward_command(self.folder, self.name, self.exporter),
        )

    def _revive(self) -> bool:
        """Whether it runs; one that died is started again, a few times."""
        process = self._process
        if process is not None and process.poll() is None:
            return True
        if process is not None:
            self._take_answers(until_end=True)
            self._delivered = process.returncode == DELIVERED
            reason = f"it ended with code {process.returncode} {_last_words(process)}".strip()
            _release(process)
            self._process = None
            if not self._may_start_after(process.returncode):
                self._cannot(self.last_error or reason)
        if self._deaths < MOST_DEATHS and self._kills < MOST_KILLS and not self._delivered:
            # It begins anew; its receiver gets the same ids again.
            self._spawn()
        return self._process is not None

    def _may_start_after(self, code: int) -> bool:
        """Count how it ended; whether it may be started again."""
        if code == UNABLE:
            self._deaths = MOST_DEATHS
        elif code < 0:
            self._kills += 1
        elif code not in (DELIVERED, STOPPED):
            self._deaths += 1
        return self._deaths < MOST_DEATHS and self._kills < MOST_KILLS

    # Talking with it

    def _pass_on(self) -> None:
        """Tell it what it was asked for; one that has died is started again for it."""
        if not self._revive():
            return
        for answer in ("ended", "failing", "delivered"):
            self._told.pop(answer, None)
        if self._closing:
            self._tell("close")
        else:
            # A little less, so that it can say in time why it did not succeed.
            seconds = 0.9 * max(0.0, self._deadline - time.monotonic())
            self._tell(f"drain {self._asked} {seconds:.3f}")
        self._raise()

    @property
    def _is_answered(self) -> bool:
        """Whether it has done what it was asked for, or has said that it cannot."""
        told = self._told
        if self._closing:
            return bool(told.get("ended") or told.get("failing"))
        return told.get("drain") == self._asked

    def _raise(self) -> None:
        """Raise its priority from here too: it may not read what it is told before it has started."""
        assert self._process is not None
        restore_priority(self._process.pid)

    def _tell(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        rest = memoryview(line.encode() + b"\n")
        try:
            while rest:
                rest = rest[self._process.stdin.write(rest) or 0 :]
        except (OSError, ValueError):
            pass  # It is gone; look() notices.

    def _take_answers(self, until_end: bool = False) -> None:
        """Take what it has told; with ``until_end`` all of it, since it has ended."""
        deadline = time.monotonic() + 1.0
        while not self._has_told_all:
            try:
                told = self._answers.get(until_end, max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return
            self._has_told_all = told is None
            self._told = {**self._told, **(told or {})}

    def _listen(self, stream: Any) -> None:
        """Read what it tells in a thread, from the start: Python 3.12 starts no threads while it exits."""
        if not start_thread(f"stepwell-sidecar-{self.name}", _read_answers, stream, self._answers):
            # How it ends still says whether all is delivered.
            stream.close()
            self._answers.put(None)


def _read_answers(stream: Any, answers: queue.SimpleQueue[dict[str, Any] | None]) -> None:
    """A thread: what the sidecar tells, None when it has ended."""
    pending = b""
    try:
        while data := stream.read(65536):
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                answers.put(json.loads(line))
    except (OSError, ValueError):
        pass
    stream.close()
    answers.put(None)


def _last_words(process: subprocess.Popen[bytes]) -> str:
    """The last line of what it said before it was up."""
    assert process.stderr is not None
    try:
        lines = (process.stderr.read(65536) or b"").decode("utf-8", "replace").strip().splitlines()
    except (OSError, ValueError):
        return ""
    return f"({lines[-1][:300]})" if lines else ""


def _environment() -> dict[str, str]:
    """This process's environment, without what would make the sidecar record or take a device."""
    kept = {name: value for name, value in os.environ.items() if name not in NOT_FOR_IT}
    return {**kept, **dict.fromkeys(NO_DEVICES, ""), "STEPWELL_MODE": "off"}


def _release(process: subprocess.Popen[bytes]) -> None:
    """Close the pipes to it; the one that is being read is closed by its reader."""
    for stream in (process.stdin, process.stderr):
        assert stream is not None
        stream.close()


def _leave(process: subprocess.Popen[bytes]) -> None:
    """Keep hold of a sidecar that goes on by itself, to reap it some time."""
    _release(process)
    if not _left:
        atexit.register(_let_go)
    _left.append(process)
    _reap()


def _reap() -> None:
    _left[:] = [process for process in _left if process.poll() is None]


def _let_go() -> None:
    """They outlive this process, which is meant to be so and deserves no warning."""
    _reap()
    for process in _left:
        process.returncode = 0
