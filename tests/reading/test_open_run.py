"""Opening runs by path, and error messages."""

from __future__ import annotations

from pathlib import Path

import pytest

import stepwell
from stepwell import Run, StepwellError, list_runs, open_run


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    """The message has the path that does not exist."""
    with pytest.raises(StepwellError, match=r"there is no run folder .*nowhere"):
        open_run(tmp_path / "nowhere")


def test_a_file_is_no_run_folder(tmp_path: Path) -> None:
    """A path to a file is refused by name."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(StepwellError, match=r"there is no run folder .*file"):
        open_run(tmp_path / "file")


def test_an_empty_folder_is_no_run(tmp_path: Path) -> None:
    """A folder without any run in it says so."""
    with pytest.raises(StepwellError, match="is not a run folder: `stepwell ls DIR`"):
        open_run(tmp_path)


def test_a_folder_of_runs_names_some_of_them(tmp_path: Path) -> None:
    """Opening the parent folder gives an error with the ids of its runs."""
    stepwell.init(dir=tmp_path, run_id="first").finish()
    with pytest.raises(StepwellError, match="is not a run folder: it holds the runs first"):
        open_run(tmp_path)


def test_a_folder_with_other_things_is_no_run(tmp_path: Path) -> None:
    """Files and folders of other tools do not make a run."""
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(StepwellError, match="is not a run folder: `stepwell ls DIR`"):
        open_run(tmp_path)
    assert list_runs(tmp_path) == []


def test_a_path_may_be_a_string_or_begin_with_a_tilde(
    recorded: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strings, paths and ~ all open the same run."""
    recorded.finish()
    monkeypatch.setenv("HOME", str(recorded.path.parent))
    for path in (recorded.path, str(recorded.path), f"~/{recorded.id}"):
        assert open_run(path).id == recorded.id


def test_runs_are_listed_newest_first(tmp_path: Path) -> None:
    """All runs in a folder are listed, also live ones; other folders are skipped."""
    for name in ("one", "two", "three"):
        run = stepwell.init(name, dir=tmp_path, run_id=name)
    (tmp_path / "not a run").mkdir()
    runs = list_runs(tmp_path)
    assert [r.id for r in runs] == ["three", "two", "one"]
    assert [r.name for r in runs] == ["three", "two", "one"]
    assert [r.status for r in runs] == ["running", "finished", "finished"]
    run.finish("failed")
    assert list_runs(str(tmp_path))[0].status == "failed"


def test_a_missing_folder_of_runs_holds_none(tmp_path: Path) -> None:
    """Listing a folder without runs is not an error."""
    assert list_runs(tmp_path / "nowhere") == []


def test_a_run_is_readable_from_its_first_moment(tmp_path: Path) -> None:
    """Right after ``init`` the run opens, with its name, its config and empty tables."""
    run = stepwell.init("early", dir=tmp_path, config={"a": 1})
    read = open_run(run.path)
    assert (read.id, read.name, read.status) == (run.id, "early", "running")
    assert read.spans().collect().height == 0


def test_a_run_folder_may_be_moved(recorded: Run, tmp_path: Path) -> None:
    """Nothing in a finished run depends on its folder."""
    with recorded.span("s", a=1):
        recorded.log({"x": 1.0})
    recorded.finish()
    recorded.path.rename(tmp_path / "moved")
    read = open_run(tmp_path / "moved")
    assert read.id == recorded.id
    assert read.spans().collect()["attributes"].to_list() == ['{"a":1}']
    assert read.metrics().collect()["value"].to_list() == [1.0]
