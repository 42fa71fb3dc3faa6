"""``stepwell watch``: a job that trains, seen from outside while it does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import stepwell
from stepwell.analysis.live import LiveRun
from stepwell.analysis.live.rank import MOST_SPANS, LiveLane, RecentSpans
from stepwell.follower.records import SpanRecord
from stepwell.journal.format import SPAN_SLOTS
from stepwell.testing import FakeClock
from tests.cli.terminal import in_terminal
from tests.harness import CLI, run_stepwell, start_script, wait_until

TRAIN = """
import os, sys, time, stepwell
end = sys.argv[1]
with stepwell.init("job", run_id="job", config={"max_steps": 400}) as run:
    with run.span("training_loop"):
        for i in range(400):
            if os.path.exists("stop"):
                break
            run.set_step(i, i // 10)
            with run.span("train step"):
                with run.span("wait for data"):
                    time.sleep(0.03)
                with run.span("forward"):
                    time.sleep(0.01)
                run.log({"train/loss": 2.0 / (i + 1)})
    if end == "fail":
        raise ValueError("no more")
"""


@pytest.fixture
def job(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """The folder that a job trains in; it ends when there is a file ``stop`` in it."""
    end = getattr(request, "param", "finish")
    process = start_script(TRAIN, end, cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        wait_until(
            lambda: any(run.status == "running" for run in stepwell.list_runs(tmp_path / "runs"))
        )
        yield tmp_path
    finally:
        (tmp_path / "stop").touch()
        process.wait(60)


def test_each_look_sees_what_is_new(job: Path) -> None:
    """Steps advance, the target is that of the configuration, and time is in the right phases."""
    run = stepwell.open_run(job / "runs" / "job")
    wait_until(lambda: run.metrics().collect().height > 5)
    live = LiveRun(run, findings=False)
    wait_until(lambda: (live.look().step or 0) >= 20)
    first = live.look()
    wait_until(lambda: (live.look().step or 0) >= (first.step or 0) + 10)
    later = live.look()
    assert (later.status, later.target, later.is_over) == ("running", 400, False)
    assert later.steps_per_second is not None
    assert later.seconds_left == pytest.approx(
        (400 - (later.step or 0) - 1) / later.steps_per_second
    )
    assert sum(later.time.values()) == pytest.approx(1)
    assert later.time["data"] > later.time["forward"] > 0
    (metric,) = later.metrics
    assert metric.name == "train/loss"
    assert metric.last == pytest.approx(2.0 / ((metric.step or 0) + 1))
    # Each value once, those from before the first look too.
    assert len(metric.curve) == (metric.step or 0) + 1
    assert later.ranks[0].inside[:1] == ("training_loop",)
    (job / "stop").touch()
    wait_until(lambda: live.look().is_over)
    over = live.look()
    assert (over.status, over.seconds_left, over.ranks[0].inside) == ("finished", None, ())


@pytest.mark.parametrize(("job", "code"), [("finish", 0), ("fail", 1)], indirect=["job"])
def test_in_a_terminal_it_ends_with_the_run(job: Path, code: int) -> None:
    """The last view stays, with how it ended; a job that failed gives 1."""
    asked: list[str] = []

    def stop(text: str) -> bool:
        if text.count("step ") > 3 and not asked:
            asked.append(text)
            (job / "stop").touch()
        return False

    shown = in_terminal("watch", "--interval", "0.3", cwd=job, until=stop)
    assert shown.code == code
    assert shown.widest <= 80
    assert "of 400" in shown.text
    assert "open spans" in shown.text
    last = shown.text.rpartition("job  ")[2]
    assert last.startswith("finished" if code == 0 else "failed")
    assert ("ValueError: no more" in last) == bool(code)
    assert "stepwell report job" in last


def test_ctrl_c_is_quiet(job: Path) -> None:
    """No traceback and no message; the job continues."""
    shown = in_terminal("watch", cwd=job, until=lambda text: "open spans" in text)
    assert shown.code == 130
    assert "Traceback" not in shown.text
    assert "Abort" not in shown.text
    assert stepwell.open_run(job / "runs" / "job").status == "running"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("as_json", [False, True])
def test_piped_it_prints_a_line_each_time(job: Path, as_json: bool) -> None:
    """A line for each look, at once, and it ends with the run."""
    words = ["watch", "job", "--interval", "0.2", *(["--json"] if as_json else [])]
    with start_script(CLI, *words, cwd=job, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = [process.stdout.readline() for _ in range(2)]
        (job / "stop").touch()
        lines = [*first, *process.stdout]
    assert process.returncode == 0
    if as_json:
        seen = [json.loads(line) for line in lines]
        assert [seen[0]["status"], seen[-1]["status"]] == ["running", "finished"]
        assert seen[0]["target"] == 400
        assert "data" in seen[-1]["time"]
    else:
        assert " · running · " in lines[0]
        assert any(" · finished · step " in line for line in lines[-3:])
        assert not any("\x1b" in line for line in lines)


def test_once(job: Path) -> None:
    """One look, and it is left running."""
    wait_until(lambda: stepwell.open_run(job / "runs/job").metrics().collect().height > 3)
    done = run_stepwell("watch", "--once", cwd=job)
    assert done.returncode == 0
    assert done.stdout.startswith("job  running for")
    assert "train/loss" in done.stdout
    refused = run_stepwell("watch", "--interval", "0", cwd=job)
    assert (
        refused.returncode,
        "--interval must be 0.1 to 3600 seconds, got 0" in refused.stderr,
    ) == (2, True)


def test_a_run_is_preferred_that_runs(job: Path) -> None:
    """Not the newest one, if that is over."""
    stepwell.init("later", dir=job / "runs", run_id="later").finish()
    assert run_stepwell("watch", "--once", cwd=job).stdout.startswith("job  running")


def test_a_killed_job_is_told_with_what_it_was_inside_of(tmp_path: Path) -> None:
    """A process that is gone does not run, whatever it wrote last."""
    process = start_script(TRAIN, "finish", cwd=tmp_path)
    runs = tmp_path / "runs"
    wait_until(lambda: any(r.metrics().collect().height > 5 for r in stepwell.list_runs(runs)))
    os.kill(process.pid, signal.SIGKILL)
    process.wait(10)
    done = run_stepwell("watch", "--once", "--json", cwd=tmp_path)
    assert done.returncode == 1
    seen = json.loads(done.stdout)
    assert seen["status"] == "killed"
    assert [finding["rule"] for finding in seen["findings"]][:1] == ["died"]


@pytest.mark.full
def test_a_long_run_is_not_read_from_its_beginning(tmp_path: Path) -> None:
    """Of more spans than can be gone through only the last are, with those around them."""
    with stepwell.init("long", dir=tmp_path, run_id="long") as run, run.span("training_loop"):
        for i in range(60_000):
            if i % 1000 == 0:
                run.set_step(i // 1000)
            with run.span("train step"), run.span("forward"):
                pass
        (folder,) = run.path.glob("rank-*")
        wait_until(lambda: len([*folder.glob("spans-*.live"), *folder.glob("spans-*.full")]) <= 3)
        recent = RecentSpans(folder, 3600, "MainThread")
        starts = [
            r.name for r in iter_all(recent) if isinstance(r, SpanRecord) and r.type == "start"
        ]
        assert starts[0] == "training_loop"
        # What older segments hold, and the few that are live.
        assert len(starts) <= MOST_SPANS + 3 * SPAN_SLOTS < 120_001
        now = LiveRun(stepwell.open_run(run.path), findings=False).look()
        assert now.step == 59
        assert now.ranks[0].inside[:1] == ("training_loop",)


def iter_all(follower: RecentSpans) -> Iterator[object]:
    while records := follower.poll():
        yield from records


def record(kind: str, id: int, parent: int | None, name: str, at: int) -> SpanRecord:
    begin, end = (at, None) if kind == "start" else (0, at)
    status = "open" if kind == "start" else "ok"
    return SpanRecord(kind, id, parent, name, "", "MainThread", begin, end, status)


def test_the_time_of_each_instant_has_one_owner() -> None:
    """By hand: 2 s of start-up, a step of 1 s data and 3 s forward with 1 s of nothing, then 0.5 s more."""
    second = 1_000_000_000
    lane = LiveLane()
    for kind, id, parent, name, at in [
        ("start", 1, None, "training loop", 100.0),
        ("start", 2, 1, "train step", 102.0),
        ("start", 3, 2, "wait for data", 102.0),
        ("stop", 3, 2, "wait for data", 103.0),
        ("start", 4, 2, "forward", 103.0),
        ("start", 5, 4, "attention", 104.0),
        ("stop", 5, 4, "attention", 105.0),
        ("stop", 4, 2, "forward", 106.0),
        ("stop", 2, 1, "train step", 107.0),
    ]:
        lane.take(record(kind, id, parent, name, int(at * second)))
    shares = lane.shares(int(107.5 * second))
    assert {phase: ns / second for phase, ns in shares.items()} == {
        "startup": 2.0,
        "data": 1.0,
        "forward": 3.0,
        "span:train step": 1.0,
        "other": 0.5,
    }
    # A minute later all of it is gone, but for what is open.
    later = lane.shares(int(170.2 * second))
    assert set(later) == {"other"}
    assert later["other"] == pytest.approx(60.2 * second)


def test_skipped_time_has_no_owner() -> None:
    """By hand: 2 s forward, 5 s of which nothing was read, then 1 s data and 0.5 s of nothing."""
    second = 1_000_000_000
    lane = LiveLane()
    lane.note_steps()
    lane.take(record("start", 1, None, "forward", 100 * second))
    lane.take(record("start", 2, 1, "attention", 102 * second))
    lane.restart(107 * second)
    assert lane.inside == []
    lane.take(record("start", 7, None, "wait for data", 107 * second))
    lane.take(record("stop", 7, None, "wait for data", 108 * second))
    shares = lane.shares(int(108.5 * second))
    assert {phase: ns / second for phase, ns in shares.items()} == {
        "forward": 2.0,
        "data": 1.0,
        "other": 0.5,
    }


def test_the_next_attempt_takes_over(tmp_path: Path) -> None:
    """A run that is restarted while it is watched: the running attempt is shown."""
    with stepwell.init("again", dir=tmp_path, run_id="again") as first:
        first.set_step(7)
        live = LiveRun(stepwell.open_run(first.path), findings=False)
        assert (live.look().attempt, live.look().step) == (0, 7)
    with stepwell.init("again", dir=tmp_path, run_id="again") as second, second.span("epoch"):
        second.set_step(3)
        now = live.look()
        assert (now.status, now.attempt, now.step) == ("running", 1, 3)
        assert [rank.inside for rank in now.ranks] == [("epoch",)]
    assert live.look().is_over


def test_the_wall_time_of_several_attempts(tmp_path: Path) -> None:
    """From the start of the first one on, whether it was watched or not."""
    with FakeClock() as clock:
        with stepwell.init("again", dir=tmp_path, run_id="again") as first:
            live = LiveRun(stepwell.open_run(first.path), findings=False)
            live.look()
            clock.advance(100)
        with stepwell.init("again", dir=tmp_path, run_id="again"):
            clock.advance(10)
            late = LiveRun(stepwell.open_run(first.path), findings=False)
            assert live.look().seconds == pytest.approx(110, abs=1)
            assert late.look().seconds == pytest.approx(110, abs=1)
