"""``run.config``, ``run.tags``, ``run.summary`` and ``run.url``."""

from __future__ import annotations

import pickle
from argparse import Namespace
from pathlib import Path

import pytest
import torch

import stepwell
from stepwell import Run, StepwellError
from stepwell.journal.metrics import METRIC_ROWS


def test_the_configuration_can_be_read_and_changed(tmp_path: Path) -> None:
    """It is a mapping; what is recorded follows its changes, with secrets masked."""
    with stepwell.init("a", dir=tmp_path, config=Namespace(lr=0.1, api_key="secret")) as run:
        assert dict(run.config) == {"lr": 0.1, "api_key": "secret"}
        run.config["lr"] = 0.2
        run.config.update({"batch": 8}, epochs=3)
        del run.config["epochs"]
        run.add_config({"model": {"layers": 2}})
        assert run.config["model"] == {"layers": 2}
    recorded = stepwell.open_run(run.path)
    expected = {"lr": 0.2, "api_key": "***", "batch": 8, "model": {"layers": 2}}
    assert recorded.config == expected
    assert recorded.document["attempts"][0]["config"] == expected


def test_a_change_inside_a_loop_is_written_once(recorded: Run) -> None:
    """Many changes at once are one write of run.json."""
    assert recorded._document is not None
    writes = []
    write = recorded._document.write
    recorded._document.write = lambda: writes.append(write())  # type: ignore[method-assign]
    recorder = recorded._recorder
    assert recorder is not None
    recorder.pump.flush(10)
    writes.clear()
    recorder.pump.run_tasks = lambda: None  # type: ignore[method-assign]
    for number in range(100):
        recorded.config["number"] = number
    del recorder.pump.run_tasks  # type: ignore[method-assign]
    recorder.pump.flush(10)
    assert len(writes) == 1
    assert stepwell.open_run(recorded.path).config["number"] == 99


def test_tags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another tuple changes them; anything but words changes nothing."""
    with stepwell.init("a", dir=tmp_path, tags=["baseline"]) as run:
        run.tags += ("best",)
        assert run.tags == ("baseline", "best")
        run.tags = "word"  # type: ignore[assignment]
        run.tags = [1]  # type: ignore[assignment,list-item]
        assert run.tags == ("baseline", "best")
    assert stepwell.open_run(run.path).tags == ["baseline", "best"]


def test_the_summary_has_the_last_values_unless_others_are_set(tmp_path: Path) -> None:
    """During the run, after it and for readers."""
    with stepwell.init("a", dir=tmp_path) as run:
        for step in range(3):
            run.log({"loss": 3.0 - step, "accuracy": step / 2}, step=step)
        run.summary["best_loss"] = torch.tensor(0.5)
        run.summary.update(accuracy=0.9, note="good")
        assert run.summary["loss"] == 1.0
        assert "missing" not in run.summary
    expected = {"loss": 1.0, "accuracy": 0.9, "best_loss": 0.5, "note": "good"}
    assert dict(run.summary) == expected
    assert stepwell.open_run(run.path).summary == expected


def test_a_value_that_left_memory_is_in_the_summary(tmp_path: Path) -> None:
    """It is read from the run folder, also while the run records."""
    with stepwell.init("a", dir=tmp_path) as run:
        run.log({"early": 1.0})
        for _ in range(2 * METRIC_ROWS):
            run.log({"loss": 2.0})
        assert run.summary["early"] == 1.0


def test_a_restart_keeps_the_summary(tmp_path: Path) -> None:
    """A later attempt adds to what an earlier one set."""
    with stepwell.init(dir=tmp_path, run_id="job") as run:
        run.summary["a"] = 1
    with stepwell.init(dir=tmp_path, run_id="job") as run:
        run.summary["b"] = 2
    assert stepwell.open_run(run.path).summary == {"a": 1, "b": 2}


def test_a_run_that_records_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its configuration is there all the same: programs read it."""
    monkeypatch.setenv("STEPWELL_MODE", "off")
    run = stepwell.init("a", dir=tmp_path, config={"lr": 0.1}, tags=["x"])
    run.config["lr"] = 0.2
    run.summary["a"] = 1
    assert (run.config["lr"], run.tags, dict(run.summary)) == (0.2, ("x",), {"a": 1})


def test_in_another_process_it_can_be_read(recorded: Run) -> None:
    """A run that is pickled takes its configuration and tags along."""
    recorded.config["lr"] = 0.1
    recorded.tags = ("x",)
    copy = pickle.loads(pickle.dumps(recorded))
    assert (dict(copy.config), copy.tags, copy.url) == ({"lr": 0.1}, ("x",), str(recorded.path))


def test_a_wrong_configuration_is_refused(tmp_path: Path) -> None:
    """As an argument of ``init``."""
    with pytest.raises(StepwellError, match="got an int"):
        stepwell.init("a", dir=tmp_path, config=3)
