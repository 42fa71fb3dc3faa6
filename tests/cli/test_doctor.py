"""``stepwell doctor``: each fault that is planted is named with what to do, and nothing else is."""

from __future__ import annotations

import json
import resource
import signal
import socket
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from stepwell import Run, open_run
from stepwell.cli.doctor import examine, show_checks
from stepwell.cli.doctor.check import Check
from stepwell.cli.doctor.environment import (
    check_address,
    check_backends,
    check_clock,
    check_installation,
    check_limit,
    check_machine,
)
from stepwell.cli.doctor.storage import check_folder, check_run
from tests.durability.helpers import Child, only_run
from tests.harness import CLI, environment, run_script
from tests.harness.programs import free_port
from tests.journal.logging_rows import log_for, write_line


def named(checks: Any, name: str) -> Check:
    (found,) = [check for check in checks if check.name == name]
    return found


def problems(checks: Any) -> list[str]:
    return [check.name for check in checks if check.state == "problem"]


def test_a_healthy_installation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No problem is found here, and nothing is left behind."""
    found = list(examine(tmp_path / "runs", None, {"WANDB_MODE": "offline", "STEPWELL_QUIET": "1"}))
    assert problems(found) == []
    assert list(tmp_path.iterdir()) == []
    assert named(found, "mapped files").text == "work"
    assert f"torch {metadata.version('torch')}" in named(found, "packages").text
    assert show_checks(found, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["problems"] == 0
    assert {"python", "packages", "space", "clock"} <= {check["name"] for check in told["checks"]}


@pytest.mark.parametrize("args", [(), ("--json",)])
def test_the_command(tmp_path: Path, args: tuple[str, ...]) -> None:
    """The exit code is 1 if there is a problem."""
    env = environment(WANDB_MODE="offline")
    good = run_script(CLI, "doctor", *args, cwd=tmp_path, env=env)
    assert good.returncode == 0, good.stdout
    env["STEPWELL_DRI"] = "runs"
    bad = run_script(CLI, "doctor", *args, cwd=tmp_path, env=env)
    assert bad.returncode == 1
    assert "did you mean STEPWELL_DIR?" in " ".join(bad.stdout.split())


def test_a_package_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the version to install instead."""
    real = metadata.version
    monkeypatch.setattr(
        metadata, "version", lambda name: "99.0" if name == "mlflow" else real(name)
    )
    check = named(check_installation({}), "mlflow")
    assert (check.state, check.text) == ("problem", "99.0")
    assert check.advice.startswith("pip install 'mlflow")
    assert "<3.18" in check.advice


def test_limits() -> None:
    """A limit below what is needed is a problem; none is fine."""
    assert check_limit("open files", -1, 256, "raise it").state == "ok"
    assert check_limit("open files", 256, 256, "raise it").state == "ok"
    assert check_limit("open files", 255, 256, "raise it") == Check(
        "open files", "problem", "limit 255", "raise it"
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        assert named(check_machine(), "open files").state == "problem"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_clock() -> None:
    """One that was never set says 1970."""
    assert check_clock(86400.0).state == "problem"
    assert check_clock(1_800_000_000.0).state == "ok"


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """Nothing else is said about it."""
    (tmp_path / "file").write_text("in the way")
    (check,) = check_folder(tmp_path / "file" / "runs", {})
    assert (check.name, check.state) == ("runs folder", "problem")
    assert "STEPWELL_DIR" in check.advice


def test_a_folder_that_everybody_may_write(tmp_path: Path) -> None:
    """Unless only owners may remove what is in it, as in /tmp."""
    tmp_path.chmod(0o777)
    assert problems(check_folder(tmp_path, {})) == ["runs folder"]
    tmp_path.chmod(0o1777)
    assert problems(check_folder(tmp_path, {})) == []


def test_little_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Less than a gigabyte."""
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage)
    assert problems(check_folder(tmp_path, {})) == ["space"]


class Usage:
    """A disk that is almost full."""

    total, used, free = 1 << 40, (1 << 40) - 1000, 1000


def test_addresses() -> None:
    """Whether a server answers there; passwords are not shown."""
    port = free_port()
    bad = check_address("mlflow", f"http://user:secret@127.0.0.1:{port}?token=secret")
    assert bad.state == "problem"
    assert f"http://127.0.0.1:{port} does not answer" in bad.text
    assert "secret" not in bad.text
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert check_address("mlflow", address) == Check("mlflow", "ok", f"{address} answers")
        found = list(
            check_backends({"OTEL_EXPORTER_OTLP_ENDPOINT": address, "WANDB_MODE": "offline"})
        )
        assert named(found, "otlp").state == "ok"
    assert check_address("mlflow", "sqlite:///mlflow.db").state == "ok"
    assert check_address("mlflow", "http://host:none").state == "problem"


def test_exporters_that_do_not_exist() -> None:
    """The mistake is said as ``init`` would say it."""
    found = list(check_backends({"STEPWELL_EXPORTERS": "fiel", "WANDB_MODE": "offline"}))
    assert "did you mean 'file'?" in named(found, "STEPWELL_EXPORTERS").text
    found = list(check_backends({"STEPWELL_EXPORTERS": "logging", "WANDB_MODE": "offline"}))
    assert named(found, "exporters").state == "ok"


def test_a_run_that_is_complete(recorded: Run) -> None:
    """Nothing is to be done."""
    recorded.finish()
    assert [check.state for check in check_run(open_run(recorded.path))] == ["ok", "ok"]


def test_a_run_that_was_killed(tmp_path: Path) -> None:
    """The command that helps is named, and works."""
    with Child(tmp_path) as child:
        child.do("run = init('x', dir='runs')\nwith span('a'): log({'loss': 1.0})")
        child.process.send_signal(signal.SIGKILL)
        child.process.wait()
    run = only_run(tmp_path / "runs")
    check = named(check_run(run), "segments")
    assert (check.state, check.advice) == ("note", f"stepwell recover {run.path}")
    run_script(CLI, "recover", run.path, cwd=tmp_path, check=True)
    assert named(check_run(run), "segments").state == "ok"


def test_a_run_that_was_not_delivered(recorded: Run) -> None:
    """With the command that does."""
    made = {"class": "x.Y", "options": {}}
    write_line("logger", "tensorboard", number=1, to="tensorboard", **made)
    log_for("1", "loss", 1.0, 0)
    recorded.finish()
    check = named(check_run(open_run(recorded.path)), "delivery")
    assert check.state == "problem"
    assert check.advice == f"stepwell forward {recorded.path} --to tensorboard"
