"""The fork server: imports what programs need once, then forks a child for every request.

Run as a program, with a process id, the name of a Unix socket and modules to import. A connection is one
child: the request is a JSON message with three descriptors (standard input, output and error), the answers
are the process id and, later, the exit code. The child runs the request as ``python`` would:
``-c CODE``, ``-m MODULE`` or a file, with arguments. The server ends with the process of that id.

What a child does not have: finalization of the interpreter (it ends with ``os._exit`` after threads and
``atexit``), a ``/proc/PID/environ`` of its own, the limits and the umask of the test process, and modules
that are not imported yet. Variables that Python reads when it starts have no effect, such as
``PYTHONHASHSEED``. Tests about these start a real interpreter.
"""

from __future__ import annotations

import array
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import sys
import threading
import types
from typing import Any, NoReturn

MAX_MESSAGE_BYTES = 1 << 20
STREAMS = 3


def main() -> None:
    """Import modules, then serve until the process that runs the tests is gone."""
    owner, address, *modules = sys.argv[1:]
    ended = os.pidfd_open(int(owner))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        try:
            listener.bind("\0" + address)
        except OSError:  # Another process of tests was faster.
            os.write(1, b"ready")
            return
        listener.listen(64)
        os.write(1, b"ready")
        # stdout is not read any more, so output of imports goes to stderr.
        os.dup2(2, 1)
        for name in modules:
            try:
                importlib.import_module(name)
            except Exception as error:
                print(f"the fork server cannot import {name}: {error}", file=sys.stderr)
        # Children share these objects; a collection would write to each of them.
        gc.collect()
        gc.freeze()
        serve(listener, ended)


def serve(listener: socket.socket, owner: int) -> None:
    """Fork a child for each connection and report how each one ended; until ``owner`` can be read."""
    wakeup, notify = os.pipe()
    os.set_blocking(wakeup, False)
    os.set_blocking(notify, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(notify)
    children: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([owner, listener.fileno(), wakeup], [], [])
        if wakeup in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(wakeup, 1024)
            report_ended(children)
        if listener.fileno() in ready:
            connection, _ = listener.accept()
            message, streams = receive(connection)
            if not message or not is_ours(connection):
                connection.close()
                continue
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                for owned in (listener, connection, *children.values()):
                    owned.close()
                for descriptor in (wakeup, notify, owner):
                    os.close(descriptor)
                run_child(json.loads(message), streams)
            for stream in streams:
                os.close(stream)
            children[pid] = connection
            with contextlib.suppress(OSError):  # The client may be gone.
                connection.send(str(pid).encode())
        if owner in ready:
            return


def receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Return a request and its descriptors, or nothing if the client is gone."""
    size = array.array("i").itemsize
    space = socket.CMSG_SPACE(STREAMS * size)
    try:
        message, ancillary, _, _ = connection.recvmsg(MAX_MESSAGE_BYTES, space)
    except OSError:
        return b"", []
    streams = array.array("i")
    for _, _, data in ancillary:
        streams.frombytes(data[: len(data) - len(data) % size])
    return message, list(streams)


def is_ours(connection: socket.socket) -> bool:
    """Whether the same user asks: the socket has no permissions of its own."""
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", peer)[1]) == os.getuid()


def report_ended(children: dict[int, socket.socket]) -> None:
    """Send the exit codes of children that have ended."""
    for pid in list(children):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with children.pop(pid) as connection, contextlib.suppress(OSError):
                connection.send(str(os.waitstatus_to_exitcode(status)).encode())


# In the child


def run_child(request: dict[str, Any], streams: list[int]) -> NoReturn:
    """Be the requested program, to its end."""
    code = 1
    try:
        become(request, streams)
        code = run_as_python(request["words"])
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def become(request: dict[str, Any], streams: list[int]) -> None:
    """Take on the descriptors, environment, folder and signals of a new process."""
    if request["session"]:
        os.setsid()
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
    for stream in streams:
        os.close(stream)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["cwd"])
    environ = request["environ"]
    os.environ.clear()
    os.environ.update(environ)
    open_standard_streams()
    places = [place for place in environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    sys.path[:] = [*places, *(place for place in sys.path[1:] if place not in places)]
    if environ.get("PYTHONFAULTHANDLER"):
        import faulthandler

        faulthandler.enable()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    threads = environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(int(threads))
    if "tests.harness.programs" in sys.modules:
        sys.modules["tests.harness.programs"].use_warm_sidecars()


def open_standard_streams() -> None:
    """Open standard input, output and error as a new interpreter does."""
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    buffering = 1 if os.isatty(1) else -1
    sys.stdout = open(1, "w", buffering, encoding="utf-8", closefd=False)
    sys.stderr = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, f"__{name}__", getattr(sys, name))


def run_as_python(words: list[str]) -> int:
    """Run what follows ``python`` on a command line; return the exit code."""
    try:
        try:
            execute(words)
        except SystemExit:
            raise
        except BaseException as error:
            is_interrupted = isinstance(error, KeyboardInterrupt)
            show_uncaught()
            if is_interrupted:
                end_program()
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGINT)
            return end_program() or 1
    except SystemExit as exit:
        code = exit_code(exit)
        return end_program() or code
    return end_program()


def show_uncaught() -> None:
    """Call the hook for uncaught exceptions, without the frames of this file."""
    kind, error, trace = sys.exc_info()
    assert kind is not None
    assert error is not None
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error = error.with_traceback(trace)
    sys.last_type, sys.last_value, sys.last_traceback = kind, error, trace
    sys.excepthook(kind, error, trace)


def exit_code(exit: SystemExit) -> int:
    """Return the exit code that an interpreter ends with."""
    if exit.code is None:
        return 0
    if isinstance(exit.code, int):
        return exit.code & 0xFF
    print(exit.code, file=sys.stderr)
    return 1


def execute(words: list[str]) -> None:
    """Execute ``-c CODE``, ``-m MODULE`` or a file as ``__main__``."""
    main_module = types.ModuleType("__main__")
    main_module.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main_module
    if words[0] == "-m":
        sys.argv = [words[1], *words[2:]]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    if words[0] == "-c":
        text, file = words[1], "<string>"
        sys.argv = ["-c", *words[2:]]
        sys.path.insert(0, "")
    else:
        file = words[0]
        with open(file, encoding="utf-8") as source:
            text = source.read()
        sys.argv = list(words)
        sys.path.insert(0, os.path.dirname(os.path.abspath(file)))
        main_module.__file__ = file
    exec(compile(text, file, "exec"), main_module.__dict__)


def end_program() -> int:
    """Join threads, run exit handlers and flush. Return 120 if flushing fails."""
    import atexit

    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    code = 0
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            code = 120
    return code


if __name__ == "__main__":
    main()
