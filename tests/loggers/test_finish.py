"""The end of a script: everything is with the backends, and one that is down does not hold it up."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stepwell.telemetry.os_process import SESSION_NICE
from tests.durability.helpers import PRELUDE
from tests.exporters.programs import end
from tests.harness import (
    COLD_SIDECARS,
    Program,
    environment,
    has_ended,
    run_ranks,
    run_script,
    start_script,
    wait_until,
)
from tests.harness.marks import others_in_full
from tests.harness.programs import free_port
from tests.loggers.mlflow_server import Server
from tests.loggers.needs import needs
from tests.loggers.reading_back import Curve, Left
from tests.loggers.test_delivery import Training, calls, steps, training

EXPECTED = [(step, step / 2) for step in range(1000)]
PROGRAM = """
import sys
from stepwell.loggers import *
logger = LoggersCollection([eval(words) for words in sys.argv[1:]])
logger.create_logger_context()
for step in range(1000):
    logger.log(step / 2, "loss", step=step, batch_idx=step)
"""
"""It neither destroys the context nor finishes the run."""
LOGGERS = {
    "mlflow": "MLFlowLogger(log_freq='batch', log_on_workers=-1)",
    "wandb": "WandBLogger(log_freq='batch', offline_mode=True)",
    "tensorboard": "TensorBoardLogger(log_freq='batch')",
}
INTERRUPT = """
from stepwell.telemetry import deliveries
wait = deliveries._wait
def interrupted(*args):
    os.kill(os.getpid(), signal.SIGINT)
    return wait(*args)
deliveries._wait = interrupted
"""
"""Ctrl-C when the wait begins."""


def variables(folder: Path, **more: str) -> dict[str, str]:
    return environment(HOME=str(folder), WANDB_ERROR_REPORTING="false", **more)


def curve_of(backend: str, folder: Path, rank: int = 0) -> Curve:
    """The values of the metric according to the backend's own reader."""
    left = Left(folder, rank)
    return {
        "mlflow": left.mlflow_curve,
        "wandb": left.wandb_curve,
        "tensorboard": left.tensorboard_curve,
    }[backend]("loss")


# Everything is there


@needs("mlflow", "wandb", "tensorboard")
@pytest.mark.filterwarnings("ignore")
def test_everything_is_there_when_a_script_has_ended(tmp_path: Path, empty_database: Path) -> None:
    """Without a word about the end in the script, and without a warning."""
    (tmp_path / "mllogs" / "mlflow").mkdir(parents=True)
    shutil.copy(empty_database, tmp_path / "mllogs" / "mlflow" / "mlflow.db")
    done = run_script(PROGRAM, *LOGGERS.values(), cwd=tmp_path, env=variables(tmp_path), check=True)
    for backend in LOGGERS:
        assert curve_of(backend, tmp_path) == EXPECTED, backend
    assert Left(tmp_path).mlflow_run().info.status == "FINISHED"
    assert "missing" not in done.stderr


@contextmanager
def busy_cores() -> Iterator[None]:
    """Two processes that compute all the time."""
    words = [sys.executable, "-c", "while True: pass"]
    spinning = [subprocess.Popen(words, start_new_session=True) for _ in range(2)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


@needs("mlflow", "wandb", "tensorboard")
@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", LOGGERS)
def test_it_waits_for_sdks_that_are_imported_on_a_busy_machine(
    tmp_path: Path, backend: str
) -> None:
    """Also for a new database, whose tables are made first."""
    env = variables(tmp_path, **COLD_SIDECARS)
    with busy_cores():
        run_script(PROGRAM, LOGGERS[backend], cwd=tmp_path, env=env, check=True, timeout=300)
        assert curve_of(backend, tmp_path) == EXPECTED


@needs("mlflow")
@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_a_server_has_everything(tmp_path: Path, server: Server) -> None:
    """Of MLflow, with the SDK imported from the beginning."""
    from mlflow import MlflowClient

    member = (
        f"MLFlowLogger(tracking_uri={server.url!r}, experiment_name='the end', log_freq='batch')"
    )
    env = variables(tmp_path, **COLD_SIDECARS)
    run_script(PROGRAM, member, cwd=tmp_path, env=env, check=True)
    client = MlflowClient(tracking_uri=server.url)
    experiment = client.get_experiment_by_name("the end")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(run.info.run_id, "loss")
    assert sorted((point.step, point.value) for point in history) == EXPECTED
    assert run.info.status == "FINISHED"


@needs("mlflow")
@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_each_rank_waits_for_its_own(tmp_path: Path) -> None:
    """Also when the second rank has to wait for the run that the first one makes."""
    env = variables(tmp_path, **COLD_SIDECARS)
    run_ranks(PROGRAM, LOGGERS["mlflow"], cwd=tmp_path, env=env, check=True)
    for rank in range(2):
        assert curve_of("mlflow", tmp_path, rank) == EXPECTED


@needs("mlflow")
@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_a_server_that_is_down(tmp_path: Path) -> None:
    """The script ends by itself, and says in one line what is missing and how to deliver it."""
    address = f"http://127.0.0.1:{free_port()}"
    member = f"MLFlowLogger(tracking_uri={address!r}, log_freq='batch')"
    env = variables(tmp_path, STEPWELL_FINISH_TIMEOUT="3600", **COLD_SIDECARS)
    done = run_script(PROGRAM, member, cwd=tmp_path, env=env, check=True)
    (line,) = [line for line in done.stderr.splitlines() if "missing" in line]
    (run,) = (tmp_path / "runs").iterdir()
    assert line.startswith(
        f"mlflow is missing 1,000 of 1,000 records (ConnectionError: {address} does not answer"
    )
    assert line.endswith(f"`stepwell forward {run} --to mlflow={address}` delivers the rest.")


# A backend that hangs or fails


@pytest.fixture
def hang(tmp_path: Path) -> Path:
    """Where a file makes the backend of lines hang."""
    return tmp_path / "out.jsonl.hang"


def hold(trainer: Training, hang: Path) -> None:
    """Deliver 100 records, and hang with 250 more."""
    trainer.log(0, 100)
    assert trainer.drain()
    hang.touch()
    trainer.log(100, 350)


@pytest.mark.full
def test_without_progress_it_gives_up(tmp_path: Path, hang: Path) -> None:
    """However much time there is; one sentence has the number, the reason and the command."""
    with training(tmp_path) as trainer:
        hold(trainer, hang)
        trainer.do(
            "os.environ['STEPWELL_FINISH_TIMEOUT'] = '3600'\n"
            "from stepwell.telemetry import sidecar\n"
            "sidecar.STALL = 1.5\n"
            "run.finish()\nanswer = None"
        )
        assert trainer.do("answer = warnings") == [
            "lines is missing 250 of 350 records (no progress for 1.5 s); delivery continues in the "
            f"background for up to 60 s, and `stepwell forward {trainer.path} --to lines` delivers the rest."
        ]
        hang.unlink()
        wait_until(lambda: has_ended(trainer.sidecar))
    assert steps(trainer.out) == list(range(350))
    assert calls(trainer.out, "finish") == [["finished"]]


@pytest.mark.full
def test_a_backend_that_is_down_is_not_waited_for(tmp_path: Path) -> None:
    """Five failures in a row are enough; the reason is that of the backend."""
    with training(tmp_path) as trainer:
        (tmp_path / "out.jsonl.down").touch()
        trainer.log(0, 10)
        trainer.do(
            "os.environ['STEPWELL_FINISH_TIMEOUT'] = '3600'\n"
            "from stepwell.telemetry import sidecar\n"
            "sidecar.STALL = 3600\n"
            "run.finish()\nanswer = None"
        )
        (warning,) = trainer.do("answer = warnings")
    assert warning.startswith("lines is missing 10 of 10 records (ConnectionError: it is down);")


@pytest.mark.full
@pytest.mark.parametrize(("limit", "warnings"), [("0", 0), ("0.2", 1)])
def test_the_setting_bounds_the_wait(tmp_path: Path, hang: Path, limit: str, warnings: int) -> None:
    """With 0, complete delivery is not expected, so there is no message."""
    with training(tmp_path) as trainer:
        hold(trainer, hang)
        trainer.do("os.environ['STEPWELL_FINISH_TIMEOUT'] = limit\nrun.finish()", limit=limit)
        found = trainer.do("answer = warnings")
        assert len(found) == warnings
        assert all("(not done after 0.2 s)" in warning for warning in found)
        hang.unlink()
        wait_until(lambda: has_ended(trainer.sidecar))
    assert steps(trainer.out) == list(range(350))


def test_after_sigterm_it_is_short(tmp_path: Path, hang: Path) -> None:
    """A scheduler does not wait for minutes."""
    with training(tmp_path) as trainer:
        hold(trainer, hang)
        trainer.do(
            "from stepwell.telemetry import deliveries\n"
            "deliveries.KILLED_TIMEOUT = 0.2\n"
            "run.finish('killed')\nanswer = None"
        )
        (warning,) = trainer.do("answer = warnings")
        assert "(not done after 0.2 s)" in warning


def test_a_forked_child_does_not_wait(tmp_path: Path, hang: Path) -> None:
    """Delivery is up to its parent."""
    with training(tmp_path) as trainer:
        hold(trainer, hang)
        status = trainer.do(
            "pid = os.fork()\n"
            "if pid == 0:\n"
            "    time.sleep = lambda seconds: os._exit(1)\n"
            "    run.finish()\n"
            "    delivery.close(3600)\n"
            "    os._exit(7)\n"
            "answer = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"
        )
        assert status == 7


@contextmanager
def in_background(trainer: Training, linger: float) -> Iterator[None]:
    """The run finishes without waiting; its sidecar gives up ``linger`` seconds after the last progress.

    Leaving waits for the end of the sidecar.
    """
    trainer.do(
        "sidecar = run.exporters[0]\n"
        "sidecar._process.kill()\nsidecar._process.wait()\n"
        "sidecar._about['linger'] = linger\nsidecar.hurry()\n"
        "os.environ['STEPWELL_FINISH_TIMEOUT'] = '0'\n"
        "run.finish()\nanswer = None",
        linger=linger,
    )
    pid = trainer.do("answer = sidecar.process_id")
    try:
        yield
        wait_until(lambda: has_ended(pid))
    finally:
        end(pid)


@pytest.mark.full
def test_in_the_background_it_goes_on_as_long_as_the_backend_takes_records(tmp_path: Path) -> None:
    """Longer than the time that it tries when nothing is taken."""
    with training(tmp_path, delay=0.2) as trainer:
        trainer.log(0, 1000)
        with in_background(trainer, 0.3):
            pass
    assert steps(trainer.out) == list(range(1000))


def test_in_the_background_another_process_gets_more_time(tmp_path: Path) -> None:
    """Such as one that makes the database: it has ten times the time of failures."""
    with training(tmp_path, wait_for="run") as trainer:
        trainer.log(0, 10)
        with in_background(trainer, 1.0):
            wait_until(lambda: Path(f"{trainer.out}.calls").exists())
            time.sleep(1.2)
            trainer.do("backend.run_folder = run.path\nbackend.publish('run', {})\nanswer = None")
    assert steps(trainer.out) == list(range(10))


def test_waiting_for_another_rank_is_no_hang(tmp_path: Path) -> None:
    """There is nothing that it could do meanwhile, so it has more time."""
    with training(tmp_path, wait_for="run") as trainer:
        trainer.log(0, 10)
        trainer.do("run.exporters[0].ask(3600, closing=True)")
        look = "look = run.exporters[0].look()\nanswer = [look.stage, look.patience]"
        wait_until(lambda: trainer.do(look) == ["waiting for another process", 60.0])
        trainer.do(
            "backend.run_folder = run.path\nbackend.publish('run', {})\nrun.finish()\nanswer = None"
        )
    assert steps(trainer.out) == list(range(10))


# Ctrl-C


def test_an_interrupt_ends_the_wait_alone(tmp_path: Path, hang: Path) -> None:
    """The program continues after it, and so does delivery; the next Ctrl-C is an ordinary one."""
    with training(tmp_path) as trainer:
        hold(trainer, hang)
        trainer.do(INTERRUPT)
        assert trainer.do("run.finish()\nanswer = run.status") == "finished"
        (warning,) = trainer.do("answer = warnings")
        assert warning.endswith(
            " records (interrupted); delivery continues in the background for up to 60 s, and "
            f"`stepwell forward {trainer.path} --to lines` delivers the rest."
        )
        outside = "try:\n    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(60)\n"
        assert trainer.do(outside + "except KeyboardInterrupt: answer = 'interrupted'")
        hang.unlink()
        wait_until(lambda: has_ended(trainer.sidecar))
    assert steps(trainer.out) == list(range(350))


def test_an_interrupt_at_the_exit_of_the_interpreter(tmp_path: Path, hang: Path) -> None:
    """No traceback, and the exit code of the script."""
    hang.touch()
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from stepwell.loggers.delivery.feed import start_delivery
from tests.loggers.lines_backend import LinesBackend
run = init("training", dir="runs")
delivery = start_delivery(run, LinesBackend(number=1, path={str(tmp_path / "out.jsonl")!r}))
print(run.exporters[0].process_id, flush=True)
"""
    done = run_script(PRELUDE + INTERRUPT + code, cwd=tmp_path, timeout=60)
    pid = int(done.stdout)
    try:
        assert done.returncode == 0
        assert "Traceback" not in done.stderr
        assert not has_ended(pid)
        hang.unlink()
        wait_until(lambda: has_ended(pid))
    finally:
        end(pid)


# The progress line

TERMINAL = """
import os, sys
import stepwell
from stepwell.telemetry import notices
from stepwell.loggers.delivery.feed import start_delivery
from tests.journal.logging_rows import log_for
from tests.loggers.lines_backend import LinesBackend
show = notices.ProgressLine.show
def told(line, text):
    show(line, text)
    if "100 of" in text: print("waiting", flush=True)
notices.ProgressLine.show = told
run = stepwell.init("t", dir="runs")
start_delivery(run, LinesBackend(number=1, path="out.jsonl"))
print(run.exporters[0].process_id, flush=True)
for i in range(100): log_for("1", "loss", i / 2, i)
assert run.flush(60)
open("out.jsonl.hang", "w").close()
for i in range(100, 1350): log_for("1", "loss", i / 2, i)
run.finish()
"""


@pytest.mark.parametrize("quiet", others_in_full([False, True], [False]))
def test_a_terminal_shows_what_is_waited_for(tmp_path: Path, hang: Path, quiet: bool) -> None:
    """One line, in place, which is removed at the end; nothing when the run is quiet."""
    ours, theirs = pty.openpty()
    program = start_script(
        TERMINAL,
        cwd=tmp_path,
        env=environment(PYTHONPATH=str(Path(__file__).parents[2]), STEPWELL_QUIET=str(int(quiet))),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
    )
    os.close(theirs)
    shown = Shown(ours, program)
    assert program.stdout is not None
    pid = int(program.stdout.readline())
    try:
        # It has counted, which it does after as long as the line appears after.
        assert program.stdout.readline() == "waiting\n"
        if not quiet:
            shown.until(
                "\rstepwell: lines: 100 of 1,350 records (Ctrl-C: continue in the background)"
            )
        hang.unlink()
        assert program.wait(60) == 0
        shown.until_end()
    finally:
        os.close(ours)
        end(pid)
        program.stdout.close()
    # A terminal translates the ends of lines.
    lines = shown.text.replace("\r\n", "\n").split("\n")[:-1]
    left = [line.rpartition("\r")[2].partition(" ")[2].split()[0] for line in lines]
    assert left == ([] if quiet else ["recording", "finished"])
    assert (shown.text == "") is quiet
    assert steps(tmp_path / "out.jsonl") == list(range(1350))


class Shown:
    """The output of a program to a terminal."""

    def __init__(self, fd: int, program: Program) -> None:
        self.fd = fd
        self.program = program
        self.text = ""

    def _read(self) -> bool:
        try:
            data = os.read(self.fd, 65536)
        except OSError:  # The other side is closed.
            return False
        self.text += data.decode()
        return bool(data)

    def until(self, words: str) -> None:
        while words not in self.text:
            assert self._read(), self.text

    def until_end(self) -> None:
        while self._read():
            pass


# Priority


def session_nice(pid: int) -> int:
    words = Path(f"/proc/{pid}/autogroup").read_text().split()
    return int(words[-1]) if words else 0


@pytest.mark.skipif(
    not Path("/proc/sys/kernel/sched_autogroup_enabled").exists(),
    reason="this system does not share processors between sessions",
)
def test_priority_is_normal_while_somebody_waits(tmp_path: Path) -> None:
    """Also for a sidecar that cannot read requests yet."""
    with training(tmp_path) as trainer:
        wait_until(Path(f"{trainer.out}.calls").exists)
        wait_until(lambda: session_nice(trainer.sidecar) == SESSION_NICE)
        trainer.do("run.exporters[0].hurry()")
        wait_until(lambda: session_nice(trainer.sidecar) == 0)
        trainer.do("run.exporters[0].rest()")
        wait_until(lambda: session_nice(trainer.sidecar) == SESSION_NICE)
        os.kill(trainer.sidecar, signal.SIGSTOP)
        trainer.do("run.exporters[0].ask(3600, closing=True)")
        assert session_nice(trainer.sidecar) == 0
