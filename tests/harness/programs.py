"""Programs of tests: one way each to run a script, a command of stepwell, and ranks."""

from __future__ import annotations

import array
import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import types
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.harness import server
from tests.harness.environment import environment

PRELOADED = (
    "numpy",
    "polars",
    "torch",
    "torch.distributed",
    "torch.utils.data",
    "torch.nn.parallel",
    # Creating the first optimizer imports it, and with it the sharding modules.
    "torch._dynamo",
    "zstandard",
    "msgspec",
    "asyncio",
    "multiprocessing.spawn",
    "numpy.ma",
    "rich.markdown",
    "rich.progress",
    "rich.table",
    "typer",
    "typer._adapters",
    "typer.rich_utils",
    "stepwell.cli.app",
    "stepwell.cli.compare",
    "stepwell.cli.export",
    "stepwell.cli.ls",
    "stepwell.cli.query",
    "stepwell.cli.report",
    "stepwell.cli.show",
    "stepwell.cli.progress",
    "stepwell.analysis.compare",
    "stepwell.analysis.live",
    "stepwell.analysis.report",
    "stepwell.reading.lookup",
    "stepwell.integrations.torch",
    "tests.harness.programs",
)
"""Modules that scripts and commands import."""
CLI = "import sys; sys.argv[0] = 'stepwell'; from stepwell.cli import main; main()"


SDKS = (
    # First, because it scans all imported modules many times.
    "wandb",
    "wandb.sdk.launch",
    "wandb.sdk.artifacts._internal_artifact",
    "numpy",
    "PIL.Image",
    "PIL.WebPImagePlugin",
    "mlflow",
    "mlflow.tracking",
    "mlflow.store.artifact.local_artifact_repo",
    "mlflow.store.tracking.sqlalchemy_workspace_store",
    "sqlalchemy.dialects.sqlite",
    "alembic.command",
    "stepwell.telemetry.sidecar_process",
    "stepwell.exporters.otlp",
    "stepwell.loggers.delivery.feed",
    "stepwell.loggers.prov.backend",
    "stepwell.loggers.backends.mlflow.backend",
    "stepwell.loggers.backends.tensorboard.backend",
    "stepwell.loggers.backends.wandb.backend",
)
"""Modules that a sidecar imports."""
TRAINERS = (
    *PRELOADED,
    "lightning.pytorch",
    "pytorch_lightning",
    "accelerate",
    "transformers",
    "transformers.trainer",
    "transformers.models.gpt2.modeling_gpt2",
    "stepwell.integrations.lightning.hooked_trainer",
    "stepwell.integrations.transformers",
    "stepwell.integrations.accelerate",
    "stepwell.compat.one_logger",
)
"""Modules that programs with a trainer of Lightning or Hugging Face import; for ``modules=``."""


COLD_SIDECARS = {"TESTS_PID": ""}
"""Variables that make a program start its sidecars as new interpreters."""


SUPPORTED = {
    *("bufsize", "close_fds", "cwd", "encoding", "env", "errors", "start_new_session"),
    *("stderr", "stdin", "stdout", "text", "universal_newlines"),
}
"""Options of ``subprocess.Popen`` that a forked program can have."""


_servers: dict[str, subprocess.Popen[bytes] | None] = {}
"""Running servers by address; None if another process has started it."""
_tests: list[int] = []
"""The id of this process, if it runs tests: then it may start servers."""


def fork_server(modules: Sequence[str]) -> str:
    """Return the address of the server that has imported these modules, shared by all processes of tests.

    A process of tests starts the server if needed, and the one for sidecars with it; forked programs only
    connect. It does not wait for the imports.
    """
    tests = os.environ["TESTS_PID"]
    if os.getpid() in _tests:
        for each in (modules, SDKS):
            address = _address(tests, each)
            if address not in _servers:
                _servers[address] = _ensure_server(tests, address, each)
    return _address(tests, modules)


def _ensure_server(
    tests: str, address: str, modules: Sequence[str]
) -> subprocess.Popen[bytes] | None:
    """Start a server, unless another process of tests has done so."""
    if _answers(address):
        return None
    process = subprocess.Popen(
        [sys.executable, server.__file__, tests, address, *modules],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=environment(),
        cwd="/",
    )
    assert process.stdout is not None
    with process.stdout as output:
        assert output.read(5) == b"ready", f"the fork server {address} did not start"
    return process


def _answers(address: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        return connection.connect_ex("\0" + address) == 0


def run_tests_here() -> None:
    """Declare that this process runs tests; servers end with the process that started all of these."""
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    os.environ["TESTS_PID"] = str(os.getppid() if is_worker else os.getpid())
    _tests[:] = [os.getpid()]
    atexit.register(_leave_servers, os.getpid())


def _leave_servers(owner: int) -> None:
    """Suppress the ResourceWarning about servers, which end on their own."""
    if owner == os.getpid():
        for process in _servers.values():
            if process is not None:
                process.returncode = 0


def _address(tests: str, modules: Sequence[str]) -> str:
    return f"stepwell-tests-{tests}-{zlib.crc32(' '.join(modules).encode()):08x}"


class Program(subprocess.Popen[Any]):
    """A ``subprocess.Popen`` whose child is forked from a warm server.

    ``words`` is what would follow ``python`` on a command line.
    """

    def __init__(
        self,
        words: Sequence[str | os.PathLike[str]],
        *,
        modules: Sequence[str] = PRELOADED,
        **options: Any,
    ) -> None:
        unsupported = options.keys() - SUPPORTED
        if unsupported:
            raise ValueError(f"a forked program cannot have {sorted(unsupported)}")
        self._server = fork_server(modules)
        self._session = bool(options.get("start_new_session"))
        super().__init__([os.fspath(word) for word in words], **options)

    def _execute_child(self, args: Any, *options: Any) -> None:
        cwd, environ = options[4], options[5]
        pipes = options[9:15]
        their_input, _, _, their_output, _, their_error = pipes
        streams = [
            ours if theirs == -1 else theirs
            for ours, theirs in enumerate((their_input, their_output, their_error))
        ]
        request = {
            "words": args,
            "cwd": os.fspath(cwd or os.getcwd()),
            "environ": dict(os.environ if environ is None else environ),
            "session": self._session,
        }
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._connection.setsockopt(
                socket.SOL_SOCKET, socket.SO_SNDBUF, server.MAX_MESSAGE_BYTES
            )
            self._connection.connect("\0" + self._server)
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))
            self._connection.sendmsg([json.dumps(request).encode()], [rights])
            answer = self._connection.recv(32)
            assert answer, "the fork server ended"
            self.pid = int(answer)
        except BaseException:
            self._connection.close()
            raise
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
        self._child_created = True

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None and has_ended(self.pid):
            return self._wait_for_end(10)  # The server may be busy with another request.
        return self._wait_for_end(0)

    def _wait(self, timeout: float | None) -> int:
        code = self._wait_for_end(timeout)
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return code

    def _wait_for_end(self, timeout: float | None) -> int | None:
        if timeout is not None:
            timeout = max(0.0, timeout)
        try:
            has_news = (
                self.returncode is None and select.select([self._connection], [], [], timeout)[0]
            )
        except ValueError:
            has_news = []  # Another thread has received it and closed the connection.
        if has_news:
            with self._waitpid_lock:  # type: ignore[attr-defined]
                if self.returncode is None:
                    self.returncode = self._receive_end()
        return self.returncode

    def _receive_end(self) -> int:
        with self._connection:
            text = self._connection.recv(32)
        if not text:
            os.kill(self.pid, signal.SIGKILL)
            raise RuntimeError(f"the fork server ended before {self.args!r}, which was killed")
        return int(text)


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or is a zombie that its parent has not seen yet."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"


def wait_until(condition: Callable[[], Any], seconds: float = 120.0) -> Any:
    """Return the first true value of a condition; fail when it does not come in this time."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def use_warm_sidecars() -> None:
    """Fork sidecars from a process that has imported the SDKs of all backends."""
    if not os.environ.get("TESTS_PID"):
        return  # A program with an environment of its own, or one that wants real interpreters.
    from stepwell.telemetry import sidecar

    def popen(command: Sequence[str], **options: Any) -> Program:
        return Program(command[1:], modules=SDKS, **options)

    warm = types.SimpleNamespace(**{**vars(subprocess), "Popen": popen})
    vars(sidecar)["subprocess"] = warm


def start_script(
    script: str | Path,
    *arguments: str | os.PathLike[str],
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> Program:
    """Start a program, given as text or as a file; options as for ``subprocess.Popen``.

    ``env`` replaces ``environment()``. ``modules`` selects what the program has imported: ``SDKS`` for
    the SDKs of the backends instead of torch and Polars, ``TRAINERS`` for Lightning and transformers.
    """
    words = ["-c", script] if isinstance(script, str) else [script]
    return Program([*words, *arguments], env=environment() if env is None else env, **options)


def run_script(
    script: str | Path,
    *arguments: str | os.PathLike[str],
    env: Mapping[str, str] | None = None,
    timeout: float = 120,
    check: bool = False,
    input: str | None = None,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end and return what it printed and how it ended."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    if input is not None:
        pipes["stdin"] = subprocess.PIPE
    options.setdefault("stdin", subprocess.DEVNULL)
    program = start_script(script, *arguments, env=env, **{**options, **pipes})
    return finish(program, timeout, check, input)


def finish(
    program: Program, timeout: float = 120, check: bool = False, input: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Wait for a program. On timeout, send SIGABRT, which prints its stacks, and fail."""
    try:
        out, err = program.communicate(input, timeout)
    except subprocess.TimeoutExpired:
        program.send_signal(signal.SIGABRT)
        try:
            out, err = program.communicate(timeout=10)
        except subprocess.TimeoutExpired as expired:
            out, err = expired.output, "(a child of it holds its output)"
        raise AssertionError(f"still running after {timeout} s:\n{out}\n{err}") from None
    done = subprocess.CompletedProcess(program.args, program.returncode, out, err)
    if check:
        assert done.returncode == 0, f"exit code {done.returncode}:\n{out}\n{err}"
    return done


def run_stepwell(
    *arguments: str, cwd: Path, check: bool = False, timeout: float = 120, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a ``stepwell`` command in a folder, 80 columns wide, its output piped."""
    env = environment(**{"COLUMNS": "80", **variables})
    return run_script(CLI, *arguments, cwd=cwd, env=env, check=check, timeout=timeout)


def free_port() -> int:
    """Return a free TCP port of this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def start_rank(
    script: str | Path,
    *arguments: str | os.PathLike[str],
    rank: int,
    world: int,
    port: int,
    restarts: int = 0,
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> Program:
    """Start one rank with the variables that torchrun sets."""
    variables = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": str(restarts),
    }
    env = {**(environment() if env is None else env), **variables}
    return start_script(script, *arguments, env=env, **options)


def run_ranks(
    script: str | Path,
    *arguments: str | os.PathLike[str],
    world: int = 2,
    env: Mapping[str, str] | None = None,
    timeout: float = 120,
    check: bool = False,
    **options: Any,
) -> list[subprocess.CompletedProcess[str]]:
    """Run a program in ``world`` ranks at once, as torchrun would; returns how each ended."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    port = free_port()
    options.setdefault("stdin", subprocess.DEVNULL)
    ranks = [
        start_rank(
            script, *arguments, rank=rank, world=world, port=port, env=env, **options, **pipes
        )
        for rank in range(world)
    ]
    try:
        # In threads: a rank blocks when its output is not read, and the others then wait for it.
        with ThreadPoolExecutor(world) as threads:
            return list(threads.map(lambda rank: finish(rank, timeout, check), ranks))
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
