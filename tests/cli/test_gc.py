"""``stepwell gc``: what may go, what never goes."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell._core.errors import StepwellError
from stepwell.analysis.retention import choose, remove
from stepwell.follower.log import registered_loggers
from stepwell.journal.format import EVENTS
from tests.cli.cases import kill_a_run
from tests.harness import run_script, run_stepwell

DAY = 86400


def record(root: Path, name: str, days_ago: float = 0, size: int = 0) -> Path:
    """A finished run, last seen ``days_ago`` days ago, with an artifact of ``size`` bytes."""
    with stepwell.init(name, dir=root, run_id=name) as run:
        with run.span("work"):
            run.log({"loss": 1.0})
        if size:
            run.artifact(os.urandom(size), "model.pt")
    if days_ago:
        change(
            run.path,
            lambda about: about.update(heartbeat=time.time_ns() - int(days_ago * DAY * 1e9)),
        )
        about = json.loads((run.path / "run.json").read_text())
        about["created"] -= int(days_ago * DAY * 1e9)
        (run.path / "run.json").write_text(json.dumps(about))
    return run.path


def change(run: Path, edit: Any) -> None:
    """Change the documents of a run's processes."""
    for path in run.glob("*/process.json"):
        about = json.loads(path.read_text())
        edit(about)
        path.write_text(json.dumps(about))


def ids(root: Path, **wish: Any) -> list[str]:
    return [candidate.id for candidate in choose(root, **wish).goes]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Runs of 100, 10 and 0 days ago, the one of 10 days with 8 MB: more than any has unpacked."""
    runs = tmp_path / "runs"
    record(runs, "old", 100)
    record(runs, "middle", 10, 1 << 23)
    record(runs, "new")
    return runs


def test_by_age_number_size_and_name(root: Path) -> None:
    """All that is said has to hold; the oldest comes first."""
    assert ids(root, older_than_s=30 * DAY) == ["old"]
    assert ids(root, older_than_s=5 * DAY) == ["old", "middle"]
    assert ids(root, keep=1) == ["old", "middle"]
    assert ids(root, keep=3) == []
    assert ids(root, larger_than=1 << 22) == ["middle"]
    assert ids(root, names=["*d*"]) == ["old", "middle"]
    assert ids(root, names=["*d*"], keep=1) == ["old"]
    assert ids(root, older_than_s=5 * DAY, larger_than=1 << 22) == ["middle"]
    assert ids(root, statuses=["killed"]) == []


def test_the_list_has_sizes_and_removes_nothing(root: Path) -> None:
    """Listed runs are removed with --yes only; the rest is unchanged."""
    rest = sorted(p for p in root.rglob("*") if not p.is_relative_to(root / "middle"))
    listed = json.loads(run_stepwell("gc", "--larger-than", "4M", "--json", cwd=root.parent).stdout)
    assert [run["id"] for run in listed["runs"]] == ["middle"]
    assert listed["bytes"] == listed["runs"][0]["bytes"] > 1 << 23
    assert (listed["removed"], listed["stays"]) == (False, 2)
    assert (root / "middle").is_dir()
    done = run_stepwell("gc", "--larger-than", "4M", "--yes", cwd=root.parent)
    assert done.returncode == 0
    assert re.search(r"Removed 1 run \(8\.\d+ MB\)\. 2 runs kept\.", done.stdout)
    assert sorted(root.rglob("*")) == rest
    again = run_stepwell("gc", "--larger-than", "4M", "--yes", cwd=root.parent)
    assert (again.returncode, again.stdout) == (0, "Nothing to remove in runs. 2 runs kept.\n")


def test_a_run_that_is_running_never_goes(tmp_path: Path) -> None:
    """Whatever is asked for, and also if it comes to life between the list and the removal."""
    runs = tmp_path / "runs"
    with stepwell.init("alive", dir=runs, run_id="alive") as run:
        found = choose(runs, keep=0)
        assert (found.goes, found.spared) == ([], {"alive": "it is running"})
        done = run_stepwell("gc", "--keep", "0", "--yes", cwd=tmp_path)
        assert "alive is kept: it is running" in done.stdout
        with run.span("work"):
            pass
    (candidate,) = choose(runs, keep=0).goes
    with (
        stepwell.init("alive", dir=runs, run_id="alive"),
        pytest.raises(StepwellError, match="it is running"),
    ):
        remove(candidate)
    assert stepwell.open_run(run.path).spans().collect().height == 1


def test_one_that_seems_dead_on_another_machine_gets_ten_minutes(root: Path) -> None:
    """Its heart may merely beat slowly: a network, a laptop that sleeps."""

    def elsewhere(age: float) -> Any:
        beat = time.time_ns() - int(age * 1e9)
        return lambda about: about.update(
            boot="another", host="far", status="running", heartbeat=beat
        )

    change(root / "new", elsewhere(300))
    assert "new" not in ids(root, keep=0)
    change(root / "new", elsewhere(900))
    assert ids(root, statuses=["killed"]) == ["new"]


def test_what_is_no_run_and_links_are_left_alone(root: Path, tmp_path: Path) -> None:
    """Other folders, links to a run, and targets of links inside a run."""
    (root / "notes").mkdir()
    (root / "notes" / "run.json").write_text('{"mine": 1}')
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("years")
    elsewhere = record(tmp_path / "other", "linked", 100)
    (root / "link").symlink_to(elsewhere)
    (root / "old" / "inside").symlink_to(precious)
    done = json.loads(run_stepwell("gc", "--keep", "0", "--yes", "--json", cwd=root.parent).stdout)
    assert {run["id"] for run in done["runs"]} == {"old", "middle", "new"}
    assert done["spared"] == {"notes": "it is not a run folder", "linked": "it is a link"}
    assert (precious / "thesis.tex").read_text() == "years"
    assert sorted(p.name for p in root.iterdir()) == ["link", "notes"]
    assert stepwell.open_run(elsewhere).status == "finished"


def test_the_spool_of_a_killed_run_goes_with_it(tmp_path: Path) -> None:
    """Its spool on the local disk is useless without it."""
    kill_a_run(tmp_path / "runs", STEPWELL_SPOOL=str(tmp_path / "spool"))
    assert list((tmp_path / "spool").rglob("*.live"))
    done = run_stepwell("gc", "--status", "killed,failed", "--yes", cwd=tmp_path)
    assert "Removed 1 run" in done.stdout
    assert list((tmp_path / "runs").iterdir()) == []
    assert not list((tmp_path / "spool").rglob("*.live"))


def test_only_a_part_of_a_run(root: Path) -> None:
    """Artifacts or spans go, the rest can be read as before."""
    assert ids(root, keep=0, only="artifacts") == ["middle"]
    done = run_stepwell("gc", "--keep", "0", "--only", "artifacts", "--yes", cwd=root.parent)
    assert "Removed the artifacts of 1 run (8.39 MB)." in done.stdout
    run = stepwell.open_run(root / "middle")
    assert (run.spans().collect().height, run.metrics().collect().height) == (1, 1)
    assert list((root / "middle" / "artifacts").iterdir()) == []
    run_stepwell("gc", "--name", "middle", "--only", "spans", "--yes", cwd=root.parent)
    assert (run.spans().collect().height, run.metrics().collect().height) == (0, 1)


def test_what_could_not_be_removed_gives_1(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others are removed, and the reason is printed."""
    from stepwell.cli.maintenance import GcOptions, clean_up

    real = shutil.rmtree

    def fails_once(path: Path, *more: Any, **named: Any) -> None:
        if Path(path).parent.name == "old":
            raise PermissionError(13, "Permission denied", str(path))
        real(path, *more, **named)

    monkeypatch.setattr(shutil, "rmtree", fails_once)
    assert clean_up(root, GcOptions(None, 1, [], None, [], None), yes=True, as_json=False) == 1
    told = capsys.readouterr()
    assert "Removed 1 run" in told.out
    assert "2 runs kept." in told.out
    assert "Permission denied" in told.err
    assert ids(root, names=["old"]) == ["old"]


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give at least one filter: --older-than 30d"),
        (("--yes",), "give at least one filter"),
        (("--older-than", "soon"), "--older-than must be an age such as 30d"),
        (("--larger-than", "big"), "--larger-than must be a size such as 500M"),
        (
            ("--status", "dead"),
            "status must be 'finished', 'failed', 'interrupted', 'killed' or 'empty', got 'dead'",
        ),
        (("--status", "running"), "running runs are never removed"),
        (
            ("--keep", "1", "--only", "metrics"),
            "only must be 'artifacts' or 'spans', got 'metrics'",
        ),
        (("--keep", "-1"), "keep must be a whole number of at least 0, got -1"),
    ],
)
def test_mistakes_remove_nothing(root: Path, words: tuple[str, ...], message: str) -> None:
    """Exit code 2, and what to write instead."""
    done = run_stepwell("gc", *words, cwd=root.parent)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(list(root.iterdir())) == 3


LOGGED = """
import stepwell
from stepwell.loggers import TensorBoardLogger

run = stepwell.init("logged", dir="runs", run_id="logged")
logger = TensorBoardLogger(log_freq="batch", savedir="board")
with logger.start_logging():
    logger.log(0.5, "train/loss", batch_idx=0)
run.finish()
"""


def logged(tmp_path: Path) -> Path:
    """A run with a logger that has delivered all; its process folder."""
    run_script(LOGGED, cwd=tmp_path, check=True)
    (folder,) = (tmp_path / "runs" / "logged").glob("rank-*")
    (state,) = folder.glob("delivery-*.json")
    deadline = time.monotonic() + 60
    while json.loads(state.read_text())["status_delivered"] is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return folder


def test_what_a_tracker_never_got_stays(tmp_path: Path) -> None:
    """The message has the command to deliver it; after that, or with --undelivered, the run is removed."""
    pytest.importorskip("stepwell.loggers.backends.tensorboard.backend")
    folder = logged(tmp_path)
    root = folder.parent.parent
    assert ids(root, statuses=["finished"]) == ["logged"]
    # As if the machine had gone down before it was delivered.
    (state,) = folder.glob("delivery-*.json")
    state.unlink()
    assert ids(root, statuses=["finished"]) == []
    assert ids(root, statuses=["finished"], undelivered=True) == ["logged"]
    done = run_stepwell("gc", "--status", "finished", "--yes", cwd=tmp_path)
    assert done.returncode == 0
    words = " ".join(done.stdout.split())
    assert "is kept: part of it was not delivered to tensorboard" in words
    assert "stepwell forward logged --to tensorboard" in words
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert folder.is_dir()
    assert run_stepwell("forward", "logged", "--to", "tensorboard", cwd=tmp_path).returncode == 0
    assert ids(root, statuses=["finished"]) == ["logged"]


@pytest.mark.parametrize("backend", [{}, {"options": None}, {"class": None, "options": {}}])
def test_a_damaged_logger_protects_its_run(root: Path, backend: dict[str, Any]) -> None:
    """It cannot be continued, but it may not have received all records."""
    (folder,) = (root / "old").glob("rank-*")
    attributes = {"number": 1, "to": "mlflow", "class": "x.Y", **backend}
    line = {"kind": "logger", "name": "mlflow", "time": 1, "attributes": attributes}
    with (folder / EVENTS).open("a") as file:
        file.write(json.dumps(line) + "\n")
    assert list(registered_loggers(folder)) == []
    found = choose(root, older_than_s=50 * DAY)
    assert [run.id for run in found.goes] == []
    assert found.spared["old"].startswith("part of it was not delivered to mlflow")
    assert ids(root, older_than_s=50 * DAY, undelivered=True) == ["old"]


def test_what_an_exporter_gave_up_stays(root: Path) -> None:
    """Its note is enough, also for its spans alone: they are what is owed."""
    (folder,) = (root / "old").glob("rank-*")
    (folder / "export-otlp.undelivered.json").write_text(json.dumps({"exporter": "otlp"}))
    found = choose(root, older_than_s=50 * DAY)
    assert [run.id for run in found.goes] == []
    assert found.spared["old"].startswith("part of it was not delivered to otlp")
    assert ids(root, older_than_s=50 * DAY, only="spans") == []
    assert ids(root, older_than_s=50 * DAY, undelivered=True) == ["old"]
    words = ("gc", "--older-than", "50d", "--undelivered", "--yes", "--dir", str(root))
    run_stepwell(*words, cwd=root, check=True)
    assert not (root / "old").exists()
