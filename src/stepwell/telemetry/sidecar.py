"""Sidecars, as the training process sees them: starting, asking, restarting and ending them.

An SDK in a thread of the training process would compete with training for the interpreter. So such
exporters run in a spawned process, the *sidecar*, which reads the run folder. It survives a kill -9 of this
process, ends on its own soon after it, and holds none of its files, pipes or devices.
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

from stepwell._core.errors import StepwellError, log_warning, warn_once
from stepwell._core.system import process_start
from stepwell._core.threads import start_thread
from stepwell.telemetry.deliveries import STALL, DeliveryProgress
from stepwell.telemetry.exporter import ExportFilter
from stepwell.telemetry.feed import FAILING, STARTING, WAITING, exporter_name
from stepwell.telemetry.forward import forward_command
from stepwell.telemetry.os_process import is_held_up, measure_work, restore_priority

# The sidecar imports the same modules as this process, and nothing from the working folder.
BOOT = """
import sys
import threading
sys.path[:] = [folder for folder in sys.path if folder]
import json
setup = json.loads(open(0, "rb", buffering=0, closefd=False).readline())
sys.path[:] = setup["path"]
from stepwell.telemetry.sidecar_process import main
main(setup)
"""
NO_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
NOT_PASSED_ON = ("STEPWELL_EXPORTERS", "STEPWELL_STRICT", "PYTHONWARNINGS")
LINGER = 60.0
MOST_DEATHS = 4
MOST_KILLS = 32
"""After this many failures, or kills by a signal, it is not restarted."""
DELIVERED, BROKEN, UNDELIVERED, UNABLE, STOPPED = 0, 1, 3, 4, 5
"""Exit codes of a sidecar: everything delivered; failed; gave up; unable to start; stopped from outside
while more records may come."""
LONG_PATIENCE = 60.0
"""Seconds without progress to allow while it waits for another rank, for a CPU or for the disk, or while it
starts on a system that does not report the work of processes."""

_used_names: Counter[tuple[str, str]] = Counter()
_left: list[subprocess.Popen[bytes]] = []


class Sidecar:
    """An exporter in a separate process that reads the folder of this process. A ``Delivery``."""

    def __init__(self, exporter: Any, folder: Path, filter: ExportFilter) -> None:
        self.exporter = exporter
        self.folder = Path(folder).absolute()
        self.pid = os.getpid()
        self.name = exporter_name(exporter)
        self._about = self._describe(filter)
        self._process: subprocess.Popen[bytes] | None = None
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._has_all_answers = False
        # The pump restarts it during training, while another thread may wait for it.
        self._lock = threading.RLock()
        self._starts = 0
        self._deaths = 0
        self._kills = 0
        self._asked = 0
        self._deadline = 0.0
        self._state: dict[str, Any] = {}
        self._closing = False
        self._closed = False
        self._delivered = False

    def _describe(self, filter: ExportFilter) -> dict[str, Any]:
        description = self.exporter.description()
        if str(description["class"]).startswith("__main__."):
            raise StepwellError(
                f"{self.name} runs in a separate process, which cannot import the running script: move its "
                "class into a module"
            )
        _used_names[(str(self.folder), self.name)] += 1
        number = _used_names[(str(self.folder), self.name)]
        base = re.sub(r"[^\w-]", "_", self.name)[:40] + ("" if number == 1 else f"-{number}")
        return {
            **description,
            "filter": filter.to_json(),
            "folder": str(self.folder),
            "name": self.name,
            "notes": f"export-{base}",
            "linger": float(getattr(self.exporter, "linger", LINGER)),
            "pid": self.pid,
            "start": process_start(self.pid),
            "path": [folder or os.getcwd() for folder in sys.path if isinstance(folder, str)],
        }

    # State, as it last reported

    @property
    def sent(self) -> int:
        return int(self._state.get("sent", 0))

    @property
    def failures(self) -> int:
        return int(self._state.get("failures", 0))

    @property
    def last_error(self) -> str | None:
        problem = self._state.get("problem")
        return None if problem is None else str(problem)

    @property
    def process_id(self) -> int | None:
        """Process id of the sidecar, None without one."""
        return None if self._process is None else self._process.pid

    def __repr__(self) -> str:
        return f"<exporter {self.name} in process {self.process_id}: {self.sent} records sent>"

    # For the owner

    def start(self) -> None:
        if self._process is None and not self._closed and self.pid == os.getpid():
            self._spawn()

    def ask(self, timeout: float, closing: bool = False) -> None:
        if not self._is_here:
            return
        with self._lock:
            self._closing = closing
            self._deadline = time.monotonic() + timeout
            self._asked += 1
            self._send_request()

    def look(self) -> DeliveryProgress:
        """Return the progress of the latest request; restart a sidecar that has died."""
        if not self._is_here:
            return DeliveryProgress(True, True)
        with self._lock:
            return self._look()

    def _look(self) -> DeliveryProgress:
        if self._process is not None:
            has_ended = self._process.poll() is not None
            self._read_state(until_end=has_ended)
            if has_ended and not self._is_answered:
                self._send_request()
        process, state = self._process, self._state
        if process is None or self._is_answered:
            is_delivered = self._delivered if process is None else bool(state.get("delivered"))
            return DeliveryProgress(True, is_delivered, self.sent, self._total)
        stage = str(state.get("stage", STARTING))
        work = measure_work(process.pid)
        is_unclear = stage == WAITING or (stage == STARTING and work is None)
        is_slow = stage != FAILING and is_held_up(process.pid)
        patience = LONG_PATIENCE if is_unclear or is_slow else STALL
        return DeliveryProgress(False, False, self.sent, self._total, work or 0.0, stage, patience)

    def count(self) -> None:
        if self._is_here and self._process is not None:
            self._write("count")

    def hurry(self) -> None:
        """Give it the priority of this process, also while it still starts."""
        if not self._is_here:
            return
        with self._lock:
            if self._revive():
                self._write("hurry")
                self._raise()

    def keep_running(self) -> None:
        """Restart it if it has died, but not after SIGTERM: the job is probably ending."""
        if not self._is_here or self._closing:
            return
        with self._lock:
            process = self._process
            if process is not None and process.poll() not in (None, DELIVERED, STOPPED):
                self._revive()

    def rest(self) -> None:
        if self._is_here and self._process is not None:
            self._write("rest")

    def leave(self, reason: str) -> None:
        """Stop waiting: it continues on its own. Warn about missing records."""
        if not self._is_here:
            return
        is_delivered = self.look().is_delivered
        self._closed = True
        process = self._process
        if process is None:
            return  # It is done, or there was a warning.
        if not is_delivered and (reason or self.last_error):
            is_running = not self._state.get("ended") and process.poll() is None
            self._warn_missing(reason, is_running)
        _leave(process)

    def _warn_missing(self, reason: str, is_running: bool) -> None:
        total, waiting = self._total, self._state.get("waiting")
        missing = (
            f"is missing at least {waiting:,} records" if waiting else "may be missing records"
        )
        if total is not None and total > self.sent:
            missing = f"is missing {total - self.sent:,} of {total:,} records"
        linger = self._about["linger"]
        background = f" delivery continues in the background for up to {linger:g} s, and"
        log_warning(
            "%s %s (%s);%s `%s` delivers the rest.",
            self.name,
            missing,
            self.last_error or reason,
            background if is_running else "",
            forward_command(self.folder, self.name, self.exporter),
        )

    @property
    def _is_here(self) -> bool:
        """Whether this process started it and has not ended it."""
        return self.pid == os.getpid() and not self._closed

    @property
    def _total(self) -> int | None:
        return self._state.get("total")

    # The process

    def _spawn(self) -> None:
        self._starts += 1
        _reap()
        if not sys.executable or getattr(sys, "frozen", False):
            self._deaths += 1
            self._warn_unable("no Python interpreter to start it with")
            return
        try:
            # It inherits neither the terminal nor a pipe: `train.py | tee log` must end with this process.
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
            self._warn_unable(str(error))
            return
        self._has_all_answers = False
        self._answers = queue.SimpleQueue()
        self._listen(self._process.stdout)
        for key in ("stage", "total"):
            self._state.pop(key, None)
        self._write(json.dumps(self._about))

    def _warn_unable(self, reason: str) -> None:
        self._process = None
        self._state = {**self._state, "problem": reason}
        warn_once(
            f"sidecar {self.folder} {self.name}",
            "Exporter %s cannot be started (%s). Training continues; `%s` sends everything later.",
            self.name,
            reason,
            forward_command(self.folder, self.name, self.exporter),
        )

    def _revive(self) -> bool:
        """Restart it if it has died, a few times; return whether it runs."""
        process = self._process
        if process is not None and process.poll() is None:
            return True
        if process is not None:
            self._read_state(until_end=True)
            self._delivered = process.returncode == DELIVERED
            reason = f"it ended with code {process.returncode} {_last_error_line(process)}".strip()
            _release(process)
            self._process = None
            if not self._may_start_after(process.returncode):
                self._warn_unable(self.last_error or reason)
        if self._deaths < MOST_DEATHS and self._kills < MOST_KILLS and not self._delivered:
            # It starts from the first record; the receiver gets the same ids again.
            self._spawn()
        return self._process is not None

    def _may_start_after(self, code: int) -> bool:
        """Count how it ended; return whether it may be restarted."""
        if code == UNABLE:
            self._deaths = MOST_DEATHS
        elif code < 0:
            self._kills += 1
        elif code not in (DELIVERED, STOPPED):
            self._deaths += 1
        return self._deaths < MOST_DEATHS and self._kills < MOST_KILLS

    # Communication

    def _send_request(self) -> None:
        """Send it the latest request; restart it if it has died."""
        if not self._revive():
            return
        for key in ("ended", "failing", "delivered"):
            self._state.pop(key, None)
        if self._closing:
            self._write("close")
        else:
            # A little less, so that it can report a failure in time.
            seconds = 0.9 * max(0.0, self._deadline - time.monotonic())
            self._write(f"drain {self._asked} {seconds:.3f}")
        self._raise()

    @property
    def _is_answered(self) -> bool:
        """Whether it has completed the latest request, or reported that it cannot."""
        state = self._state
        if self._closing:
            return bool(state.get("ended") or state.get("failing"))
        return state.get("drain") == self._asked

    def _raise(self) -> None:
        """Raise its priority from here too: while it starts, it does not read requests."""
        assert self._process is not None
        restore_priority(self._process.pid)

    def _write(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        rest = memoryview(line.encode() + b"\n")
        try:
            while rest:
                rest = rest[self._process.stdin.write(rest) or 0 :]
        except (OSError, ValueError):
            pass  # It has ended; look() notices.

    def _read_state(self, until_end: bool = False) -> None:
        """Read its reports; with ``until_end`` all of them, because it has ended."""
        deadline = time.monotonic() + 1.0
        while not self._has_all_answers:
            try:
                answer = self._answers.get(until_end, max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return
            self._has_all_answers = answer is None
            self._state = {**self._state, **(answer or {})}

    def _listen(self, stream: Any) -> None:
        """Read its reports in a thread, from the start: Python 3.12 starts no threads while it exits."""
        if not start_thread(f"stepwell-sidecar-{self.name}", _read_answers, stream, self._answers):
            # Its exit code still shows whether everything was delivered.
            stream.close()
            self._answers.put(None)


def _read_answers(stream: Any, answers: queue.SimpleQueue[dict[str, Any] | None]) -> None:
    """Put the reports of the sidecar into the queue, then None. Runs in a thread."""
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


def _last_error_line(process: subprocess.Popen[bytes]) -> str:
    """Return the last line that it printed before it was ready."""
    assert process.stderr is not None
    try:
        lines = (process.stderr.read(65536) or b"").decode("utf-8", "replace").strip().splitlines()
    except (OSError, ValueError):
        return ""
    return f"({lines[-1][:300]})" if lines else ""


def _environment() -> dict[str, str]:
    """Return this process's environment, without variables that make the sidecar record or use a device."""
    kept = {name: value for name, value in os.environ.items() if name not in NOT_PASSED_ON}
    return {**kept, **dict.fromkeys(NO_DEVICES, ""), "STEPWELL_MODE": "off"}


def _release(process: subprocess.Popen[bytes]) -> None:
    """Close the pipes to it, except the one that the reader thread closes."""
    for stream in (process.stdin, process.stderr):
        assert stream is not None
        stream.close()


def _leave(process: subprocess.Popen[bytes]) -> None:
    """Keep a sidecar that continues on its own, to reap it later."""
    _release(process)
    if not _left:
        atexit.register(_let_go)
    _left.append(process)
    _reap()


def _reap() -> None:
    _left[:] = [process for process in _left if process.poll() is None]


def _let_go() -> None:
    """Let the sidecars outlive this process without a ResourceWarning."""
    _reap()
    for process in _left:
        process.returncode = 0
