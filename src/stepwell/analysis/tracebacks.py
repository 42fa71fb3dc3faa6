"""Python stacks and errors: the lines of the user's own code, and errors caused by another rank's end."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stepwell.reading.documents import SourceLine

MOST_SHOWN = 6
_STEPWELL = (
    r"[/\\]stepwell[/\\](journal|telemetry|training|integrations|annotations|diagnostics|loggers"
    r"|exporters)[/\\]"
)
_LIBRARY = re.compile(
    rf"site-packages|dist-packages|[/\\]lib(64)?[/\\]python\d|^<frozen |{_STEPWELL}"
)
_LOST = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)|closed by peer|broken ?pipe|BrokenPipe"
    r"|ConnectionReset|\bgloo\b|\bnccl|DistBackendError|DistNetworkError|DistStoreError"
    r"|ProcessGroup|TCPStore|process ?group watchdog|watchdog (got|caught)|socket ?timeout"
    r"|(recvValue|sendBytes|recvBytes|waitForInput) failed|remote (process|peer)",
    re.IGNORECASE,
)


def own_line(lines: Sequence[SourceLine]) -> SourceLine | None:
    """Return the innermost line outside the standard library, installed packages and stepwell.

    Without such a line, return the innermost line of all; None without lines.
    """
    candidates = [line for line in lines if not _LIBRARY.search(line.file)] or list(lines)
    return candidates[-1] if candidates else None


def shown_lines(lines: Sequence[SourceLine]) -> tuple[str, ...]:
    """Return the lines of the user's code and the innermost line outside stepwell, with their source."""
    lines = [line for line in lines if not re.search(_STEPWELL, line.file)]
    kept = [line for line in lines if not _LIBRARY.search(line.file)][-MOST_SHOWN:]
    if lines and lines[-1] not in kept:
        kept.append(lines[-1])
    texts = []
    for line in kept:
        texts.append(f"{line.file}:{line.line} in {line.function}")
        if line.source:
            texts.append(f"    {line.source}")
    return tuple(texts)


def is_lost_peer(error: str) -> bool:
    """Return whether an error is a consequence of another rank's end: a closed connection, or a timeout of
    NCCL, gloo or the store.
    """
    return _LOST.search(error) is not None


def root_error(documents: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the document with the first error of the latest attempt, preferably not about a lost peer."""
    ranks = [document for document in documents if document["role"] != "worker"]
    last = max((document["attempt"] for document in ranks), default=0)
    failed = [d for d in ranks if d["attempt"] == last and d["error"]]
    return min(failed, key=lambda d: (is_lost_peer(d["error"]), d["heartbeat"] or 0), default=None)
