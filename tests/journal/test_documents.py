"""run.json and process.json say what produced a run, and give no secret away."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import Run
from stepwell.telemetry import identity
from tests.journal.readback import parse_strictly


def finished(tmp_path: Path, **options: Any) -> tuple[dict[str, Any], dict[str, Any], str]:
    """run.json, process.json and all text of a run that was started so and finished."""
    run = stepwell.init("trial", dir=tmp_path / "runs", **options)
    run.finish()
    [process] = run.path.glob("*/process.json")
    texts = [(run.path / "run.json").read_text(), process.read_text()]
    return parse_strictly(texts[0]), parse_strictly(texts[1]), "".join(texts)


def test_run_json_tells_who_and_what(tmp_path: Path) -> None:
    """Name, tags, config, world size and the attempt's Python, packages, host and place are there."""
    about, _, _ = finished(tmp_path, config={"lr": 0.1}, tags=["a", "b"])
    assert about["name"] == "trial"
    assert about["id"] == next((tmp_path / "runs").iterdir()).name
    assert (about["tags"], about["config"], about["world_size"]) == (["a", "b"], {"lr": 0.1}, 1)
    [attempt] = about["attempts"]
    assert attempt["attempt"] == 0
    assert attempt["cwd"] == os.getcwd()
    assert attempt["host"]["hostname"] == socket.gethostname()
    assert attempt["host"]["kernel"] == platform.release()
    assert attempt["python"]["version"] == platform.python_version()
    assert attempt["python"]["packages"]["numpy"] == version("numpy")
    assert attempt["python"]["packages"]["torch"] == version("torch")


def test_process_json_tells_which_process_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank, host, pid, boot, command line and the launcher's environment, with secrets masked."""
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("SLURM_API_TOKEN", "correct-horse")
    monkeypatch.setenv("EDITOR", "ed")
    monkeypatch.setattr(sys, "argv", ["train.py", "--api-key", "correct-horse", "--lr=0.1"])
    about, process, text = finished(tmp_path)
    assert (process["rank"], process["local_rank"], process["world_size"]) == (0, 0, 1)
    assert (process["host"], process["pid"]) == (socket.gethostname(), os.getpid())
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert (process["boot"], process["role"], process["status"]) == (boot, "main", "finished")
    assert process["argv"] == ["train.py", "--api-key", "***", "--lr=0.1"]
    assert about["attempts"][0]["argv"] == process["argv"]
    assert process["environment"]["NCCL_DEBUG"] == "INFO"
    assert process["environment"]["SLURM_API_TOKEN"] == "***"
    assert "EDITOR" not in process["environment"]
    assert "correct-horse" not in text


def git(folder: Path, *arguments: str) -> str:
    author = ["-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    answer = subprocess.run(
        ["git", *author, *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return answer.stdout.strip()


def test_the_commit_and_whether_it_was_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit is that of git itself; a change to a tracked file makes it dirty."""
    repository = tmp_path / "code"
    repository.mkdir()
    git(repository, "init", "-q", "-b", "trunk")
    (repository / "train.py").write_text("one")
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "first")
    monkeypatch.chdir(repository)
    monkeypatch.setattr(identity, "_GIT_VALID_SECONDS", 0.0)
    # On a busy machine git may take longer than a run waits for it.
    monkeypatch.setattr(identity, "_GIT_SECONDS", 60.0)
    monkeypatch.setattr(identity, "_GIT_SECONDS_AT_END", 60.0)
    clean = finished(tmp_path / "clean")[0]["attempts"][0]["code"]
    (repository / "train.py").write_text("two")
    dirty = finished(tmp_path / "dirty")[0]["attempts"][0]["code"]
    commit = git(repository, "rev-parse", "HEAD")
    assert (clean["commit"], clean["branch"], clean["dirty"]) == (commit, "trunk", False)
    assert (dirty["commit"], dirty["dirty"]) == (commit, True)


@dataclass
class Login:
    user: str = "ada"
    password: str = "correct-horse"


@dataclass
class Config:
    lr: float = 0.1
    login: Login = field(default_factory=Login)
    logins: tuple[Login, ...] = (Login(),)


SECRETS: list[Any] = [
    {"lr": 0.1, "api_key": "correct-horse", "deep": [{"auth_token": "correct-horse"}]},
    argparse.Namespace(lr=0.1, password="correct-horse", deep={"secret": ["correct-horse"]}),
    Config(),
    {"lr": 0.1, "url": "https://ada:correct-horse@example.com/x"},
    {"lr": 0.1, "held": {"db_password": Path("correct-horse")}},
]


@pytest.mark.parametrize("config", SECRETS, ids=range(len(SECRETS)))
def test_secrets_in_the_config_are_masked(tmp_path: Path, config: Any) -> None:
    """Whatever holds them and however deep they are, they are not in the run folder."""
    about, _, _ = finished(tmp_path, config=config)
    assert about["config"]["lr"] == 0.1
    assert about["attempts"][0]["config"] == about["config"]
    for path in (tmp_path / "runs").rglob("*"):
        if path.is_file():
            assert b"correct-horse" not in path.read_bytes(), path
    assert "***" in str(about["config"])


def test_any_value_in_the_config_becomes_strict_json(tmp_path: Path) -> None:
    """NaN, NumPy, paths, dates, sets and objects in a config do not keep run.json from being written."""
    about, _, _ = finished(
        tmp_path,
        config={
            "nan": float("nan"),
            "np": np.float32(0.5),
            "path": Path("/data"),
            "date": datetime.date(2024, 2, 29),
            "set": {3},
            "bytes": b"ab",
            "complex": 1j,
            "big": 2**70,
            "surrogate": "\ud800",
            "object": object,
            7: "int key",
            "nested": {"inf": float("-inf")},
        },
    )
    assert about["config"] == {
        "nan": None,
        "np": 0.5,
        "path": "/data",
        "date": "2024-02-29",
        "set": [3],
        "bytes": "YWI=",
        "complex": "<complex: 1j>",
        "big": 2**70,
        "surrogate": "\ud800",
        "object": "<type: builtins.object>",
        "7": "int key",
        "nested": {"inf": None},
        "nonfinite": {"nan": "nan", "nested.inf": "-inf"},
    }


def test_the_config_is_the_one_it_was_at_the_start(tmp_path: Path) -> None:
    """A dict that the training changes afterwards is recorded as it was given."""
    config: dict[str, Any] = {"layers": [1]}
    run = stepwell.init("trial", dir=tmp_path, config=config)
    config["layers"].append(2)
    config["late"] = True
    run.finish()
    assert stepwell.open_run(run.path).config == {"layers": [1]}


def test_a_failure_is_described(run: Run) -> None:
    """process.json names the exception that ended a run, with its traceback."""
    with pytest.raises(ZeroDivisionError), run:
        1 / 0  # noqa: B018
    [path] = run.path.glob("*/process.json")
    process = parse_strictly(path.read_text())
    assert process["status"] == "failed"
    assert process["error"]["type"] == "ZeroDivisionError"
    assert process["error"]["message"] == "division by zero"
    (line,) = process["error"]["traceback"]
    assert (Path(line["file"]).name, line["function"]) == (
        "test_documents.py",
        "test_a_failure_is_described",
    )
    assert line["source"].startswith("1 / 0")
