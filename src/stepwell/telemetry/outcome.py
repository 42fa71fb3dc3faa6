"""The outcome of a process: its status, exit code and error, for process.json.

Python's exit handlers can see an uncaught exception, but not a ``SystemExit``: its code is noted when
``sys.exit`` is called, and the frame of the main module shows whether the exception was caught. The code of
a ``raise SystemExit`` is read from the source. No signal handlers are installed: only readers see a signal
that kills the process, as "killed".
"""

from __future__ import annotations

import _sitebuiltins
import opcode
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

from stepwell._core.errors import report
from stepwell._core.masking import mask
from stepwell._core.values import text_of
from stepwell.journal.metrics import context
from stepwell.journal.span import NO_ERRORS
from stepwell.telemetry.stacks import lines_of_frame, lines_of_traceback, remote_error

if TYPE_CHECKING:
    import ast

MAX_MESSAGE = 2000
MAX_CAUSES = 3
MAX_FILES = 200
SIGNAL_EXIT = 128
"""The exit code of a program ended by a signal is this plus the number of the signal."""
SIGNAL_ERRORS = ("SIGTERMException", "SignalException")
"""Exceptions that Lightning and torch.distributed.elastic raise after SIGTERM."""


@dataclass(frozen=True)
class Outcome:
    """How a process ended.

    Attributes:
        status: finished, failed, interrupted or killed.
        error: the exception: type, message, traceback, and its cause in the same form.
        exit_code: the exit code, if it is not 0.
        signal: the signal that ended it, if known.
    """

    status: str
    error: dict[str, Any] | None = None
    exit_code: int | None = None
    signal: str | None = None


FINISHED = Outcome("finished")
INTERRUPTED = Outcome("interrupted", signal="SIGINT")
"""Ctrl-C ended the training, and the program caught the exception and ended normally."""


def outcome_of(error: BaseException | None) -> Outcome:
    """Return the outcome of a process that ends with this exception."""
    if error is None or isinstance(error, NO_ERRORS):
        return FINISHED
    if isinstance(error, KeyboardInterrupt) or _is_during_interrupt(error):
        return Outcome("interrupted", describe_error(error), signal="SIGINT")
    if type(error).__name__ in SIGNAL_ERRORS:
        # Lightning's is a SystemExit with code 0.
        return Outcome("killed", describe_error(error), signal=_signal_name(error))
    if isinstance(error, SystemExit):
        return _exit_with(error.code, describe_error(error))
    return Outcome("failed", describe_error(error))


def _is_during_interrupt(error: BaseException) -> bool:
    """Return whether an exception was raised while Ctrl-C was handled: a clean exit, or a failed one."""
    context = error.__context__
    for _ in range(MAX_CAUSES):
        if context is None or isinstance(context, KeyboardInterrupt):
            break
        context = context.__context__
    return isinstance(context, KeyboardInterrupt)


def _exit_with(code: object, error: dict[str, Any]) -> Outcome:
    if code is None or code == 0:
        return FINISHED
    if not isinstance(code, int):
        return Outcome("failed", error, exit_code=1)
    if code == SIGNAL_EXIT + signal.SIGINT:
        return Outcome("interrupted", error, code, "SIGINT")
    if code == SIGNAL_EXIT + signal.SIGTERM:
        return Outcome("killed", error, code, "SIGTERM")
    return Outcome("failed", error, exit_code=code)


def _signal_name(error: BaseException) -> str:
    number = getattr(error, "sigval", signal.SIGTERM)
    return number.name if isinstance(number, signal.Signals) else "SIGTERM"


def describe_error(error: BaseException) -> dict[str, Any]:
    """Return an exception as JSON: type, message, traceback (outermost line first) and cause.

    A cause from another process, whose traceback is part of the message, has ``raised_in``: that process.
    """
    return _describe(error, 0)


def _describe(error: BaseException, depth: int) -> dict[str, Any]:
    message = text_of(error)
    remote = remote_error(message)
    description: dict[str, Any] = {
        "type": type(error).__qualname__,
        "message": mask(_shorten(message if remote is None else remote.announcement)),
        "traceback": lines_of_traceback(error.__traceback__),
    }
    if remote is not None:
        description["cause"] = {
            "type": remote.type,
            "message": mask(_shorten(remote.message)),
            "traceback": remote.lines,
            "raised_in": remote.raised_in,
        }
        return description
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None and depth < MAX_CAUSES:
        description["cause"] = _describe(cause, depth + 1)
    return description


def _shorten(text: str) -> str:
    """Remove the middle of a long text: long messages often end with the reason."""
    half = MAX_MESSAGE // 2
    return text if len(text) <= MAX_MESSAGE else f"{text[:half]}\n…\n{text[-half:]}"


class ExitWatch:
    """Notes exits and Ctrl-C in the main thread, until it is stopped.

    It sees ``sys.exit``, ``exit`` and ``quit``, and exceptions that leave a span (``note``).
    """

    def __init__(self, frame: FrameType | None) -> None:
        """Args: ``frame`` is a frame of the main thread, called from the main module."""
        self._main = _main_frame(frame)
        self._noted: Outcome | None = None
        # The step at which Ctrl-C left a span.
        self._interrupt: tuple[int | None] | None = None
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def start(self) -> None:
        owners: tuple[tuple[Any, str], ...] = (sys, "exit"), (_sitebuiltins.Quitter, "__call__")
        for owner, name in owners:
            original = getattr(owner, name)
            noting = _noting(original, self.note)
            setattr(owner, name, noting)
            self._replaced.append((owner, name, original, noting))

    def stop(self) -> None:
        """Restore the replaced functions, except those that other code has replaced since."""
        for owner, name, original, noting in self._replaced:
            if getattr(owner, name) is noting:
                setattr(owner, name, original)
        self._replaced.clear()

    def note(self, error: BaseException, caller: FrameType | None = None) -> None:
        """Remember an exception that may end the process. Raises nothing."""
        try:
            self._note(error, caller)
        except Exception as problem:
            report("exit", problem)

    def _note(self, error: BaseException, caller: FrameType | None) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        if isinstance(error, KeyboardInterrupt):
            self._interrupt = (context.step,)
        elif isinstance(error, SystemExit):
            # Not the exception, which would keep all variables of its frames alive.
            outcome = outcome_of(error)
            if outcome.error is not None and caller is not None:
                outcome.error["traceback"] = lines_of_frame(caller)
            if not self._is_passed_on(outcome):
                self._noted = outcome

    def _is_passed_on(self, outcome: Outcome) -> bool:
        """Return whether an exit repeats the code of an earlier one, as multiprocessing does."""
        before = self._noted
        if before is None or before.error is None or outcome.error is None:
            return False
        is_same = outcome.exit_code == before.exit_code
        return is_same and "cause" in before.error and "cause" not in outcome.error

    def outcome(self) -> Outcome:
        """Return the outcome of a process that no exception but SystemExit has ended."""
        if self._main is not None and _has_returned(self._main):
            # The program caught every exception.
            return self.unraised()
        if self._main is not None and self._noted is None:
            return _outcome_at(self._main)
        return self._noted or self.unraised()

    def unraised(self) -> Outcome:
        """Return the outcome of a run that no exception has ended: Ctrl-C may have been caught."""
        is_last = self._interrupt is not None and self._interrupt[0] == context.step
        return INTERRUPTED if is_last else FINISHED


def _noting(
    original: Callable[..., Any], note: Callable[[SystemExit, FrameType], None]
) -> Callable[..., Any]:
    def exit(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except SystemExit as error:
            note(error, sys._getframe(1))
            raise

    exit.__doc__ = original.__doc__
    return exit


def _main_frame(frame: FrameType | None) -> FrameType | None:
    """Return the frame of the main module, in which the program as a whole runs.

    Its variables are those of the module, so keeping it keeps nothing alive.
    """
    main = vars(sys.modules["__main__"]) if "__main__" in sys.modules else None
    outermost = None
    while frame is not None:
        if frame.f_globals is main and frame.f_code.co_name == "<module>":
            outermost = frame
        frame = frame.f_back
    return outermost


def _has_returned(frame: FrameType) -> bool:
    """Return whether a finished frame returned, rather than raised an exception."""
    return _operation_at(frame).startswith(("RETURN", "INSTRUMENTED_RETURN"))


def _operation_at(frame: FrameType) -> str:
    """Return the last bytecode instruction of a frame."""
    return opcode.opname[frame.f_code.co_code[frame.f_lasti]]


def _outcome_at(frame: FrameType) -> Outcome:
    """Return the outcome of a program whose main module was left by an unseen SystemExit at its current line.

    The exception no longer exists, so its code is read from the source. If the main module itself raised
    it, only that statement counts. Otherwise all exits in the main module count, or those in the other
    modules of its folder; they must agree.
    """
    path = frame.f_code.co_filename
    number = frame.f_lineno or 0
    exits = _exits_in(path)
    here = [each for each in exits if each.first <= number <= each.last]
    if _operation_at(frame) != "RAISE_VARARGS":
        # A function that is called in the line raised it.
        exits = [each for each in exits if each not in here or not each.is_raised]
        here = [each for each in here if not each.is_raised]
    exits = here or exits or [each for other in _files_beside(path) for each in _exits_in(other)]
    outcomes = [each.outcome() for each in exits]
    if outcomes and all(each.status == FINISHED.status for each in outcomes):
        return FINISHED
    outcome = outcomes[0] if outcomes else None
    if outcome is None or any(each != outcome for each in outcomes):
        error = {"type": "SystemExit", "message": "exit code not recorded"}
        outcome = Outcome("failed", error)
    assert outcome.error is not None
    outcome.error["traceback"] = lines_of_frame(frame)[-1:]
    return outcome


@dataclass(frozen=True)
class _Exit:
    """A statement that raises SystemExit, or calls ``sys.exit`` imported by name."""

    first: int
    last: int
    code: ast.expr | None
    is_raised: bool

    def outcome(self) -> Outcome:
        """Return the outcome of a program that ends here.

        The result of a call, such as ``main()``, counts as 0.
        """
        import ast

        if self.code is None or isinstance(self.code, ast.Call):
            return FINISHED
        try:
            return outcome_of(SystemExit(ast.literal_eval(self.code)))
        except (ValueError, TypeError):
            message = "exit code not recorded"
            return Outcome("failed", {"type": "SystemExit", "message": message})


def _exits_in(path: str) -> list[_Exit]:
    """Return the exits in a file of Python code; none if it cannot be read."""
    import ast
    import linecache

    try:
        nodes = list(ast.walk(ast.parse("".join(linecache.getlines(path)))))
    except (SyntaxError, ValueError, RecursionError):
        return []
    imported = {
        alias.asname or alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module == "sys"
        for alias in node.names
        if alias.name == "exit"
    }
    exits = []
    for node in nodes:
        raised = node.exc if isinstance(node, ast.Raise) else None
        call = raised or node
        name = call.func if isinstance(call, ast.Call) else raised
        if isinstance(name, ast.Name) and name.id in (("SystemExit",) if raised else imported):
            arguments = call.args if isinstance(call, ast.Call) else []
            code = arguments[0] if arguments else None
            assert isinstance(node, ast.stmt | ast.expr)
            last = node.end_lineno or node.lineno
            exits.append(_Exit(node.lineno, last, code, raised is not None))
    return exits


def _files_beside(path: str) -> list[str]:
    """Return the files of the loaded modules in the folder of this file and below it."""
    folder = os.path.join(os.path.dirname(path), "")
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    return [
        file
        for file in files
        if isinstance(file, str) and file.startswith(folder) and "site-packages" not in file
    ][:MAX_FILES]
