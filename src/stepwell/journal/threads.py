"""Background threads, where one can be had."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from stepwell.journal.errors import warn_once


def start_thread(name: str, target: Callable[..., Any], *args: Any) -> threading.Thread | None:
    """Start a daemon thread; None where there can be none.

    That is so at a limit of processes or memory, and in Python 3.12 while the interpreter ends.
    """
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        if "shutdown" not in str(error):
            warn_once(
                "no thread",
                "no thread can be started (%s): training goes on, and what stepwell does in the background "
                "is done when the run ends",
                error or "out of memory",
            )
        return None
    return thread
