"""Exceptions of other processes and threads, whose traceback torch puts into the message of its own.

That is so for workers of a DataLoader, its thread for pinned memory, replicas of DataParallel and processes
of ``torch.multiprocessing.spawn``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from stepwell.telemetry.source_lines import SourceLine, lines_of_text

_STARTS = (
    # ExceptionWrapper of torch._utils
    re.compile(
        r"Caught \S+ (?:in )?(?P<where>.+)\.\nOriginal (?P<trace>Traceback \(most recent call last\):\n)"
    ),
    # ProcessRaisedException of torch.multiprocessing.spawn
    re.compile(
        r"-- (?P<where>Process \d+) terminated with the following error:\n"
        r"(?P<trace>Traceback \(most recent call last\):\n)"
    ),
)
_TRACEBACK = re.compile(r"^(?:Original )?Traceback \(most recent call last\):\n", re.MULTILINE)
_ERROR = re.compile(r"^(?P<type>[^\s:]+)(?:: (?P<message>.*))?\Z", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class RemoteError:
    """An exception of another process or thread.

    Attributes:
        raised_in: what raised it: ``DataLoader worker 0``.
        type: the name of its class.
        message: its message.
        lines: the lines of code that it went through, outermost first.
        announcement: the message of the exception that contains it, up to the traceback.
    """

    raised_in: str
    type: str
    message: str
    lines: list[SourceLine]
    announcement: str


def remote_error(message: str) -> RemoteError | None:
    """Return the exception whose traceback a message contains; of nested ones the innermost."""
    starts = [found for pattern in _STARTS for found in pattern.finditer(message)]
    if not starts:
        return None
    innermost = max(starts, key=lambda found: found.start())
    # Of chained exceptions the last one is the one that was raised.
    *_, trace = _TRACEBACK.finditer(message)
    text = message[trace.end() :].rstrip()
    error = _ERROR.search(text)
    lines = lines_of_text(text if error is None else text[: error.start()])
    if error is None or not lines:
        return None
    where = innermost["where"].replace("worker process ", "worker ")
    return RemoteError(
        raised_in=where[:1].lower() + where[1:] if where.startswith("Process") else where,
        type=error["type"].rpartition(".")[2],
        message=error["message"] or "",
        lines=lines,
        announcement=message[: min(found.start("trace") for found in starts)]
        .removesuffix("Original ")
        .strip(),
    )
