"""The name of a run that was given none."""

from __future__ import annotations

import builtins
from pathlib import Path

import pytest

import stepwell
from stepwell.telemetry.run_names import script_name
from tests.harness import run_script


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["train.py", "--lr", "1"], "train"),
        (["/home/me/my project/train.v2.py"], "train.v2"),
        (["/home/me/package/__main__.py"], "package"),
        (["/usr/bin/pretrain"], "pretrain"),
        (["-c"], "run"),
        ([""], "run"),
        ([], "run"),
    ],
)
def test_scripts(argv: list[str], expected: str) -> None:
    """The file without its folder and suffix; of `python -m package` the package."""
    assert script_name(argv) == expected


@pytest.mark.parametrize(
    ("shell", "environ", "expected"),
    [
        ("ZMQInteractiveShell", {}, "notebook"),
        ("ZMQInteractiveShell", {"JPY_SESSION_NAME": "/home/me/digits.ipynb"}, "digits"),
        ("TerminalInteractiveShell", {}, "ipython"),
    ],
)
def test_notebooks(
    shell: str, environ: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notebook's name where Jupyter passes it on."""
    instance = type(shell, (), {})()
    monkeypatch.setattr(builtins, "get_ipython", lambda: instance, raising=False)
    assert script_name(["/x/ipykernel_launcher.py"], environ) == expected


def test_a_run_is_named_after_its_script(tmp_path: Path) -> None:
    """Name and id have the script's name; a name or an id of the user's own counts more."""
    path = tmp_path / "pretrain.py"
    path.write_text(
        "import stepwell\n"
        "stepwell.init().finish()\n"
        "stepwell.init('mine').finish()\n"
        "stepwell.init(run_id='job-7').finish()\n"
    )
    run_script(path, cwd=tmp_path, check=True)
    third, second, first = stepwell.list_runs(tmp_path / "runs")
    assert (first.name, first.id[:11]) == ("pretrain", "pretrain-20")
    assert (second.name, third.name, third.id) == ("mine", "job-7", "job-7")
