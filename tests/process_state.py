"""The state of a process that tests share: each test gets it as the one before got it."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator

from stepwell._core import errors


@contextlib.contextmanager
def restored_process() -> Iterator[None]:
    """Restore what a test, or a library it uses, may change and leave behind.

    Lightning leaves its handler of SIGTERM when a training fails, PyTorch the hook of a process group, and
    backends set environment variables for their process.
    """
    # A warning that an earlier test caused would not be logged again, or not as a warning.
    errors.counts.clear()
    errors.set_quiet(False)
    errors.set_strict(False)
    with contextlib.ExitStack() as stack:
        stack.callback(_restore_variables, dict(os.environ))
        stack.callback(_restore_handlers, {n: signal.getsignal(n) for n in signal.valid_signals()})
        for module, name in (
            (sys, "excepthook"),
            (sys, "unraisablehook"),
            (threading, "excepthook"),
        ):
            stack.callback(setattr, module, name, getattr(module, name))
        stack.callback(sys.settrace, sys.gettrace())
        stack.callback(sys.setprofile, sys.getprofile())
        stack.callback(sys.setswitchinterval, sys.getswitchinterval())
        stack.callback(gc.enable if gc.isenabled() else gc.disable)
        stack.callback(gc.set_threshold, *gc.get_threshold())
        logger = logging.getLogger("stepwell")
        for name in ("level", "disabled", "propagate"):
            stack.callback(setattr, logger, name, getattr(logger, name))
        stack.callback(setattr, logger, "handlers", list(logger.handlers))
        stack.callback(os.chdir, os.getcwd())
        yield


def _restore_variables(variables: dict[str, str]) -> None:
    for name in {*variables, *os.environ} - {"PYTEST_CURRENT_TEST"}:
        if name not in variables:
            del os.environ[name]
        elif os.environ.get(name) != variables[name]:
            os.environ[name] = variables[name]


def _restore_handlers(handlers: dict[signal.Signals, signal._HANDLER]) -> None:
    for number, handler in handlers.items():
        if handler is not None and signal.getsignal(number) != handler:
            signal.signal(number, handler)
