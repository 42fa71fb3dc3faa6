"""The ways in which a process ends, and what the run says afterwards."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.durability.helpers import (
    Child,
    files_below,
    main_process,
    numbers,
    only_run,
    run_script,
    values,
)

TRAIN = """
def train(count=20_000):
    for i in range(count):
        with span("item", i=i):
            pass
        log({"loss": float(i)}, step=i)
    event("trained")
"""


def _end(code: str, cwd: Path) -> tuple[subprocess.CompletedProcess[str], Any]:
    done = run_script(TRAIN + code, cwd, STEPWELL_DIR=str(cwd / "runs"))
    return done, only_run(cwd / "runs")


def _is_complete(run: Any) -> None:
    assert numbers(run, "item") == list(range(20_000))
    assert values(run, "loss") == [float(i) for i in range(20_000)]
    assert "trained" in run.events().collect()["name"].to_list()


def _is_sealed(run: Any) -> None:
    assert files_below(run.path, "*.live") == []
    assert files_below(run.path, "*.full") == []


def test_exit_without_finish(tmp_path: Path) -> None:
    """A script that runs off its end without finish() is finished, and sealed."""
    done, run = _end("run = init(); train()", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    _is_complete(run)
    _is_sealed(run)
    assert run.status == "finished"


def test_exit_inside_span(tmp_path: Path) -> None:
    """A span that is open when the interpreter exits is told as unfinished, not as open."""
    _, run = _end("run = init(); outer = span('outer'); outer.__enter__(); train()", tmp_path)
    _is_complete(run)
    (outer,) = run.spans().filter(pl.col("name") == "outer").collect().to_dicts()
    assert outer["status"] == "unfinished"
    assert outer["duration_ns"] > 0
    assert run.open_spans().collect().is_empty()


def test_unhandled_exception(tmp_path: Path) -> None:
    """An exception that nobody handles makes the run failed, and is named."""
    done, run = _end("run = init(); train(); raise KeyError('no such batch')", tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "KeyError: 'no such batch'"
    _is_complete(run)
    _is_sealed(run)
    assert main_process(run)["status"] == "failed"
    assert main_process(run)["error"] == "KeyError: 'no such batch'"
    (document,) = run.path.glob("rank-*/process.json")
    assert json.loads(document.read_text())["error"]["type"] == "KeyError"


def test_exception_through_with(tmp_path: Path) -> None:
    """An exception that leaves ``with run`` reaches its caller untouched, and is named."""
    code = (
        "try:\n"
        "    with init() as run:\n"
        "        train()\n"
        "        raise ZeroDivisionError('one')\n"
        "except ZeroDivisionError as error:\n"
        "    print(error.args)\n"
    )
    done, run = _end(code, tmp_path)
    assert (done.returncode, done.stdout) == (0, "('one',)\n")
    _is_complete(run)
    assert main_process(run)["status"] == "failed"
    assert main_process(run)["error"] == "ZeroDivisionError: one"


@pytest.mark.parametrize(
    ("argument", "code", "status"),
    [("", 0, "finished"), ("0", 0, "finished"), ("3", 3, "failed"), ("'no data'", 1, "failed")],
)
def test_sys_exit_inside_with(tmp_path: Path, argument: str, code: int, status: str) -> None:
    """sys.exit() inside ``with run`` is an end like any other; with an error code it has failed."""
    script = f"with init() as run:\n    train()\n    sys.exit({argument})"
    done, run = _end(script, tmp_path)
    assert done.returncode == code
    _is_complete(run)
    _is_sealed(run)
    assert run.status == status


def test_os_exit(tmp_path: Path) -> None:
    """os._exit ends a process unseen: it is told as killed, and all is there."""
    done, run = _end("run = init(); train(); os._exit(3)", tmp_path)
    assert done.returncode == 3
    _is_complete(run)
    assert run.status == "killed"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_fatal_signal(tmp_path: Path, number: signal.Signals) -> None:
    """A process that dies of a signal is told as killed, inside of what it was, and all is there."""
    code = f"run = init()\nwith span('outer'): train(); os.kill(os.getpid(), {int(number)})"
    done, run = _end(code, tmp_path)
    assert done.returncode == -number
    _is_complete(run)
    assert run.status == "killed"
    assert run.open_spans().collect()["name"].to_list() == ["outer"]


@pytest.mark.parametrize("inside_with", [True, False])
def test_interrupt(tmp_path: Path, inside_with: bool) -> None:
    """Ctrl-C raises KeyboardInterrupt as ever, and the run is killed, sealed and complete."""
    wait = "    print('ready', flush=True)\n    while True: time.sleep(0.01)\n"
    start = "with init() as run:\n" if inside_with else "run = init()\nif True:\n"
    with Child(tmp_path, STEPWELL_DIR=str(tmp_path / "runs")) as child:
        code = TRAIN + "print(json.dumps(None), flush=True)\n" + start + "    train()\n" + wait
        child.do(code)
        assert child.process.stdout is not None
        assert child.process.stdout.readline() == "ready\n"
        child.kill(signal.SIGINT)
        assert child.process.returncode == -signal.SIGINT
        assert child.stderr().splitlines()[-1] == "KeyboardInterrupt"
    run = only_run(tmp_path / "runs")
    _is_complete(run)
    _is_sealed(run)
    assert run.status == "killed"


def test_no_signal_handler_is_replaced(tmp_path: Path) -> None:
    """After init, while recording and after finish, every signal has the handler it had before."""
    code = """
def mine(number, frame): pass
signal.signal(signal.SIGUSR1, mine)
signal.signal(signal.SIGTERM, mine)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
def handlers():
    return {n: signal.getsignal(n) for n in signal.valid_signals()}
before, hook, wakeup = handlers(), sys.excepthook, signal.set_wakeup_fd(-1)
run = init()
assert handlers() == before
train()
assert handlers() == before
run.finish()
assert handlers() == before
assert sys.excepthook is hook and threading.excepthook is threading.__excepthook__
assert signal.set_wakeup_fd(-1) == wakeup
print(len(before))
"""
    done, run = _end(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 30
    _is_complete(run)
