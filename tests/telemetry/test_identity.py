"""The identity of a run is described without secrets, and never disturbs the program."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import namedtuple
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import stepwell
from stepwell.telemetry import identity
from stepwell.telemetry.identity import (
    config_to_dict,
    describe_code,
    describe_host,
    describe_launch_environment,
    mask,
)

SECRET = "correct-horse"


# Host and Python.


def test_the_host_is_described_as_the_system_itself_does() -> None:
    """Name, kernel and processors are those that uname and Python report; all of it is JSON."""
    host = describe_host()
    assert host["hostname"] == platform.node()
    assert host["kernel"] == os.uname().release
    assert host["cpu_count"] == os.cpu_count()
    assert json.loads(json.dumps(host)) == host


@pytest.mark.skipif(sys.platform != "linux", reason="from /proc")
def test_on_linux_memory_and_boot_are_known() -> None:
    """Memory is what sysconf says, to a few per cent that the kernel keeps for itself."""
    host = describe_host()
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert host["memory_bytes"] == pytest.approx(pages, rel=0.05)
    assert host["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_python_is_described_with_the_packages_that_matter_and_no_import_of_them() -> None:
    """Versions of installed packages are found without importing them."""
    script = (
        "import json, sys\n"
        "from stepwell.telemetry.identity import describe_python\n"
        "print(json.dumps([describe_python(), sorted(sys.modules)]))\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    answer = subprocess.run(
        [sys.executable, "-c", script], env=environ, check=True, capture_output=True, text=True
    )
    python, modules = json.loads(answer.stdout)
    assert python["version"] == platform.python_version()
    assert python["executable"] == sys.executable
    assert python["implementation"] == "cpython"
    assert python["packages"]["numpy"][0].isdigit()
    assert "pytest" not in python["packages"]
    assert "numpy" not in modules


# Code.


def git(folder: Path, *arguments: str) -> str:
    author = ["-c", "user.name=T", "-c", "user.email=t@example.org"]
    command = ["git", "-C", str(folder), *author, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=trunk")
    (folder / "train.py").write_text("print(1)\n")
    git(folder, "add", "train.py")
    git(folder, "commit", "--quiet", "--message=first")
    return folder


def test_a_clean_repository_gives_commit_branch_and_remote(repository: Path) -> None:
    """The commit is that of git, untracked files are not a change, and the password is left out."""
    git(repository, "remote", "add", "origin", f"https://me:{SECRET}@example.org/a/b.git")
    (repository / "runs").mkdir()
    (repository / "runs" / "untracked").touch()
    assert describe_code(repository / "runs") == {
        "commit": git(repository, "rev-parse", "HEAD"),
        "branch": "trunk",
        "dirty": False,
        "remote": "https://example.org/a/b.git",
    }


def test_a_changed_file_makes_the_code_dirty(repository: Path) -> None:
    """Changed files make the code dirty, and a detached head has no branch."""
    git(repository, "checkout", "--quiet", "--detach")
    (repository / "train.py").write_text("print(2)\n")
    described = describe_code(repository)
    assert described["dirty"] is True
    assert "branch" not in described


@pytest.mark.parametrize(
    ("remote", "kept"),
    [
        ("git@example.org:a/b.git", "git@example.org:a/b.git"),
        ("ssh://git@example.org/a/b", "ssh://git@example.org/a/b"),
        (f"ssh://git:{SECRET}@example.org/a/b", "ssh://git@example.org/a/b"),
        (f"https://{SECRET}@example.org/a/b", "https://example.org/a/b"),
        (f"https://me:p@{SECRET}@example.org/a", "https://example.org/a"),
        (f"https://example.org/a?private_token={SECRET}", "https://example.org/a"),
        ("/srv/git/a.git", "/srv/git/a.git"),
    ],
)
def test_a_remote_is_kept_without_credentials(repository: Path, remote: str, kept: str) -> None:
    """Only the user of an ssh URL, which is not secret, is kept."""
    git(repository, "config", "remote.origin.url", remote)
    assert describe_code(repository)["remote"] == kept


def test_a_repository_does_not_get_its_own_programs_run(repository: Path) -> None:
    """A repository may configure a file-system monitor; describing the code does not start it."""
    monitor = repository.parent / "monitor.sh"
    monitor.write_text(f"#!/bin/sh\ntouch {repository.parent / 'ran'}\n")
    monitor.chmod(0o755)
    git(repository, "config", "core.fsmonitor", str(monitor))
    assert describe_code(repository)["dirty"] is False
    assert not (repository.parent / "ran").exists()


def test_describing_leaves_the_index_alone(repository: Path) -> None:
    """No optional lock is taken, so a commit under way elsewhere is not disturbed."""
    (repository / "train.py").touch()
    index = repository / ".git" / "index"
    before = index.read_bytes()
    describe_code(repository)
    assert index.read_bytes() == before


def test_without_a_repository_or_git_there_is_nothing_to_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a plain folder, a missing one nor a machine without git raises."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert describe_code(tmp_path) == {}
    assert describe_code(tmp_path / "missing") == {}
    monkeypatch.setenv("PATH", "")
    assert describe_code(tmp_path) == {}


@pytest.fixture
def hanging_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Git takes a minute to answer."""
    hanging = tmp_path / "bin" / "git"
    hanging.parent.mkdir()
    hanging.write_text("#!/bin/sh\nexec sleep 60\n")
    hanging.chmod(0o755)
    monkeypatch.setenv("PATH", f"{hanging.parent}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.usefixtures("hanging_git")
def test_a_git_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When its time is up, everything that git was asked is left out."""
    monkeypatch.setattr(identity, "_GIT_SECONDS", 0.05)
    assert describe_code(tmp_path) == {}


@pytest.mark.usefixtures("hanging_git")
def test_a_run_that_ends_does_not_wait_for_git(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much time git would have had."""
    monkeypatch.setattr(identity, "_GIT_SECONDS", 1e9)
    monkeypatch.chdir(tmp_path)
    assert describe_code(tmp_path, is_ending=lambda: True) == {}
    with stepwell.init("short", dir=tmp_path / "runs") as run:
        pass
    (attempt,) = json.loads((run.path / "run.json").read_text())["attempts"]
    assert attempt["code"] == {}
    assert attempt["host"]["hostname"] == socket.gethostname()


def test_runs_in_quick_succession_share_one_description(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git is asked again after two seconds, and then sees what has changed."""
    now = 100.0
    clock = SimpleNamespace(monotonic=lambda: now, sleep=time.sleep)
    monkeypatch.setattr(identity, "time", clock)
    first = describe_code(repository)
    (repository / "train.py").write_text("print(2)\n")
    assert describe_code(repository) == first
    now += 2.0
    assert describe_code(repository) == {**first, "dirty": True}


# The launch environment.


def test_only_launch_variables_are_kept_and_their_secrets_are_not() -> None:
    """Only variables of launchers are recorded, and tokens among them are masked."""
    kept = {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "1",
        "GROUP_RANK": "0",
        "MASTER_ADDR": "node-a",
        "TORCHELASTIC_RUN_ID": "none",
        "SLURM_JOB_ID": "4711",
        "OMPI_COMM_WORLD_RANK": "1",
        "PMI_RANK": "1",
        "PMIX_NAMESPACE": "job",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "NCCL_DEBUG": "INFO",
        "STEPWELL_DIR": "runs",
    }
    masked = {"SLURM_JWT": SECRET, "STEPWELL_TOKEN": SECRET}
    others = {"HOME": "/home/me", "MASTER_KEY": SECRET, "LOCAL_DATABASE": SECRET, "MY_RANK": "1"}
    described = describe_launch_environment({**kept, **masked, **others})
    assert described == {**kept, "SLURM_JWT": "***", "STEPWELL_TOKEN": "***"}


# Configurations.


@dataclass
class Optimizer:
    lr: float = 0.1
    betas: tuple[float, float] = (0.9, 0.99)


@dataclass
class Config:
    name: str = "net"
    optimizer: Optimizer = field(default_factory=Optimizer)
    stages: list[Optimizer] = field(default_factory=lambda: [Optimizer(lr=1.0)])


class WithToDict:
    def to_dict(self) -> dict[str, Any]:
        return {"lr": 0.1}


class WithItems:
    def items(self) -> list[tuple[str, float]]:
        return [("lr", 0.1)]


class WithAttributes:
    def __init__(self) -> None:
        self.lr = 0.1
        self._hidden = 1


class Unfilled(Mapping[str, Any]):
    """Like an OmegaConf config with a value that is still to be given."""

    def __getitem__(self, key: str) -> Any:
        if key == "missing":
            raise ValueError("Missing mandatory value: missing")
        return 0.1

    def __iter__(self) -> Iterator[str]:
        return iter(["lr", "missing"])

    def __len__(self) -> int:
        return 2


Point = namedtuple("Point", ["lr"])


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (None, {}),
        ({}, {}),
        ({"lr": 0.1, 3: "three"}, {"lr": 0.1, "3": "three"}),
        (argparse.Namespace(lr=0.1), {"lr": 0.1}),
        (SimpleNamespace(lr=0.1), {"lr": 0.1}),
        (WithToDict(), {"lr": 0.1}),
        (WithItems(), {"lr": 0.1}),
        (WithAttributes(), {"lr": 0.1}),
        (Point(lr=0.1), {"lr": 0.1}),
        (Unfilled(), {"lr": 0.1, "missing": "<ValueError>"}),
        (
            Config(),
            {
                "name": "net",
                "optimizer": {"lr": 0.1, "betas": [0.9, 0.99]},
                "stages": [{"lr": 1.0, "betas": [0.9, 0.99]}],
            },
        ),
        (
            {"a": argparse.Namespace(b=[Point(lr=1)], c=Path("x"))},
            {"a": {"b": [{"lr": 1}], "c": Path("x")}},
        ),
    ],
)
def test_a_configuration_becomes_a_dict(config: object, expected: dict[str, Any]) -> None:
    """Whatever people keep their settings in gives the same plain dict, inside and out."""
    assert config_to_dict(config) == expected


def test_a_pydantic_model_becomes_a_dict() -> None:
    """A model gives its fields, and models inside it theirs."""
    pydantic = pytest.importorskip("pydantic")
    inner = pydantic.create_model("Inner", lr=(float, 0.1))
    outer = pydantic.create_model("Outer", optimizer=(inner, inner()), name=(str, "net"))
    expected = {"optimizer": {"lr": 0.1}, "name": "net"}
    assert config_to_dict(outer()) == expected
    assert config_to_dict({"model": outer()}) == {"model": expected}


def test_secrets_in_nested_configurations_are_found_once_converted() -> None:
    """Masking a converted configuration reaches the attributes of the objects in it."""
    config = {"logger": argparse.Namespace(api_key=SECRET, project="p")}
    assert mask(config_to_dict(config)) == {"logger": {"api_key": "***", "project": "p"}}


@pytest.mark.parametrize("config", ["lr=0.1", 3, 0.5, [("lr", 0.1)], Config, print, object()])
def test_what_is_no_configuration_is_refused_with_advice(config: object) -> None:
    """The error says what was given and what to pass instead."""
    with pytest.raises(TypeError, match=r"config must be a dict.*, got "):
        config_to_dict(config)


def test_the_given_configuration_is_not_changed_or_shared() -> None:
    """The returned dict is a copy, so later changes do not affect the record."""
    config = {"optimizer": {"lr": 0.1}}
    converted = config_to_dict(config)
    config["optimizer"]["lr"] = 0.2
    assert converted == {"optimizer": {"lr": 0.1}}


def test_a_child_forked_while_git_is_asked_can_make_temporary_files(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tempfile looks for its folder under a lock, which no child may inherit locked."""
    searching = threading.Event()

    def search() -> str:
        searching.set()
        time.sleep(0.5)
        return "/tmp"

    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_get_default_tempdir", search)
    thread = threading.Thread(target=describe_code, args=(repository,))
    thread.start()
    assert searching.wait(10)
    child = os.fork()
    if not child:
        signal.alarm(10)  # Ends a child that hangs.
        tempfile.gettempdir()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    thread.join()
