"""The names that users import, and the types they see."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

import stepwell

EXPORTED = [
    "__version__",
    "active_run",
    "artifact",
    "event",
    "finish",
    "flush",
    "init",
    "list_runs",
    "log",
    "open_run",
    "Run",
    "set_step",
    "span",
    "StepwellError",
    "watch",
]

# A wrong call with `type: ignore` is a check as well: --strict complains about an ignore that is
# not needed, so the call has to be an error.
USERS_FILE = """
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl
import stepwell
from typing_extensions import assert_type


@dataclass
class Config:
    lr: float = 0.1


@stepwell.span("double")
def double(x: int, *, times: int = 1) -> int:
    return x * 2 * times


@stepwell.span("halve", digits=2)
def halve(x: float) -> float:
    return x / 2


def train(runs: Path, weights: Path) -> None:
    run = stepwell.init(
        "first", dir=runs, config={"lr": 0.1}, tags=("a", "b"), run_id="r1", resume=False
    )
    assert_type(run, stepwell.Run)
    with run.span("epoch"), run.span("forward", layer=3, name_of_model="small"):
        run.log({"loss": 1, "accuracy": 0.5})
        run.log({"loss": 0.25}, step=2)

    @run.span("inner", depth=1)
    def inner(text: str) -> bytes:
        return text.encode()

    assert_type(inner("x"), bytes)
    run.event("note", text="hello", count=1)
    run.artifact(weights)
    run.artifact(str(weights), name="again")
    run.artifact(b"bytes", name="blob", kind="weights")
    run.set_step(3, epoch=1)
    run.flush(timeout=10)
    run.finish()


def train_on_the_active_run(runs: Path, weights: Path) -> None:
    with stepwell.init(dir=str(runs), config=Config(), tags=["c"]) as run:
        assert_type(run, stepwell.Run)
        assert_type(stepwell.active_run(), "stepwell.Run | None")
        with stepwell.span("step", index=1):
            assert_type(double(2, times=3), int)
            assert_type(halve(1.0), float)
        stepwell.set_step(0)
        stepwell.log({"loss": 0.5}, step=1)
        stepwell.event("note", text="hello")
        stepwell.artifact(weights)
        stepwell.artifact(b"bytes", name="blob")
        stepwell.flush()
        stepwell.finish()


def read(runs: Path) -> None:
    assert len(list(stepwell.list_runs(runs))) == 2
    [folder] = [path for path in runs.iterdir() if "r1" in path.name]
    run = stepwell.open_run(folder)
    spans = run.spans()
    assert_type(spans, pl.LazyFrame)
    assert_type(spans.collect(), pl.DataFrame)
    assert sorted(run.spans().collect()["name"]) == ["epoch", "forward", "inner"]
    assert run.metrics(overwritten=True).collect().height == 3


def wrong() -> None:
    try:
        stepwell.open_run("nowhere")
    except stepwell.StepwellError:
        pass
    double("2")  # type: ignore[arg-type]
    stepwell.init(folder="runs")  # type: ignore[call-arg]
    stepwell.log([1.0])  # type: ignore[arg-type]
    stepwell.span()  # type: ignore[call-arg]


if __name__ == "__main__":
    runs, weights = Path("runs"), Path("weights.bin")
    weights.write_bytes(b"w")
    train(runs, weights)
    train_on_the_active_run(runs, weights)
    read(runs)
"""


@pytest.fixture
def users_file(tmp_path: Path) -> Path:
    """A user's file in a folder of its own, outside this repository."""
    path = tmp_path / "users_file.py"
    path.write_text(USERS_FILE, encoding="utf-8")
    return path


def run_python(*arguments: str, cwd: Path) -> tuple[int, str]:
    """Exit code and output of a fresh interpreter without any of our settings."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("STEPWELL_", "MYPY"))}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


LEFT_OUT = """
    torch torchmetrics lightning lightning_fabric pytorch_lightning transformers accelerate
    huggingface_hub mlflow databricks wandb sqlalchemy matplotlib opentelemetry dask distributed
"""
"""Packages whose own types are some minutes' work, and no part of what the user's file sees."""


def type_check(file: Path, cache: Path) -> tuple[int, str]:
    """What `mypy --strict` says of a user's file."""
    settings = cache / "mypy.ini"
    skipped = "".join(f"[mypy-{name}.*]\nfollow_imports = skip\n" for name in LEFT_OUT.split())
    settings.write_text(f"[mypy]\n{skipped}", encoding="utf-8")
    options = (
        "--strict",
        "--no-error-summary",
        f"--cache-dir={cache}",
        f"--config-file={settings}",
    )
    return run_python("-m", "mypy", *options, file.name, cwd=file.parent)


def test_exported_names() -> None:
    """A name joins or leaves the public surface only on purpose."""
    assert sorted(stepwell.__all__, key=str.lower) == EXPORTED


def test_every_exported_name_is_there() -> None:
    """Each exported name can be had, the lazily imported ones too, and `dir` shows it."""
    assert [name for name in EXPORTED if not hasattr(stepwell, name)] == []
    assert set(EXPORTED) - set(dir(stepwell)) == set()


def test_version_is_the_installed_one() -> None:
    """`__version__` and the package's metadata agree."""
    assert stepwell.__version__ == importlib.metadata.version("stepwell")


@pytest.mark.full
def test_a_users_file_type_checks(users_file: Path, pytestconfig: pytest.Config) -> None:
    """`mypy --strict` accepts right calls, rejects wrong ones, and sees through the decorator."""
    assert pytestconfig.cache is not None
    code, output = type_check(users_file, pytestconfig.cache.mkdir("mypy-of-a-users-file"))
    assert code == 0, output


def test_a_users_file_runs(users_file: Path) -> None:
    """The same file does at run time what its types promise."""
    code, output = run_python(users_file.name, cwd=users_file.parent)
    assert code == 0, output
