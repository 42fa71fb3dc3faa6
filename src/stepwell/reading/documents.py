"""Checks of process.json, stacks.json and run.json: fields of a wrong type are left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepwell._core.errors import StepwellError
from stepwell.journal.format import FORMAT

MAX_INT32 = (1 << 31) - 1
MAX_TIME = (1 << 62) - 1
MAX_LINES = 100
MAX_TEXT = 1000

REQUIRED: dict[str, type[str] | int] = {
    "process": str,
    "run": str,
    "host": str,
    "boot": str,
    "attempt": MAX_INT32,
    "rank": MAX_INT32,
    "pid": MAX_INT32,
    "start": MAX_TIME,
}
OPTIONAL: dict[str, type[str] | int] = {
    "role": str,
    "parent": str,
    "status": str,
    "spool": str,
    "signal": str,
    "exit_code": MAX_INT32,
    "worker": MAX_INT32,
    "local_rank": MAX_INT32,
    "world_size": MAX_INT32,
    "started": MAX_TIME,
    "heartbeat": MAX_TIME,
    "recorder_cpu_ns": MAX_TIME,
}


@dataclass(frozen=True)
class SourceLine:
    """A line of Python code in a stack or traceback."""

    file: str
    line: int
    function: str
    source: str

    @property
    def place(self) -> str:
        """The file's name, the line and the function: ``train.py:42 in load_batch``."""
        return f"{Path(self.file).name}:{self.line} in {self.function}"


@dataclass(frozen=True)
class PythonStacks:
    """The stacks of the threads of a process while it made no progress.

    Attributes:
        time_ns: when they were taken.
        quiet_s: seconds since the last record of the main thread.
        threads: the lines of each thread by its name, outermost first.
    """

    time_ns: int
    quiet_s: float
    threads: dict[str, tuple[SourceLine, ...]]


def check_stacks(document: Any) -> PythonStacks | None:
    """Return the stacks in the content of stacks.json; None if it is not valid."""
    if not isinstance(document, dict) or not is_count(document.get("time"), MAX_TIME):
        return None
    quiet, threads = document.get("quiet_s"), document.get("threads")
    stacks: dict[str, tuple[SourceLine, ...]] = {}
    for thread in threads[:MAX_LINES] if isinstance(threads, list) else ():
        lines = thread.get("lines") if isinstance(thread, dict) else None
        if isinstance(lines, list):
            name = clean(str(thread.get("thread"))[:MAX_TEXT])
            stacks.setdefault(name, tuple(source_lines(lines)))
    seconds = float(quiet) if isinstance(quiet, int | float) and quiet >= 0 else 0.0
    return PythonStacks(document["time"], seconds, stacks)


def check_document(document: Any) -> dict[str, Any] | None:
    """Return the fields of process.json that readers use; None if a required one is missing or invalid."""
    if not isinstance(document, dict):
        return None
    fields = {key: _checked(document.get(key), kind) for key, kind in (REQUIRED | OPTIONAL).items()}
    if any(fields[key] is None for key in REQUIRED):
        return None
    drops, anchors = document.get("drops"), document.get("anchors")
    counts = drops.values() if isinstance(drops, dict) else ()
    fields["dropped"] = min(sum(n for n in counts if is_count(n, MAX_TIME)), MAX_TIME)
    fields["anchors"] = [
        pair
        for pair in (anchors if isinstance(anchors, list) else ())
        if isinstance(pair, list) and len(pair) == 2 and all(is_count(n, MAX_TIME) for n in pair)
    ]
    interval = document.get("interval")
    fields["interval"] = interval if isinstance(interval, int | float) and interval > 0 else 5.0
    error = _reason(document.get("error"))
    fields["error"] = error_text(document.get("error"))
    details = error if isinstance(error, dict) else {}
    fields["traceback"] = source_lines(details.get("traceback"))
    fields["raised_in"] = clean(str(details.get("raised_in") or "")[:MAX_TEXT])
    return fields


def _checked(value: Any, kind: type[str] | int) -> Any:
    if isinstance(kind, int):
        return value if is_count(value, kind) else None
    return clean(value) if isinstance(value, str) else None


def error_text(error: Any) -> str | None:
    """Return the type and message of a recorded error; None without one."""
    error = _reason(error)
    if not isinstance(error, dict):
        return None
    kind, message = str(error.get("type") or ""), str(error.get("message") or "")
    return clean(f"{kind}: {message}"[:4000] if kind and message else (kind or message)[:4000])


def _reason(error: Any) -> Any:
    """Return the exception that led to ``sys.exit``, or that a worker raised; else the error itself."""
    cause = error.get("cause") if isinstance(error, dict) else None
    if isinstance(cause, dict) and error.get("type") == "SystemExit":
        error, cause = cause, cause.get("cause")
    return cause if isinstance(cause, dict) and cause.get("raised_in") else error


def source_lines(lines: Any) -> list[SourceLine]:
    """Return the recorded lines of Python code, without invalid ones."""
    return [
        SourceLine(
            clean(str(line.get("file") or "")[:MAX_TEXT]),
            line["line"],
            clean(str(line.get("function") or "")[:MAX_TEXT]),
            clean(str(line.get("source") or "")[:MAX_TEXT]),
        )
        for line in (lines[:MAX_LINES] if isinstance(lines, list) else ())
        if isinstance(line, dict) and is_count(line.get("line"), MAX_INT32)
    ]


def is_count(value: Any, most: int) -> bool:
    """Return whether this is an integer from 0 to ``most``."""
    return isinstance(value, int) and 0 <= value <= most


def clean(text: str) -> str:
    """Return the text without lone surrogates, which tables cannot contain."""
    return text.encode("utf-8", "replace").decode()


LATEST = 1000
"""A larger format number is damage, not a version, and does not prevent reading."""


def newer_format(document: Mapping[str, Any]) -> int | None:
    """Return the format version in run.json if this reader is too old for it; else None."""
    version = document.get("stepwell")
    return version if isinstance(version, int) and FORMAT < version < LATEST else None


def check_format(run: str, document: Mapping[str, Any]) -> None:
    """Raise StepwellError for a run with a newer format: this reader would misread its tables."""
    newer = newer_format(document)
    if newer is not None:
        raise StepwellError(
            f"the run {run!r} is in format {newer}, and this stepwell reads {FORMAT}. "
            "Upgrade with pip install -U stepwell"
        )
