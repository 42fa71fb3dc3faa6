"""Errors of a rank that say that another rank is gone."""

from __future__ import annotations

import re

_LOST = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)|closed by peer|broken ?pipe|BrokenPipe"
    r"|ConnectionReset|\bgloo\b|\bnccl|DistBackendError|DistNetworkError|DistStoreError"
    r"|ProcessGroup|TCPStore|process ?group watchdog|watchdog (got|caught)|socket ?timeout"
    r"|(recvValue|sendBytes|recvBytes|waitForInput) failed|remote (process|peer)",
    re.IGNORECASE,
)


def is_lost_peer(error: str) -> bool:
    """Return whether an error is the consequence of another rank's end: a closed connection, a
    timeout of NCCL, gloo or the store.
    """
    return _LOST.search(error) is not None
