"""Runs on object storage: in fsspec's memory, and behind a real server that speaks S3."""

from __future__ import annotations

import dataclasses
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell._core.errors import StepwellError
from stepwell.analysis.report import report
from stepwell.reading.lookup import find_run
from stepwell.reading.remote import Mirror, address_of
from stepwell.testing.simulate import make_plan, simulate
from tests.harness import run_stepwell

fsspec = pytest.importorskip("fsspec")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks and two attempts on a disk."""
    folder = tmp_path_factory.mktemp("remote") / "job"
    simulate(folder, make_plan(2, 300))
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def memory(here: Path) -> Iterator[Any]:
    """The run in memory://bucket/runs/job."""
    files = fsspec.filesystem("memory")
    files.put(str(here), "/bucket/runs/job", recursive=True)
    yield files
    files.rm("/bucket", recursive=True)


def copied(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.rglob("*") if path.is_file())


def told(run: stepwell.reading.RecordedRun, **how: Any) -> dict[str, Any]:
    return {**dataclasses.asdict(report(run, **how)), "path": None, "cost": None}


def test_same_tables_and_report(here: Path, memory: Any) -> None:
    local, there = stepwell.open_run(here), stepwell.open_run("memory://bucket/runs/job")
    for table in ("spans", "metrics", "events", "processes", "open_spans"):
        assert there.table(table).collect().equals(local.table(table).collect())
    assert told(there) == told(local)
    assert (there.id, there.config, there.status) == (local.id, local.config, local.status)


def test_only_what_is_needed_is_copied(memory: Any, cache: Path) -> None:
    """The state of a run takes its documents; one rank takes its folders; the path takes all."""
    run = stepwell.open_run("memory://bucket/runs/job")
    assert run.status == "finished"
    assert set(copied(cache)) == {"run.json", "process.json"}
    run.table("spans", rank=1).collect()
    folders = {path.parent.name[:10] for path in cache.rglob("spans-*.zst")}
    assert folders == {"rank-00001"}
    assert "truth.json" not in copied(cache)
    assert (run.path / "truth.json").is_file()


def test_what_changed_is_copied_again_and_what_is_gone_is_removed(memory: Any) -> None:
    mirror = Mirror("memory://bucket/runs/job")
    mirror.fetch()
    truth = mirror.folder / "truth.json"
    before = truth.read_bytes()
    # As long as before: the size alone would not tell.
    memory.pipe_file("/bucket/runs/job/truth.json", before.replace(b"1", b"2"))
    name = next(n for n in mirror.listing() if n.endswith("names.jsonl") or "names" in n)
    memory.rm_file(f"/bucket/runs/job/{name}")
    mirror.fetch()
    assert truth.read_bytes() == before.replace(b"1", b"2") != before
    assert not (mirror.folder / name).exists()


def test_nothing_is_copied_twice(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Mirror("memory://bucket/runs/job").fetch()
    monkeypatch.setattr(type(memory), "get_file", lambda *a, **k: pytest.fail("copied again"))
    Mirror("memory://bucket/runs/job").fetch()


def test_runs_below_an_address(memory: Any) -> None:
    (run,) = stepwell.list_runs("memory://bucket/runs")
    assert run.id == "job"
    assert find_run("job", Path("memory://bucket/runs")).place == "memory://bucket/runs/job"
    assert find_run("memory://bucket/runs/job").id == "job"


def test_names_that_lead_out_of_the_folder(memory: Any, cache: Path) -> None:
    memory.store["/bucket/runs/job/../../../out.txt"] = memory.store["/bucket/runs/job/run.json"]
    mirror = Mirror("memory://bucket/runs/job")
    mirror.fetch()
    memory.store.pop("/bucket/runs/job/../../../out.txt")
    assert "out.txt" not in copied(cache.parent)


def test_file_address(here: Path) -> None:
    assert stepwell.open_run(here.as_uri()).folder == here


def test_no_run_there(memory: Any) -> None:
    with pytest.raises(StepwellError, match=r"there is no run at memory://bucket/runs: .* job"):
        stepwell.open_run("memory://bucket/runs")
    with pytest.raises(StepwellError, match="there is no run at memory://bucket/other"):
        stepwell.open_run("memory://bucket/other")


def test_packages_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(StepwellError, match="pip install s3fs"):
        stepwell.open_run("s3://bucket/run")
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(StepwellError, match=r"pip install 'stepwell\[fsspec\]'"):
        stepwell.open_run("memory://bucket/run")
    with pytest.raises(StepwellError, match=r"wrong://x cannot be read|needs fsspec"):
        stepwell.open_run("wrong://x")


@pytest.mark.parametrize(
    ("place", "address"),
    [
        ("s3://bucket/run", "s3://bucket/run"),
        (Path("s3://bucket/run"), "s3://bucket/run"),
        ("runs/job", None),
        ("/runs/job", None),
        ("C:/runs", None),
        ("file:///runs/job", None),
        (None, None),
    ],
)
def test_addresses(place: str | Path | None, address: str | None) -> None:
    assert address_of(place) == address


@pytest.fixture(scope="module")
def s3(here: Path) -> Iterator[dict[str, str]]:
    """A separate S3 server with the run, and the environment to reach it."""
    pytest.importorskip("moto")
    s3fs = pytest.importorskip("s3fs")
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}"
    document = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": address,
    }
    try:
        _wait_for(port)
        files = s3fs.S3FileSystem(key="test", secret="test", endpoint_url=address)
        files.mkdir("bucket")
        files.put(str(here), "bucket/job", recursive=True)
        yield document
    finally:
        server.kill()
        server.wait()


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as trial:
            if trial.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    pytest.fail("the server did not start")


@pytest.mark.full
@pytest.mark.parametrize("command", ["report", "show", "stacks"])
def test_commands_on_s3(command: str, here: Path, s3: dict[str, str], cache: Path) -> None:
    """A person types an address in the place of a path."""
    variables = {**s3, "STEPWELL_CACHE": str(cache)}
    there = run_stepwell(command, "s3://bucket/job", cwd=here, check=True, **variables)
    local = run_stepwell(command, str(here), cwd=here, check=True)
    shown, expected = there.stdout.splitlines(), local.stdout.splitlines()
    # What it takes on a disk and what recording cost differ.
    same = [line for line in expected if line in shown]
    assert len(same) >= len(expected) - 2


@pytest.mark.full
def test_bucket_that_is_not_there(here: Path, s3: dict[str, str], cache: Path) -> None:
    variables = {**s3, "STEPWELL_CACHE": str(cache)}
    done = run_stepwell("report", "s3://nobody/job", cwd=here, **variables)
    assert done.returncode == 2
    assert "s3://nobody/job" in done.stderr
    assert "Traceback" not in done.stderr
