"""The console logger, from the call to what is seen and kept."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import stepwell
from stepwell.loggers import BackendRun, ConsoleLogger


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPWELL_STRICT", "1")


def test_what_is_logged_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In the order of the calls, through Python's logging; those that do not count are not."""
    caplog.set_level(logging.INFO, "stepwell.console")
    with ConsoleLogger(log_freq=2).start_logging() as logger:
        run = stepwell.active_run()
        assert run is not None
        logger.save_hyperparameters({"lr": 0.5})
        for batch_idx in range(5):
            logger.log(batch_idx / 4, "loss", batch_idx=batch_idx, step=batch_idx)
        logger.log("all is well", "note", kind="text")
        assert logger.flush(timeout=100)
        seen = [r.getMessage() for r in caplog.records if r.name == "stepwell.console"]
        found = logger.backend_run(timeout=20)
    assert seen == [
        "lr = 0.5 (param)",
        "loss = 0 (step 0)",
        "loss = 0.5 (step 2)",
        "loss = 1 (step 4)",
        "note = all is well (text)",
    ]
    assert found == BackendRun(folder=str(tmp_path / "mllogs" / "simple-logger" / run.id))


def test_files_and_folders_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Below savedir, by their names; the published one could not keep a folder at all."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.txt").write_text("a")
    with ConsoleLogger(savedir=tmp_path / "logs").start_logging() as logger:
        logger.log(tmp_path / "out", "results", kind="artifact")
        logger.log(b"data", "raw.bin", kind="artifact")
        found = logger.backend_run(timeout=20)
        assert isinstance(found, BackendRun)
        assert logger.flush(timeout=100)
    folder = Path(str(found.folder))
    assert folder.parent == tmp_path / "logs" / "simple-logger"
    assert (folder / "results" / "a.txt").read_text() == "a"
    assert (folder / "raw.bin").read_bytes() == b"data"
    assert f"results: {folder / 'results' / 'a.txt'} (artifact)" in capsys.readouterr().err


def test_it_can_be_used_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each time in its own run."""
    caplog.set_level(logging.INFO, "stepwell.console")
    logger = ConsoleLogger()
    for value in (1.0, 2.0):
        with logger.start_logging():
            logger.log(value, "loss")
    seen = [r.getMessage() for r in caplog.records if r.name == "stepwell.console"]
    assert seen == ["loss = 1 (step 0)", "loss = 2 (step 0)"]
    assert len(list((tmp_path / "runs").glob("*/run.json"))) == 2
