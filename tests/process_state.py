"""The state of a process that tests share, and that each test must leave as it was."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
from typing import Any

HOOKS = {
    "sys.excepthook": sys,
    "sys.unraisablehook": sys,
    "threading.excepthook": threading,
}


def process_state() -> dict[str, Any]:
    """Return what later tests would notice if it were changed."""
    logger = logging.getLogger("stepwell")
    return {
        "current directory": _current_directory(),
        "garbage collection": (gc.isenabled(), gc.get_threshold()),
        "switch interval": sys.getswitchinterval(),
        "trace functions": (sys.gettrace(), sys.getprofile()),
        "the logger of stepwell": (
            logger.level,
            logger.disabled,
            logger.propagate,
            *logger.handlers,
        ),
        "process group": _has_process_group(),
        **{name: getattr(module, name.rpartition(".")[2]) for name, module in HOOKS.items()},
        **{f"handler of signal {n:d}": signal.getsignal(n) for n in signal.valid_signals()},
    }


def restore(state: dict[str, Any]) -> None:
    """Put back what ``process_state`` returned, as far as Python can set it."""
    if state["current directory"] is not None:
        os.chdir(state["current directory"])
    enabled, threshold = state["garbage collection"]
    gc.set_threshold(*threshold)
    (gc.enable if enabled else gc.disable)()
    sys.setswitchinterval(state["switch interval"])
    trace, profile = state["trace functions"]
    sys.settrace(trace)
    sys.setprofile(profile)
    for name, module in HOOKS.items():
        setattr(module, name.rpartition(".")[2], state[name])
    for number in signal.valid_signals():
        handler = state[f"handler of signal {number:d}"]
        if handler is not None and signal.getsignal(number) != handler:
            signal.signal(number, handler)
    logger = logging.getLogger("stepwell")
    logger.level, logger.disabled, logger.propagate, *logger.handlers = state[
        "the logger of stepwell"
    ]
    if _has_process_group() and not state["process group"]:
        sys.modules["torch.distributed"].destroy_process_group()


def restore_environment(variables: dict[str, str]) -> None:
    """Put back environment variables. Libraries and backends set some for their process when first used."""
    for name in {*variables, *os.environ} - {"PYTEST_CURRENT_TEST"}:
        if name not in variables:
            del os.environ[name]
        elif os.environ.get(name) != variables[name]:
            os.environ[name] = variables[name]


def _current_directory() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def _has_process_group() -> bool:
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_initialized()
