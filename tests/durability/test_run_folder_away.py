"""The run folder goes away for a while, or does not answer, while the job records."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

import stepwell


def test_recording_goes_on_in_the_spool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An outage of the shared folder costs nothing that the spool has space for, and one warning."""
    monkeypatch.setenv("STEPWELL_SPOOL", str(tmp_path / "spool"))
    run = stepwell.init("x", dir=tmp_path / "runs", run_id="x")
    run.flush()
    (tmp_path / "runs").rename(tmp_path / "away")
    (tmp_path / "runs").touch()
    span = run.span("during the outage")
    for i in range(60_000):
        with span:
            if i % 20_000 == 0:
                run.flush()
    (tmp_path / "runs").unlink()
    (tmp_path / "away").rename(tmp_path / "runs")
    run.finish()
    reader = stepwell.open_run(run.path)
    assert reader.spans().collect().height == 60_000
    assert reader.processes().collect()["dropped"].to_list() == [0]
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1


def test_a_finish_that_times_out_leaves_the_next_run_alone(tmp_path: Path) -> None:
    """When a folder does not answer, finish gives up in time, and the next run gets its own records."""
    first = stepwell.init("first", dir=tmp_path)
    with first.span("in the first"):
        pass
    asked, answer = threading.Event(), threading.Event()

    def ask() -> None:
        asked.set()
        answer.wait(30)

    assert first._recorder is not None
    first._recorder.pump.run_soon(ask)
    assert asked.wait(30)
    first.finish(timeout=0.3)
    second = stepwell.init("second", dir=tmp_path)
    with second.span("in the second"):
        pass
    second.finish()
    answer.set()
    for run, name in ((first, "in the first"), (second, "in the second")):
        assert stepwell.open_run(run.path).spans().collect()["name"].to_list() == [name]


@pytest.mark.parametrize("content", ['{"attempts": [{}]}', "[]", '{"attempts": 3}', "{"])
def test_a_damaged_run_json_does_not_keep_init_from_working(tmp_path: Path, content: str) -> None:
    """Whatever was written into run.json, the next attempt is recorded and the file repaired."""
    stepwell.init("x", dir=tmp_path, run_id="x").finish()
    (tmp_path / "x" / "run.json").write_text(content)
    run = stepwell.init("x", dir=tmp_path, run_id="x")
    run.log({"loss": 1.0})
    run.finish()
    assert run.attempt == 1
    reader = stepwell.open_run(run.path)
    assert reader.name == "x"
    assert reader.metrics().collect()["value"].to_list() == [1.0]


def test_a_deleted_working_folder_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job whose current folder was deleted records all the same."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    run = stepwell.init("x", dir=tmp_path / "runs")
    run.log({"loss": 1.0})
    run.finish()
    assert stepwell.open_run(run.path).metrics().collect().height == 1
    monkeypatch.undo()
