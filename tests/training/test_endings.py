"""The ways a training process can end, and the status of its run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import stepwell
from tests.harness import environment, run_script
from tests.nesting.tree import check_tree, edges, statuses

HEAD = """
import os, signal, sys, time
import stepwell
from stepwell.training import *
from stepwell.telemetry import timed_span

TrainingTelemetryBuilder().with_base_config(
    TrainingTelemetryConfig(application_name="ending", log_every_n_train_iterations=3)
).configure_provider()

def begin():
    on_app_start()
    on_train_start(0)
    for _ in range(3):
        with training_iteration():
            pass
    on_training_single_iteration_start()
    on_data_loading_start()
"""
NAMES = {"application", "training_loop", "training_single_iteration", "data_loading"}


def _end(program: str, folder: Path, code: int = 0) -> tuple[Any, Any, list[dict[str, Any]], str]:
    """Run a program to its end: its run, its spans and its updates."""
    done = run_script(HEAD + program, env=environment(STEPWELL_DIR=str(folder)))
    return _left(done, folder, code)


def _left(
    done: subprocess.CompletedProcess[str], folder: Path, code: int
) -> tuple[Any, Any, list[dict[str, Any]], str]:
    assert done.returncode == code, done.stderr
    (run,) = stepwell.list_runs(folder)
    spans = run.spans().collect()
    check_tree(spans)
    events = run.events().collect().sort("time_ns")
    updates = events.filter(name="training_metrics_update")["attributes"]
    return run, spans, [json.loads(text) for text in updates], done.stderr


def test_exit_without_the_end_of_the_application(tmp_path: Path) -> None:
    """A program that just ends has its application ended with it, and all that was open."""
    # A real interpreter: this is about what it does at its end.
    done = subprocess.run(
        [sys.executable, "-c", HEAD + "begin()"],
        env=environment(STEPWELL_DIR=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=120,
    )
    run, spans, updates, said = _left(done, tmp_path, 0)
    assert (run.status, said) == ("finished", "")
    assert set(spans["status"]) == {"ok"}
    assert set(spans["name"]) == NAMES
    assert [update["num_iterations"] for update in updates] == [3, 4]
    assert updates[-1]["is_final"]


@pytest.mark.parametrize(("code", "status"), [("0", "finished"), ("", "finished"), ("3", "failed")])
def test_exit_inside(code: str, status: str, tmp_path: Path) -> None:
    """sys.exit inside the application ends it like an exception, with its code."""
    program = f"""
with application(), training_loop(), training_iteration():
    sys.exit({code})
"""
    run, spans, updates, said = _end(program, tmp_path, int(code or 0))
    assert said == ""
    assert run.status == status
    is_clean = code in ("", "0")
    assert set(spans["status"]) == {"ok" if is_clean else "error"}
    # An iteration that fails is not one that was done.
    assert [update["num_iterations"] for update in updates] == ([1] if is_clean else [])


def test_exception_that_ends_the_process(tmp_path: Path) -> None:
    """The run has failed, the spans that it passed through are errors, and the place is recorded once."""
    program = """
with application(), training_loop():
    for i in range(5):
        with training_iteration():
            with model_forward():
                if i == 2:
                    raise ValueError("diverged")
"""
    run, spans, updates, said = _end(program, tmp_path, 1)
    assert "diverged" in said
    assert run.status == "failed"
    assert statuses(spans) == {
        ("application", "error"): 1,
        ("training_loop", "error"): 1,
        ("training_single_iteration", "ok"): 2,
        ("training_single_iteration", "error"): 1,
        ("model_forward", "ok"): 2,
        ("model_forward", "error"): 1,
    }
    assert [update["num_iterations"] for update in updates] == [2]
    errors = run.events().collect().filter(name="error")
    assert errors.height == 1
    (process,) = run.path.glob("rank-*/process.json")
    assert json.loads(process.read_text())["error"]["message"] == "diverged"


def test_exception_between_callbacks(tmp_path: Path) -> None:
    """Spans whose ends were not seen are unfinished; the iterations are reported."""
    run, spans, updates, _ = _end("begin()\nraise ValueError('diverged')", tmp_path, 1)
    assert run.status == "failed"
    told = statuses(spans)
    assert told["application", "unfinished"] == told["training_loop", "unfinished"] == 1
    assert told["training_single_iteration", "ok"] == 3
    assert told["training_single_iteration", "unfinished"] == 1
    assert [update["num_iterations"] for update in updates] == [3]


def test_interrupt_from_the_keyboard(tmp_path: Path) -> None:
    """Ctrl-C in a training loop leaves a run that was interrupted, with errors where it went through."""
    program = """
with application(), training_loop(), training_iteration():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(10)
"""
    run, spans, updates, said = _end(program, tmp_path, -signal.SIGINT)
    assert "KeyboardInterrupt" in said
    assert run.status == "interrupted"
    assert set(spans["status"]) == {"error"}
    assert updates == []


def test_kill(tmp_path: Path) -> None:
    """After kill -9 the tree is all there; what was open is unfinished."""
    run, spans, updates, _ = _end(
        "begin(); stepwell.flush(); os.kill(os.getpid(), signal.SIGKILL)", tmp_path, -signal.SIGKILL
    )
    assert run.status == "killed"
    assert edges(spans) == {
        ("application", None): 1,
        ("training_loop", "application"): 1,
        ("training_single_iteration", "training_loop"): 4,
        ("data_loading", "training_single_iteration"): 1,
    }
    assert statuses(spans)["training_single_iteration", "ok"] == 3
    assert [update["num_iterations"] for update in updates] == [3]


def test_fork_in_the_middle_of_a_loop(tmp_path: Path) -> None:
    """A child records its own spans; neither affects the other's loop, and both end normally."""
    program = """
with application(), training_loop() as loop:
    with training_iteration():
        child = os.fork()
        if child == 0:
            with data_loading():
                pass
            with training_loop(), training_iteration():
                pass
            os._exit(0)
        os.waitpid(child, 0)
    with training_iteration():
        pass
"""
    run, spans, updates, said = _end(program, tmp_path)
    assert said == ""
    assert set(spans["status"]) <= {"ok", "unfinished"}
    processes = dict(run.processes().collect().select("process", "role").iter_rows())
    roles = {(processes[process], name) for process, name in _places(spans)}
    assert roles == {
        ("main", "application"),
        ("main", "training_loop"),
        ("main", "training_single_iteration"),
        ("worker", "data_loading"),
        ("worker", "training_loop"),
        ("worker", "training_single_iteration"),
    }
    own = spans.filter(process=_main(processes))
    assert edges(own)["training_single_iteration", "training_loop"] == 2
    assert sorted(update["num_iterations"] for update in updates) == [1, 2]


def _places(spans: Any) -> Any:
    return spans.select("process", "name").iter_rows()


def _main(processes: dict[str, str]) -> str:
    return next(process for process, role in processes.items() if role == "main")


@pytest.mark.torch
def test_workers_of_a_data_loader(tmp_path: Path) -> None:
    """Workers that use data_loading() while the parent iterates have spans of their own."""
    pytest.importorskip("torch")
    program = """
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        with data_loading() as span:
            span.add_attribute("index", index)
        return index

with application(), training_loop():
    for batch in DataLoader(Numbers(), batch_size=2, num_workers=2):
        with training_iteration(), model_forward():
            pass
"""
    run, spans, updates, said = _end(program, tmp_path)
    assert said == ""
    assert edges(spans) == {
        ("application", None): 1,
        ("training_loop", "application"): 1,
        ("training_single_iteration", "training_loop"): 4,
        ("model_forward", "training_single_iteration"): 4,
        ("data_loading", None): 8,
    }
    loads = spans.filter(name="data_loading")
    assert sorted(json.loads(text)["index"] for text in loads["attributes"]) == list(range(8))
    assert loads["process"].n_unique() == 2
    assert updates[-1]["num_iterations"] == 4
    assert run.status == "finished"
