"""Secrets end to end: planted, and found in no file of a run and in nothing that a tracker gets."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from stepwell.reading.run import TABLES
from tests.durability.helpers import only_run
from tests.harness import environment, run_script

SECRETS = {
    "config": "cfgSecretValue0123456789",
    "argument": "argSecretValue0123456789",
    "variable": "envSecretValue0123456789",
    "remote": "gitSecretValue0123456789",
    "connection": "dbSecretValue0123456789",
    "exception": "excSecretValue0123456789",
    "parameter": "parSecretValue0123456789",
    "key": "hf_abcdefghijklmnopqrstuvwxyz012345",
}
PROGRAM = """
import os
import stepwell
from stepwell.exporters.file import FileExporter
from stepwell.loggers import LoggersCollection, TensorBoardLogger
config = {
    "optimizer": {"lr": 0.1, "api_key": "{config}"},
    "database": "postgresql://user:{connection}@host/db",
    "text": "use {key} to log in",
}
run = stepwell.init("secrets", dir="runs", config=config)
run.add_exporter(FileExporter("exported/spans.jsonl"))
loggers = LoggersCollection([TensorBoardLogger("logs", log_freq="batch")])
loggers.create_logger_context()
loggers.save_hyperparameters({"lr": 0.1, "password": "{parameter}"})
loggers.log(1.0, "loss")
with stepwell.span("work"):
    raise ConnectionError("postgresql://user:{exception}@host/db: password={exception}")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in which a program with all these secrets has run, and failed."""
    code = PROGRAM
    for name, value in SECRETS.items():
        code = code.replace("{" + name + "}", value)
    (tmp_path / "exported").mkdir()
    remote = f"https://user:{SECRETS['remote']}@host/repo.git"
    for words in (["init", "-q"], ["remote", "add", "origin", remote]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    variables = {"SLURM_API_TOKEN": SECRETS["variable"], "WANDB_API_KEY": SECRETS["variable"]}
    done = run_script(
        code,
        "--api-key",
        SECRETS["argument"],
        f"--password={SECRETS['argument']}",
        cwd=tmp_path,
        env=environment(HOME=str(tmp_path), **variables),
    )
    assert done.returncode == 1, done.stderr
    return tmp_path


def test_no_secret_is_written(folder: Path) -> None:
    """Neither in the run folder nor in what an exporter and a tracker got."""
    files = [
        path
        for place in ("runs", "exported", "logs")
        for path in (folder / place).rglob("*")
        if path.is_file()
    ]
    assert any("tfevents" in path.name for path in files)
    assert any(path.name == "spans.jsonl" for path in files)
    texts = {
        f"{name} in {path.relative_to(folder)}"
        for path in files
        for name, value in SECRETS.items()
        if value.encode() in path.read_bytes()
    }
    assert not texts
    # Archives are compressed: what they say is read from them.
    recorded = only_run(folder / "runs")
    tables = [getattr(recorded, name)().collect().write_json() for name in TABLES]
    assert "ConnectionError" in "".join(tables)
    assert not [name for name, value in SECRETS.items() if value in "".join(tables)]
    run = (next((folder / "runs").iterdir()) / "run.json").read_text()
    # They are masked, not left out.
    assert run.count("***") >= 4


def test_who_may_read_a_run_is_up_to_the_umask(tmp_path: Path) -> None:
    """With ``umask 077`` only the owner can read any file."""
    code = """
import os
os.umask(0o077)
import stepwell
run = stepwell.init("private", dir="runs")
run.artifact(b"content", "data.bin")
with stepwell.span("work", a=1):
    stepwell.log({"loss": 1.0})
run.finish()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(), check=False
    )
    assert done.returncode == 0
    places = [tmp_path / "runs", *(tmp_path / "runs").rglob("*")]
    open_to_others = [
        str(path.relative_to(tmp_path))
        for path in places
        if stat.S_IMODE(os.lstat(path).st_mode) & 0o077
    ]
    assert open_to_others == []
