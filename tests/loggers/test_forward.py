"""``stepwell forward RUN --to BACKEND``: what was logged, afterwards."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell import Run
from stepwell.loggers.delivery.forwarder import (
    BACKENDS,
    forward_log,
    is_backend,
    registered_loggers,
)
from stepwell.telemetry import artifacts
from stepwell.telemetry.exporter_config import find_class
from stepwell.telemetry.forward import NotTaken
from tests.durability.helpers import run_script
from tests.harness import run_stepwell
from tests.journal.logging_rows import folder_of, log_for, write_line
from tests.loggers.lines_backend import LinesBackend

LINES = "tests.loggers.lines_backend.LinesBackend"


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return run_stepwell("forward", *words, cwd=Path.cwd())


def arrived(out: Path) -> list[list[Any]]:
    """Type, name, step and value of what a backend got."""
    return [json.loads(line)[:4] for line in out.read_text().splitlines()]


def calls(out: Path, kind: str) -> list[list[Any]]:
    found = [json.loads(line) for line in Path(f"{out}.calls").read_text().splitlines()]
    return [call[1:] for call in found if call[0] == kind]


def register(number: int, **options: Any) -> None:
    backend = LinesBackend(number=number, **options)
    write_line("logger", "lines", number=number, to="lines", **backend.description())


def test_a_run_without_such_a_logger_goes_as_a_whole(recorded: Run, tmp_path: Path) -> None:
    """Plain metrics and those for any logger; again, only what is new since."""
    out = tmp_path / "out"
    stepwell.log({"plain": 1.5}, step=7)
    log_for("1", "loss", 2.5, 8)
    write_line("item", "lr", item="param", audience=[1], value=0.1)
    options = {"path": str(out)}
    (first,) = forward_log(recorded.path, LINES, options)
    assert (first.records, first.running) == (3, True)
    log_for("2", "loss", 3.5, 9)
    recorded.finish("failed")
    (second,) = forward_log(recorded.path, LINES, options)
    assert (second.records, second.running) == (1, False)
    assert arrived(out) == [
        ["metric", "plain", 7, 1.5],
        ["metric", "loss", 8, 2.5],
        ["item", "lr", None, 0.1],
        ["metric", "loss", 9, 3.5],
    ]
    assert calls(out, "finish") == [["failed"]]
    assert (folder_of(recorded.path) / "delivery-lines-forward.json").exists()


@pytest.mark.full
def test_each_logger_of_the_kind_gets_its_own(recorded: Run, tmp_path: Path) -> None:
    """With the options that it had, unless others are given; loggers of another kind get nothing."""
    first, second = tmp_path / "first", tmp_path / "second"
    register(1, path=str(first))
    write_line("logger", "mlflow", number=2, to="mlflow", **{"class": "x.Y", "options": {}})
    register(3, path="/nowhere/at/all")
    log_for("1", "a", 1.0, 0)
    log_for("2", "b", 2.0, 0)
    log_for("1+3", "c", 3.0, 0)
    recorded.finish()
    found = list(registered_loggers(folder_of(recorded.path)))
    assert [(logger.number, logger.to) for logger in found] == [
        (1, "lines"),
        (2, "mlflow"),
        (3, "lines"),
    ]
    with pytest.raises(NotTaken, match="No such file or directory"):
        forward_log(recorded.path, LINES)
    assert arrived(first) == [["metric", "a", 0, 1.0], ["metric", "c", 0, 3.0]]
    done = forward_log(recorded.path, LINES, {"path": str(second)})
    assert [item.records for item in done] == [0, 1]
    assert arrived(second) == [["metric", "c", 0, 3.0]]
    assert len(arrived(first)) == 2


def record_rank(runs: Path, rank: int, code: str) -> Path:
    """Record one rank of a run of two."""
    variables = {"RANK": str(rank), "WORLD_SIZE": "2", "STEPWELL_RUN_ID": "two"}
    done = run_script(f"run = init('t', dir={str(runs)!r})\n{code}", runs.parent, **variables)
    assert done.returncode == 0, done.stderr
    return runs / "two"


def test_the_ranks_that_logged_are_known(tmp_path: Path) -> None:
    """One that logged nothing makes no run in the backend."""
    out, runs = tmp_path / "out", tmp_path / "runs"
    record_rank(runs, 0, "")
    run = record_rank(runs, 1, "log({'loss': 1.0}, step=0)")
    assert [item.records for item in forward_log(run, LINES, {"path": str(out)})] == [1]
    ((rank, *_),) = calls(out, "open")
    assert rank == 1


def test_the_command_says_what_it_did(recorded: Run, tmp_path: Path) -> None:
    """By the name of a class of one's own; a second time there is nothing to do."""
    out = tmp_path / "out"
    log_for("1", "loss", 1.0, 0)
    recorded.finish()
    words = [str(recorded.path), "--to", LINES, "--option", f"path={out}"]
    done = command(*words)
    assert done.returncode == 0, done.stderr
    process = folder_of(recorded.path).name
    assert done.stdout == f"{process}: 1 record\n{recorded.id}: 1 record sent to {LINES}\n"
    again = command(*words)
    assert again.stdout.splitlines()[-1] == f"{recorded.id}: {LINES} already has all records"
    assert len(arrived(out)) == 1


@pytest.mark.full
def test_one_that_is_down_is_said_and_keeps_its_place(recorded: Run, tmp_path: Path) -> None:
    """The command fails in one line; later the same records come, once."""
    out = tmp_path / "out"
    register(1, path=str(out))
    log_for("1", "loss", 1.0, 0)
    recorded.finish()
    down = Path(f"{out}.down")
    down.touch()
    done = command(str(recorded.path), "--to", LINES)
    assert done.returncode != 0
    assert "lines: ConnectionError: it is down" in done.stderr
    assert "Traceback" not in done.stderr
    down.unlink()
    assert forward_log(recorded.path, LINES)[0].records == 1
    assert arrived(out) == [["metric", "loss", 0, 1.0]]


def test_what_makes_no_sense_is_refused(recorded: Run) -> None:
    """A filter of spans for a backend; a name that nothing has."""
    recorded.finish()
    done = command(str(recorded.path), "--to", "tensorboard", "--only", "epoch")
    assert done.returncode != 0
    assert "tensorboard does not receive spans" in done.stderr
    done = command(str(recorded.path), "--to", "mlfow")
    assert "no exporter named 'mlfow' (did you mean 'mlflow'?)" in " ".join(done.stderr.split())


def test_the_names_stand_for_backends() -> None:
    """Each of them can be imported, and is called what its name says."""
    for name, path in BACKENDS.items():
        made: Any = find_class(path, name)
        assert (made.name, made.reads) == (name, "log")


def test_console_is_the_backend_where_the_run_has_that_logger(
    recorded: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else the exporter of spans. The class in the folder is not what decides which code runs."""
    assert not is_backend(recorded.path, "console")
    assert not is_backend(recorded.path, "otlp")
    assert is_backend(recorded.path, "mlflow")
    about = {"class": "antigravity.Evil", "options": {"savedir": str(tmp_path / "kept")}}
    write_line("logger", "console", number=1, to="console", **about)
    log_for("1", "loss", 0.25, 3)
    sha, size = artifacts.store(recorded.path, b"picture")
    figure = {"content": sha, "size": size, "file": "c.png", "step": 3}
    write_line("item", "c", item="figure", audience=[1], **figure)
    write_line("item", "lr", item="param", audience=[1], value=0.1)
    recorded.finish()
    assert is_backend(recorded.path, "console")
    assert forward_log(recorded.path, "console")[0].records == 3
    kept = tmp_path / "kept" / recorded.id / "c.png"
    assert kept.read_bytes() == b"picture"
    shown = capsys.readouterr().err.splitlines()
    assert shown == ["loss = 0.25 (step 3)", f"c: {kept} (figure, step 3)", "lr = 0.1 (param)"]
