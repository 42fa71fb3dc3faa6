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
from stepwell.telemetry.export_filter import ExportFilter
from stepwell.telemetry.feeding import name_of
from stepwell.telemetry.sidecar_notes import forward_command

# It must find what this process finds, and nothing that merely lies in the working folder.
BOOT = """
import sys
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
MOST_STARTS = 4
DELIVERED, BROKEN, UNDELIVERED, UNABLE, STOPPED = 0, 1, 3, 4, 5
"""How a sidecar ends: all is delivered; it failed; it gave up; it was unable to begin; somebody ended it
while there may be more to come."""
GRACE = 0.5
"""What has been delivered takes so long to be told, where no time is left to wait for more."""

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
        self._listening = False
        self._starts = 0
        self._asked = 0
        self._told: dict[str, Any] = {}
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

    def drain(self, timeout: float) -> bool:
        """Have all sent that was recorded until now; whether it was in time."""
        if self.pid != os.getpid() or self._closed:
            return True
        deadline = time.monotonic() + timeout
        while self._revive():
            self._asked += 1
            # A little less, so that it can say in time why it did not succeed.
            self._tell(f"drain {self._asked} {0.9 * max(0.0, deadline - time.monotonic()):.3f}")
            answer = self._wait_for("drain", self._asked, deadline)
            if answer is not None:
                return bool(answer.get("delivered"))
            if time.monotonic() >= deadline:
                break
        return self._delivered

    def close(self, timeout: float) -> None:
        """The run has ended: let it send the rest and end; past ``timeout`` it goes on by itself."""
        if self.pid != os.getpid() or self._closed:
            return
        self._closed = True
        if not self._revive():
            return  # It is done, or it was said why not.
        process = self._process
        assert process is not None
        self._tell("close")
        ended = self._wait_for("ended", True, time.monotonic() + max(timeout, GRACE))
        if ended is None or not ended.get("delivered"):
            self._complain(goes_on=ended is None and process.poll() is None)
        _leave(process)

    def _complain(self, goes_on: bool) -> None:
        for_how_long = f"; it goes on trying for {self._about['linger']:g} s in the background"
        say(
            "exporter %s has not delivered everything (%s)%s. Nothing is lost: `%s` delivers it.",
            self.name,
            self.last_error or "it was not done yet",
            for_how_long if goes_on else "",
            forward_command(self.folder, self.name, self.exporter),
        )

    # The process

    def _spawn(self) -> None:
        self._starts += 1
        _reap()
        if not sys.executable or getattr(sys, "frozen", False):
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
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._cannot(str(error))
            return
        self._listening = False
        self._answers = queue.SimpleQueue()
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
            self._wait_for("nothing more", True, time.monotonic() + 1.0)
            self._delivered = process.returncode == DELIVERED
            reason = f"it ended with code {process.returncode} {_last_words(process)}".strip()
            _release(process)
            self._process = None
            if process.returncode == UNABLE or self._starts >= MOST_STARTS:
                self._starts = MOST_STARTS
                self._cannot(self.last_error or reason)
        if self._starts < MOST_STARTS and not self._delivered:
            # It begins anew; its receiver gets the same ids again.
            self._spawn()
        return self._process is not None

    # Talking with it

    def _tell(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        rest = memoryview(line.encode() + b"\n")
        try:
            while rest:
                rest = rest[self._process.stdin.write(rest) or 0 :]
        except (OSError, ValueError):
            pass  # It is gone: whoever waits for its answer finds out.

    def _wait_for(self, key: str, value: object, deadline: float) -> dict[str, Any] | None:
        """An answer; None when it does not come in time, or never will."""
        self._listen()
        while True:
            try:
                told = self._answers.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return None
            if told is None:
                self._wait_for_end(deadline)
                return None
            self._told = {**self._told, **told}
            if told.get(key) == value:
                return told
            if key == "ended" and told.get("failing"):
                # Nobody takes it just now: no reason to keep the end of training waiting.
                return None

    def _wait_for_end(self, deadline: float) -> None:
        assert self._process is not None
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            pass

    def _listen(self) -> None:
        if not self._listening:
            self._listening = True
            assert self._process is not None
            threading.Thread(
                target=_read_answers,
                args=(self._process.stdout, self._answers),
                name=f"stepwell-sidecar-{self.name}",
                daemon=True,
            ).start()


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
