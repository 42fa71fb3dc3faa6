"""``stepwell ls``: runs and their figures."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell.testing import FakeClock
from tests.harness import run_stepwell


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs: one of 12.5 s with a loss, a failed one a day later, one that logged nothing."""
    place = tmp_path_factory.mktemp("ls")
    patch = pytest.MonkeyPatch()
    patch.setenv("STEPWELL_RUNTIME", "off")
    with FakeClock() as clock:
        with stepwell.init("bert", dir=place / "runs", tags=["base", "x"], quiet=True) as run:
            for step in range(5):
                run.set_step(step)
                run.log({"train/loss": 2.0 / (step + 1), "val/loss": 9.0})
            clock.advance(12.5)
        clock.advance(86400)
        run = stepwell.init("gpt", dir=place / "runs", tags=["base"], quiet=True)
        run.log({"loss/D": 1.0, "loss/G": 2.0}, step=3)
        run.finish("failed")
        clock.advance(1)
        stepwell.init("idle", dir=place / "runs", quiet=True).finish()
    patch.undo()
    return place


def listed(folder: Path, *options: str, cache: str = "cache") -> list[dict[str, Any]]:
    place = str(folder / cache)
    done = run_stepwell("ls", *options, "--json", cwd=folder, STEPWELL_CACHE=place)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_the_loss_of_several_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean of the ranks at the last step in ``ls``, ``report`` and ``show``, which say so."""
    monkeypatch.setenv("WORLD_SIZE", "3")
    for rank, losses in enumerate([(0.5, 0.1), (0.5, 0.3), (0.7,)]):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        with stepwell.init("three", dir=tmp_path / "runs", run_id="three", quiet=True) as run:
            for step, loss in enumerate(losses):
                run.log({"loss": loss}, step=step)
    for document in run.path.glob("*/process.json"):
        # Ranks of one launch, although they were recorded one after the other.
        document.write_text(re.sub('"attempt": [12]', '"attempt": 0', document.read_text()))
    (line,) = listed(tmp_path)
    assert line["loss"] == pytest.approx(0.2)
    reported = run_stepwell("report", cwd=tmp_path).stdout
    assert "values, mean of 3 ranks" in reported
    assert ["loss", "0.2", "1"] in [row.split()[:3] for row in reported.splitlines()]
    shown = run_stepwell("show", cwd=tmp_path).stdout
    assert "mean of 3 ranks" in shown


def test_the_figures_of_a_run(folder: Path) -> None:
    """Duration, last step, last loss of the training and tags; the second time from the cache."""
    for _ in range(2):
        idle, gpt, bert = listed(folder)
        assert (bert["status"], bert["duration_s"], bert["step"]) == ("finished", 12.5, 4)
        assert (bert["loss_name"], bert["loss"], bert["tags"]) == ("train/loss", 0.4, ["base", "x"])
        assert (gpt["status"], gpt["loss_name"], gpt["loss"]) == ("failed", "loss/D", 1.0)
        assert (idle["step"], idle["loss"], idle["tags"], idle["findings"]) == (
            None,
            None,
            [],
            None,
        )
    assert len({path.parent for path in (folder / "cache" / "detail").glob("*/*.shelf")}) == 3


def test_a_run_folder_is_not_written_to(folder: Path) -> None:
    """The cache is in the reader's own folder."""
    before = sorted(map(str, (folder / "runs").rglob("*")))
    listed(folder, "--findings", cache="another")
    assert sorted(map(str, (folder / "runs").rglob("*"))) == before


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["-n", "2"], ["idle", "gpt"]),
        (["--status", "failed"], ["gpt"]),
        (["--status", "failed,running"], ["gpt"]),
        (["--tag", "base"], ["gpt", "bert"]),
        (["--tag", "base", "--tag", "x"], ["bert"]),
        (["--name", "b*"], ["bert"]),
        (["--since", "1d"], []),
    ],
)
def test_choosing(folder: Path, options: list[str], names: list[str]) -> None:
    """All conditions that are given hold."""
    assert [line["name"] for line in listed(folder, *options)] == names


def test_since_a_date(folder: Path) -> None:
    """A date, or a date and a time of this place."""
    (bert,) = listed(folder, "--name", "bert")
    began = datetime.fromtimestamp(bert["created_ns"] / 1e9)
    later = (began + timedelta(hours=1)).isoformat(timespec="seconds")
    assert [line["name"] for line in listed(folder, "--since", later)] == ["idle", "gpt"]
    assert len(listed(folder, "--since", f"{began:%Y-%m-%d}")) == 3


def test_findings_are_counted(folder: Path) -> None:
    """As many as the report has."""
    for line in listed(folder, "--findings"):
        done = run_stepwell("report", line["id"], "--json", cwd=folder)
        assert line["findings"] == len(json.loads(done.stdout)["findings"])


def test_a_run_that_changed_is_read_again(tmp_path: Path) -> None:
    """Another attempt makes what was cached void."""
    with stepwell.init(dir=tmp_path / "runs", run_id="job") as run:
        run.log({"loss": 1.0}, step=0)
    assert listed(tmp_path)[0]["loss"] == 1.0
    with stepwell.init(dir=tmp_path / "runs", run_id="job") as run:
        run.log({"loss": 0.5}, step=1)
    assert listed(tmp_path)[0]["loss"] == 0.5


def test_the_duration_of_several_attempts(tmp_path: Path) -> None:
    """From the first start to the last end, as ``report`` and ``show`` have it."""
    with FakeClock() as clock:
        for _ in range(2):
            with stepwell.init(dir=tmp_path / "runs", run_id="job") as run, run.span("epoch"):
                clock.advance(10)
            clock.advance(100)
    (line,) = listed(tmp_path)
    assert line["duration_s"] == pytest.approx(120, abs=1)
    shown = run_stepwell("show", "job", "--json", cwd=tmp_path)
    assert line["duration_s"] == pytest.approx(json.loads(shown.stdout)["wall_s"], abs=1)


def test_a_cache_that_cannot_be_written(folder: Path, tmp_path: Path) -> None:
    """The list is the same."""
    (tmp_path / "file").touch()
    place = str(tmp_path / "file")
    done = run_stepwell("ls", "--json", cwd=folder, STEPWELL_CACHE=place)
    assert len(json.loads(done.stdout)) == 3


def test_one_line_for_each_run(folder: Path) -> None:
    """Piped, lines are as long as they have to be; columns without any value are left out."""
    place = str(folder / "cache")
    lines = run_stepwell("ls", cwd=folder, STEPWELL_CACHE=place).stdout.splitlines()
    assert lines[0].split() == ["started", "status", "duration", "step", "loss", "tags", "run"]
    assert lines[3].split()[2:8] == ["finished", "12.5", "s", "4", "0.4", "base,"]
    alone = run_stepwell("ls", "--name", "idle", cwd=folder).stdout.splitlines()
    assert alone[0].split() == ["started", "status", "duration", "run"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-n", "0"], "-n must be at least 1, got 0"),
        (["--since", "soon"], "--since must be an age such as 12h or 2d, or a date"),
    ],
)
def test_wrong_options(folder: Path, options: list[str], words: str) -> None:
    """One line says what to write."""
    done = run_stepwell("ls", *options, cwd=folder)
    assert (done.returncode, words in done.stderr) == (2, True)


def test_nothing_matches(folder: Path) -> None:
    """That is not an error."""
    done = run_stepwell("ls", "--tag", "none", cwd=folder)
    assert (done.returncode, done.stdout) == (0, "No matching runs in runs.\n")
