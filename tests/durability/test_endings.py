"""The ways in which a process ends, and what the run says afterwards."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from stepwell.analysis.findings import findings
from stepwell.analysis.overview import overview
from tests import harness
from tests.durability.helpers import (
    PRELUDE,
    Child,
    files_below,
    main_process,
    numbers,
    only_run,
    run_script,
    values,
)
from tests.harness import environment
from tests.harness.marks import others_in_full

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
    """A span that is open when the interpreter exits is unfinished, not open."""
    _, run = _end("run = init(); outer = span('outer'); outer.__enter__(); train()", tmp_path)
    _is_complete(run)
    (outer,) = run.spans().filter(pl.col("name") == "outer").collect().to_dicts()
    assert outer["status"] == "unfinished"
    assert outer["duration_ns"] > 0
    assert run.open_spans().collect().is_empty()


def test_unhandled_exception(tmp_path: Path) -> None:
    """An unhandled exception gives the run the status failed, and is recorded."""
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
    """An exception that leaves ``with run`` reaches its caller unchanged, and is recorded."""
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
    [
        pytest.param("", 0, "finished", marks=pytest.mark.full),
        ("0", 0, "finished"),
        ("3", 3, "failed"),
        pytest.param("'no data'", 1, "failed", marks=pytest.mark.full),
    ],
)
def test_sys_exit_inside_with(tmp_path: Path, argument: str, code: int, status: str) -> None:
    """sys.exit() inside ``with run`` is an end like any other; with an error code it has failed."""
    script = f"with init() as run:\n    train()\n    sys.exit({argument})"
    done, run = _end(script, tmp_path)
    assert done.returncode == code
    _is_complete(run)
    _is_sealed(run)
    assert run.status == status


DEEP = "def deep():\n    {}\nrun = init()\n"


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("statement", "call", "status", "exit_code", "message"),
    [
        ("sys.exit(3)", "deep()", "failed", 3, "3"),
        ("sys.exit()", "deep()", "finished", None, None),
        ("exit(2)", "deep()", "failed", 2, "2"),
        ("return 0", "sys.exit(deep())", "finished", None, None),
        ("return 4", "sys.exit(deep())", "failed", 4, "4"),
        ("return 0", "raise SystemExit(deep())", "finished", None, None),
        ("pass", "raise SystemExit('no data')", "failed", 1, "no data"),
        ("with span('x'): raise SystemExit('no data')", "deep()", "failed", 1, "no data"),
        ("raise SystemExit('no data')", "deep()", "failed", 1, "no data"),
        ("raise SystemExit", "deep()", "finished", None, None),
        ("raise SystemExit(0)", "if True:\n    deep()", "finished", None, None),
        ("raise SystemExit(3)", "raise SystemExit(deep())", "failed", 3, "3"),
        ("from sys import exit; exit(0)", "deep()", "finished", None, None),
        ("code = 3; raise SystemExit(code)", "deep()", "failed", None, "exit code not recorded"),
        ("with span('x'): sys.exit(0)", "deep()", "finished", None, None),
        ("threading.Thread(target=sys.exit, args=(5,)).run", "deep()", "finished", None, None),
    ],
)
def test_exit(
    tmp_path: Path,
    statement: str,
    call: str,
    status: str,
    exit_code: int | None,
    message: str | None,
) -> None:
    """An exit code other than 0 makes the run failed, wherever it is raised."""
    harness_run(DEEP.format(statement) + call, tmp_path)
    content = document(tmp_path)
    assert (content["status"], content["exit_code"]) == (status, exit_code)
    assert (content["error"] or {}).get("message") == message


def test_an_exit_that_is_caught_is_no_end(tmp_path: Path) -> None:
    """A program that catches SystemExit, as test runners do, ends as it would without it."""
    harness_run("run = init()\ntry: sys.exit(4)\nexcept SystemExit: pass\n", tmp_path)
    assert document(tmp_path)["status"] == "finished"


def test_an_exit_names_the_line_and_the_error_before_it(tmp_path: Path) -> None:
    """The traceback is the one of the call; an exception that was handled there is its cause."""
    code = "try: {}['k']\n    except KeyError: sys.exit(1)"
    harness_run(DEEP.format(code) + "deep()", tmp_path)
    error = document(tmp_path)["error"]
    assert [line["function"] for line in error["traceback"]][-2:] == ["<module>", "deep"]
    assert error["cause"]["type"] == "KeyError"
    assert main_process(only_run(tmp_path / "runs"))["error"] == "KeyError: 'k'"


def test_an_exit_that_passes_a_code_on_keeps_the_error(tmp_path: Path) -> None:
    """As with multiprocessing, which catches the exit of a child's function and exits again."""
    code = (
        "run = init()\n"
        "try:\n    try: {}['k']\n    except KeyError: sys.exit(1)\n"
        "except SystemExit as error: code = error.code\n"
        "sys.exit(code)\n"
    )
    harness_run(code, tmp_path)
    assert document(tmp_path)["exit_code"] == 1
    assert main_process(only_run(tmp_path / "runs"))["error"] == "KeyError: 'k'"


def test_a_traceback_shows_lines_and_no_secrets(tmp_path: Path) -> None:
    """File, line, function and source text, with the literals of secrets masked."""
    code = (
        "run = init()\n"
        "def login(token): raise ValueError('api_key=abc123 is refused')\n"
        "login(token='abc123')\n"
    )
    harness_run(code, tmp_path)
    error = document(tmp_path)["error"]
    assert error["message"] == "api_key=*** is refused"
    places = [(Path(line["file"]).name, line["line"]) for line in error["traceback"]]
    first = PRELUDE.count("\n") + 1
    assert places == [("train.py", first + 2), ("train.py", first + 1)]
    assert error["traceback"][0]["source"] == "login(token='***')"


@pytest.mark.torch
def test_an_exception_of_a_worker_is_the_error(tmp_path: Path) -> None:
    """Its type, message and line in the dataset; torch puts all of them into the message of another."""
    pytest.importorskip("torch")
    code = (
        "from torch.utils.data import DataLoader\n"
        "class Images:\n"
        "    def __len__(self): return 4\n"
        "    def __getitem__(self, i): raise ValueError(f'sample {i}: no header, token=abc123')\n"
        "run = init()\n"
        "next(iter(DataLoader(Images(), num_workers=1)))\n"
    )
    harness_run(code, tmp_path)
    run = only_run(tmp_path / "runs")
    (died,) = [finding for finding in findings(run) if finding.rule == "died"]
    line = PRELUDE.count("\n") + 4
    assert died.sentence.endswith(
        f"ValueError: sample 0: no header, token=*** (train.py:{line} in __getitem__, DataLoader worker 0)."
    )
    assert overview(run).error == (
        "ValueError: sample 0: no header, token=*** (in DataLoader worker 0)"
    )
    error = document(tmp_path)["error"]
    assert error["message"] == "Caught ValueError in DataLoader worker process 0."
    assert error["traceback"][0]["source"].startswith("next(iter(")


def harness_run(code: str, cwd: Path) -> None:
    """Run a script from a file; its exit code does not matter."""
    (cwd / "train.py").write_text(PRELUDE + code)
    harness.run_script(
        cwd / "train.py", cwd=cwd, env=environment(STEPWELL_DIR=str(cwd / "runs")), timeout=120
    )


def document(cwd: Path) -> dict[str, Any]:
    """The process.json of the only process."""
    (path,) = (cwd / "runs").glob("*/rank-*/process.json")
    return dict(json.loads(path.read_text()))


def test_os_exit(tmp_path: Path) -> None:
    """After os._exit the status is killed, and all records are there."""
    done, run = _end("run = init(); train(); os._exit(3)", tmp_path)
    assert done.returncode == 3
    _is_complete(run)
    assert run.status == "killed"


@pytest.mark.parametrize(
    "number",
    others_in_full(
        [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT],
        [signal.SIGTERM, signal.SIGKILL],
    ),
)
def test_fatal_signal(tmp_path: Path, number: signal.Signals) -> None:
    """After a fatal signal the status is killed, its spans are open, and all records are there."""
    code = f"run = init()\nwith span('outer'): train(); os.kill(os.getpid(), {int(number)})"
    done, run = _end(code, tmp_path)
    assert done.returncode == -number
    _is_complete(run)
    assert run.status == "killed"
    assert run.open_spans().collect()["name"].to_list() == ["outer"]


@pytest.mark.parametrize("inside_with", [True, False])
def test_interrupt(tmp_path: Path, inside_with: bool) -> None:
    """Ctrl-C raises KeyboardInterrupt as ever, and the run is interrupted, sealed and complete."""
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
    assert run.status == "interrupted"


CAUGHT = """
run = init()
try:
    with span("epoch"):
        set_step(7)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
except KeyboardInterrupt:
    {}
"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("handler", "status"),
    [
        ("pass", "interrupted"),
        ("sys.exit(1)", "interrupted"),
        ("sys.exit(0)", "interrupted"),
        ("run.finish()", "interrupted"),
        ("set_step(8)", "finished"),
        ("raise RuntimeError('while saving')", "interrupted"),
    ],
)
def test_an_interrupt_that_is_caught(tmp_path: Path, handler: str, status: str) -> None:
    """Ctrl-C ends the run even if the program catches it, unless training continues after it."""
    harness_run(CAUGHT.format(handler), tmp_path)
    assert document(tmp_path)["status"] == status


def test_a_second_interrupt_while_the_run_ends(tmp_path: Path) -> None:
    """An impatient Ctrl-C, while files are sealed, leaves a run that was interrupted."""
    code = """
run = init()
train(100)
original = type(run._recorder.pump).stop
def slow(pump, timeout):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
type(run._recorder.pump).stop = slow
os.kill(os.getpid(), signal.SIGINT)
time.sleep(60)
"""
    _, run = _end(code, tmp_path)
    assert run.status == "interrupted"
    assert values(run, "loss") == [float(i) for i in range(100)]


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
leave = sys.exit
run = init()
assert handlers() == before
train()
assert handlers() == before
run.finish()
assert handlers() == before
assert sys.exit is leave and sys.excepthook is hook and threading.excepthook is threading.__excepthook__
assert signal.set_wakeup_fd(-1) == wakeup
print(len(before))
"""
    done, run = _end(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 30
    _is_complete(run)
