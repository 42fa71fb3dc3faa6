"""process.json as readers take it: every field of the type that it should have, or left out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    """Where the threads of a process were when it made no progress.

    Attributes:
        time_ns: when they were taken.
        quiet_s: seconds since the main thread had recorded anything.
        threads: the lines of each thread by its name, outermost first.
    """

    time_ns: int
    quiet_s: float
    threads: dict[str, tuple[SourceLine, ...]]


def check_stacks(about: Any) -> PythonStacks | None:
    """The stacks in a document; None when it is no such document."""
    if not isinstance(about, dict) or not is_count(about.get("time"), MAX_TIME):
        return None
    quiet, threads = about.get("quiet_s"), about.get("threads")
    found: dict[str, tuple[SourceLine, ...]] = {}
    for thread in threads[:MAX_LINES] if isinstance(threads, list) else ():
        lines = thread.get("lines") if isinstance(thread, dict) else None
        if isinstance(lines, list):
            name = clean(str(thread.get("thread"))[:MAX_TEXT])
            found.setdefault(name, tuple(source_lines(lines)))
    seconds = float(quiet) if isinstance(quiet, int | float) and quiet >= 0 else 0.0
    return PythonStacks(about["time"], seconds, found)


def check_document(about: Any) -> dict[str, Any] | None:
    """The fields that readers use; None when it is no document of a process."""
    if not isinstance(about, dict):
        return None
    fields = {key: _checked(about.get(key), kind) for key, kind in (REQUIRED | OPTIONAL).items()}
    if any(fields[key] is None for key in REQUIRED):
        return None
    drops, anchors = about.get("drops"), about.get("anchors")
    counts = drops.values() if isinstance(drops, dict) else ()
    fields["dropped"] = min(sum(n for n in counts if is_count(n, MAX_TIME)), MAX_TIME)
    fields["anchors"] = [
        pair
        for pair in (anchors if isinstance(anchors, list) else ())
        if isinstance(pair, list) and len(pair) == 2 and all(is_count(n, MAX_TIME) for n in pair)
    ]
    interval = about.get("interval")
    fields["interval"] = interval if isinstance(interval, int | float) and interval > 0 else 5.0
    error = _reason(about.get("error"))
    fields["error"] = error_text(about.get("error"))
    details = error if isinstance(error, dict) else {}
    fields["traceback"] = source_lines(details.get("traceback"))
    fields["raised_in"] = clean(str(details.get("raised_in") or "")[:MAX_TEXT])
    return fields


def _checked(value: Any, kind: type[str] | int) -> Any:
    if isinstance(kind, int):
        return value if is_count(value, kind) else None
    return clean(value) if isinstance(value, str) else None


def error_text(error: Any) -> str | None:
    """Return the type and message of an error as it was written; None without one."""
    error = _reason(error)
    if not isinstance(error, dict):
        return None
    kind, message = str(error.get("type") or ""), str(error.get("message") or "")
    return clean(f"{kind}: {message}"[:4000] if kind and message else (kind or message)[:4000])


def _reason(error: Any) -> Any:
    """The exception before a call of ``sys.exit``, or that a worker raised; else the error itself."""
    cause = error.get("cause") if isinstance(error, dict) else None
    if isinstance(cause, dict) and error.get("type") == "SystemExit":
        error, cause = cause, cause.get("cause")
    return cause if isinstance(cause, dict) and cause.get("raised_in") else error


def source_lines(lines: Any) -> list[SourceLine]:
    """Return lines of Python code as they were written, without those that are none."""
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
    """Whether this is a number from 0 to ``most``."""
    return isinstance(value, int) and 0 <= value <= most


def clean(text: str) -> str:
    """The text without lone surrogates, which no table can hold."""
    return text.encode("utf-8", "replace").decode()
