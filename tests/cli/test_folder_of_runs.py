"""A folder of runs as an argument: the same as ``--dir``, with completion and clear mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.main import get_command

import stepwell
from stepwell.cli.app import app
from stepwell.cli.arguments import (
    choose_run,
    choose_runs,
    complete_folder,
    complete_run,
    folder_of_runs,
    run_argument,
)
from stepwell.cli.watch import run_to_watch
from tests.harness import run_stepwell


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders ``jobs`` (runs old and new), ``runs`` (run elsewhere), ``empty``, and a file ``notes``."""
    place = tmp_path_factory.mktemp("folders")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEPWELL_RUNTIME", "off")
        for folder, name in (("jobs", "old"), ("jobs", "new"), ("runs", "elsewhere")):
            with stepwell.init(name, dir=place / folder, run_id=name, quiet=True) as run:
                run.log({"loss": 1.0}, step=0)
    (place / "empty").mkdir()
    (place / "notes").write_text("x")
    return place


@pytest.mark.parametrize(
    "words",
    [
        ("ls", "--json"),
        ("show", "--json"),
        ("report", "--json"),
        ("stacks", "--json"),
        ("watch", "--once", "--json"),
        ("query", "SELECT run FROM metrics", "--json"),
        ("query", "SELECT run FROM metrics", "--all", "--json"),
        ("gc", "--keep", "1", "--json"),
        ("recover", "--json"),
    ],
)
def test_it_is_the_same_as_dir(words: tuple[str, ...], place: Path) -> None:
    """The outputs are equal, apart from the times of looking."""
    outputs = [run_stepwell(*words, *folder, cwd=place) for folder in (["jobs"], ["--dir", "jobs"])]
    assert [done.returncode for done in outputs] == [0, 0], outputs[0].stderr
    first, second = (json.loads(done.stdout) for done in outputs)
    for name in ("time_ns", "cost"):
        if isinstance(first, dict):
            first.pop(name, None), second.pop(name, None)
    assert first == second
    assert "elsewhere" not in outputs[0].stdout


def test_the_newest_run_of_a_folder(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run folder, an id and a name mean that run; a folder of runs means its newest run."""
    monkeypatch.chdir(place)
    assert folder_of_runs("jobs") == Path("jobs")
    assert [folder_of_runs(text) for text in ("jobs/old", "old", "empty", "notes", None)] == [
        None
    ] * 5
    assert [run.id for run in choose_runs(["jobs"], None, None, False)] == ["new"]
    assert [run.id for run in choose_runs(["jobs"], None, 2, False)] == ["new", "old"]
    assert [run.id for run in choose_runs(["jobs/old", "elsewhere"], None, None, False)] == [
        "old",
        "elsewhere",
    ]
    assert run_to_watch("jobs", None).id == "new"


def test_commands_in_messages_find_the_run(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The id is enough in the default folder; elsewhere the path is needed."""
    monkeypatch.chdir(place)
    for text, dir, argument in (
        (None, None, "elsewhere"),
        ("runs/elsewhere", None, "elsewhere"),
        ("jobs/old", None, "jobs/old"),
        ("old", Path("jobs"), "jobs/old"),
    ):
        run = choose_run(text, dir)
        assert run_argument(run) == argument
        assert choose_run(run_argument(run), None).id == run.id
    monkeypatch.setenv("STEPWELL_DIR", "jobs")
    assert run_argument(choose_run("jobs/old", None)) == "old"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("ls", "job"), "No folder job. Did you mean jobs?"),
        (("ls", "--dir", "job"), "No folder job. Did you mean jobs?"),
        (("gc", "job", "--keep", "1"), "No folder job. Did you mean jobs?"),
        (
            ("ls", "elsewhere"),
            "No folder elsewhere. `stepwell show elsewhere` shows the run of this name",
        ),
        (("ls", "zzzzz"), "No folder zzzzz. `stepwell.init(dir=…)` creates it when a run starts"),
        (("ls", "notes"), "notes is a file: give a folder of runs"),
        (
            ("ls", "jobs/old"),
            "jobs/old is a run, not a folder of runs. `stepwell show jobs/old` shows it; the folder of "
            "runs is jobs",
        ),
        (("ls", "jobs", "--dir", "runs"), "DIR and --dir name the same thing: use one of them"),
        (("demo", "jobs", "--dir", "runs"), "DIR and --dir name the same thing: use one of them"),
        (("show", "empty"), "'empty' is not a run folder"),
    ],
)
def test_a_wrong_folder(words: tuple[str, ...], message: str, place: Path) -> None:
    """One line on standard error that says what is wrong and what to do, with exit code 2."""
    done = run_stepwell(*words, cwd=place)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_default_folder_may_be_missing(place: Path) -> None:
    """Before the first run this is not a mistake."""
    done = run_stepwell("ls", cwd=place / "empty")
    assert done.returncode == 0
    assert done.stdout.startswith("No folder runs. Start a run with stepwell.init()")


def test_completion(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders without those of runs; ids of runs in the folder given with ``--dir``."""
    monkeypatch.chdir(place)
    assert complete_folder("") == ["empty", "jobs", "runs"]
    assert complete_folder("jo") == ["jobs"]
    assert complete_folder(f"{place}/ru") == [f"{place}/runs"]
    assert complete_folder("jobs/") == complete_folder("none/x") == []
    context = typer.Context(get_command(app))
    context.params["dir"] = Path("jobs")
    assert complete_run(context, "") == ["new", "old"]
    assert complete_run(context, "o") == ["old"]
