"""Comparison of ranks: stragglers, waits, hangs and stacks."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import stepwell
from stepwell.analysis.ranks import Straggler, hang, read_grids, skew, stacks, stragglers, waits
from stepwell.analysis.ranks.arrivals import median_of_others
from stepwell.analysis.timeline.tables import steps
from stepwell.dashboard.answers.ranks import ranks as ranks_answer
from stepwell.reading import RecordedRun
from stepwell.testing import FakeClock
from stepwell.testing.simulate import HangFault, PlannedDurations, Restart, RunPlan, simulate
from stepwell.testing.simulate import StragglerFault as PlantedStraggler
from stepwell.testing.simulate.plan import MS, SECOND, Fault, Stall
from tests.harness import recording_environment, run_ranks, run_stepwell, start_rank
from tests.harness.programs import Program, free_port
from tests.processes.programs import only_run, write_program

Simulate = Callable[..., tuple[RecordedRun, dict[str, Any]]]


@pytest.fixture
def simulated(tmp_path: Path) -> Simulate:
    """Write a run of this many ranks and steps with these faults."""
    numbers = iter(range(100))

    def make(
        ranks: int, steps: int, *faults: Fault, **options: Any
    ) -> tuple[RecordedRun, dict[str, Any]]:
        path = tmp_path / f"run-{next(numbers)}"
        truth = simulate(path, RunPlan(ranks, steps, tuple(faults), **options))
        return stepwell.open_run(path), truth

    return make


def check(straggler: Straggler, planted: dict[str, Any]) -> None:
    """The right rank, phase and steps, and the amount within 1 %."""
    assert (straggler.rank, straggler.phase) == (planted["rank"], planted["phase"])
    assert list(straggler.steps) == planted["steps"]
    assert straggler.ns == pytest.approx(planted["ns"], rel=0.01)


@pytest.mark.parametrize("ranks", [2, 3, 8, pytest.param(64, marks=pytest.mark.full)])
@pytest.mark.parametrize("phase", ["data", "forward", "backward", "optimizer"])
def test_a_chronic_straggler(simulated: Simulate, ranks: int, phase: str) -> None:
    """It is found with its rank, phase, steps and cost, and no other rank is."""
    planted = PlantedStraggler(ranks - 1, phase, range(40, 240), 25 * MS)
    run, truth = simulated(ranks, 300, planted)
    (result,) = stragglers(run)
    check(result, truth["stragglers"][0])
    assert result.kind == "chronic"
    assert result.share == pytest.approx(200 / 300)


def test_a_rank_that_is_slow_in_all_steps(simulated: Simulate) -> None:
    """It need not be as fast as the others in any step."""
    run, truth = simulated(4, 100, PlantedStraggler(0, "forward", range(100), 10 * MS))
    (result,) = stragglers(run)
    check(result, truth["stragglers"][0])


def test_a_rank_that_is_slow_now_and_then(simulated: Simulate) -> None:
    """One slow step in twenty is reported with these steps alone."""
    run, truth = simulated(2, 600, PlantedStraggler(1, "data", range(0, 600, 20), 200 * MS))
    (result,) = stragglers(run)
    check(result, truth["stragglers"][0])
    assert result.kind == "chronic"
    assert result.share == pytest.approx(0.05)


def test_a_stall_on_one_rank(simulated: Simulate) -> None:
    """A single long delay is separate from recurring ones, even on the same rank and phase."""
    chronic = PlantedStraggler(2, "forward", range(50, 150), 20 * MS)
    run, truth = simulated(4, 200, chronic, Stall(180, "forward", 5 * SECOND, rank=2))
    once, again = stragglers(run)
    assert (once.kind, again.kind) == ("one-off", "chronic")
    check(once, truth["stalls"][0])
    check(again, truth["stragglers"][0])


def test_two_stragglers_at_once(simulated: Simulate) -> None:
    """The rank that arrives last is charged: the others wait for it, not for the one before."""
    first = PlantedStraggler(1, "data", range(200), 30 * MS)
    second = PlantedStraggler(3, "backward", range(100, 200), 40 * MS)
    run, _ = simulated(4, 200, first, second)
    result = {s.rank: s for s in stragglers(run)}
    assert sorted(result) == [1, 3]
    for rank, phase, slow, ns in (
        (3, "backward", range(100, 200), 40),
        (1, "data", range(100), 30),
    ):
        assert (result[rank].phase, result[rank].steps) == (phase, tuple(slow))
        assert result[rank].ns == pytest.approx(100 * ns * MS, rel=0.02)


@pytest.mark.parametrize("ranks", [1, 2, 16, pytest.param(64, marks=pytest.mark.full)])
@pytest.mark.parametrize("jitter", [0.0, 0.02, 0.2])
def test_a_healthy_run_has_none(simulated: Simulate, ranks: int, jitter: float) -> None:
    """However much its steps vary, if all ranks vary equally."""
    run, _ = simulated(ranks, 200, pace=PlannedDurations(jitter=jitter))
    assert stragglers(run) == []
    assert hang(run) is None
    assert stacks(run) == []


def test_who_waits_for_whom(simulated: Simulate) -> None:
    """All others wait for the slow rank while it is slow; it hardly waits itself."""
    run, truth = simulated(3, 100, PlantedStraggler(1, "forward", range(100), 50 * MS))
    table = waits(run)
    assert set(table.columns) == {"rank", "waited_for", "steps", "ns"}
    amount = truth["stragglers"][0]["ns"]
    for rank in (0, 2):
        row = table.row(
            by_predicate=(pl.col("rank") == rank) & (pl.col("waited_for") == 1), named=True
        )
        assert row["steps"] == 100
        assert row["ns"] == pytest.approx(amount, rel=0.05)
    assert table.filter(pl.col("rank") == 1)["ns"].sum() < amount / 50


def test_skew(simulated: Simulate) -> None:
    """The mean time of each rank in a phase, relative to the median rank."""
    run, _ = simulated(4, 100, PlantedStraggler(2, "forward", range(100), 20 * MS))
    table = skew(run).filter(pl.col("phase") == "forward").sort("rank")
    assert table["steps"].to_list() == [100] * 4
    assert table["relative"].to_list() == pytest.approx([1, 1, 2, 1], abs=0.02)


def test_phases_of_one_attempt_count_over_all_steps(tmp_path: Path) -> None:
    """The means of a rank add up to its mean step: 10 of 100 steps with 10 ms more are 1 ms."""
    with FakeClock() as clock:
        for steps_of_attempt, transfer in ((range(10), 0.01), (range(10, 100), 0)):
            with stepwell.init("twice", dir=tmp_path, run_id="twice") as run:
                for step in steps_of_attempt:
                    run.set_step(step)
                    with run.span("train step"):
                        if transfer:
                            with run.span("transfer"):
                                clock.advance(transfer)
                        with run.span("forward"):
                            clock.advance(0.002)
    recorded = stepwell.open_run(tmp_path / "twice")
    table = skew(recorded)
    assert set(table["steps"]) == {100}
    means = dict(table.select("phase", "mean_ns").iter_rows())
    assert (means["transfer"], means["forward"]) == pytest.approx((MS, 2 * MS))
    (line,) = ranks_answer(recorded)["ranks"]
    assert line["step_ns"] == pytest.approx(3 * MS)


def test_the_median_of_others_leaves_one_out() -> None:
    """Calculated one by one: of two middle values the mean if they are close, else the lower one."""
    random = np.random.default_rng(1)
    for count in range(2, 9):
        values = random.integers(0, 12, (count, 40))
        which = random.integers(0, count, 40)
        for step, result in enumerate(median_of_others(values, which).tolist()):
            others = sorted(np.delete(values[:, step], which[step]).tolist())
            low, high = others[(count - 2) // 2], others[(count - 1) // 2]
            is_close = 4 * (high - low) < values[which[step], step] - low
            assert result == ((low + high) // 2 if is_close else low)


def test_the_grid_agrees_with_the_ledger(simulated: Simulate) -> None:
    """Equal to the nanosecond in each completed step, though computed differently."""
    faults = (Restart(70), Stall(30, "data", SECOND, rank=1))
    run, _ = simulated(
        3, 100, *faults, checkpoint_every=25, pace=PlannedDurations(validation=50 * MS)
    )
    table = steps(run)
    for grid in read_grids(run):
        for place, rank in enumerate(grid.ranks):
            mine = table.filter(
                (pl.col("attempt") == grid.attempt) & (pl.col("rank") == rank)
            ).sort("step")
            assert mine["step"].to_list() == grid.steps.tolist()
            done = grid.is_done[place]
            for phase in grid.phases:
                if phase != "idle":
                    assert (
                        mine[phase].to_numpy()[done].tolist()
                        == grid.total(phase)[place, done].tolist()
                    )


def test_steps_of_plain_spans(tmp_path: Path) -> None:
    """User-defined names: data that is fetched before its step is set belongs to that step."""
    with FakeClock() as clock, stepwell.init("plain", dir=tmp_path) as run:
        for step in range(5):
            with run.span("wait for data"):
                clock.advance(0.01 if step == 3 else 0.001)
            run.set_step(step)
            with run.span("train step"), run.span("forward"):
                clock.advance(0.001)
    (grid,) = read_grids(stepwell.open_run(run.path))
    assert grid.steps.tolist() == [0, 1, 2, 3, 4]
    assert grid.total("data")[0].argmax() == 3
    assert grid.complete.all()


def test_a_hang_that_was_killed(simulated: Simulate) -> None:
    """Which ranks were in which collective, since when, and which rank never arrived."""
    run, _ = simulated(4, 120, HangFault(2, 77, 300 * SECOND))
    result = hang(run)
    assert result is not None
    assert (result.collective, result.step) == ("all_reduce", 77)
    (waiting,) = result.waiting
    assert waiting.ranks == (0, 1, 3)
    assert waiting.number == 77
    assert waiting.seconds == pytest.approx(300, abs=0.1)
    (missing,) = result.missing
    assert missing.rank == 2
    assert missing.inside[-1] == "data_loading"
    assert "rank 2 never arrived" in result.sentence
    inside = {stack.rank: stack.frames[-1].name for stack in stacks(run)}
    assert inside == {0: "all_reduce", 1: "all_reduce", 2: "data_loading", 3: "all_reduce"}


HUNG = """
import torch, torch.distributed as dist
from stepwell.integrations.torch import annotate
dist.init_process_group("gloo")
run = stepwell.init("hung", dir=RUNS)
annotate()
for step in range(5):
    run.set_step(step)
    with run.span("train step"):
        if step == 4 and run.rank == 1:
            (RUNS / "hangs").touch()
            with run.span("reading a file that never comes"):
                time.sleep(300)
        dist.all_reduce(torch.ones(4))
"""


def environ(folder: Path) -> dict[str, str]:
    return recording_environment(folder / "runs")


@pytest.mark.torch
def test_stacks_of_two_hung_ranks(tmp_path: Path) -> None:
    """Two real ranks, one of which never reaches the collective that the other waits in."""
    pytest.importorskip("torch")
    program, port = write_program(tmp_path, HUNG), free_port()
    job = [
        start_rank(program, rank=rank, world=2, port=port, env=environ(tmp_path), cwd=tmp_path)
        for rank in range(2)
    ]
    try:
        wait(job, lambda: hangs(tmp_path))
        seen = time.time_ns()
        alive = stacks_as_json(tmp_path)
        # The time of a killed run ends with its last heartbeats: by then it must have hung long enough.
        wait(job, lambda: oldest_heartbeat(tmp_path) > seen)
    finally:
        for rank in job:
            rank.kill()
            rank.wait()
    assert alive["status"] == "running"
    check_hang(alive)
    killed = stacks_as_json(tmp_path)
    assert killed["status"] == "killed"
    check_hang(killed)


def wait(job: list[Program], is_true: Callable[[], bool]) -> None:
    """Wait until a condition is true, while all ranks run."""
    limit = time.monotonic() + 120
    while not is_true():
        assert [rank.poll() for rank in job] == [None] * len(job)
        assert time.monotonic() < limit
        time.sleep(0.05)


def hangs(folder: Path) -> bool:
    return (folder / "runs" / "hangs").exists() and hang(only_run(folder), after_s=0.5) is not None


def oldest_heartbeat(folder: Path) -> int:
    return int(only_run(folder).processes().collect()["heartbeat_ns"].min())


def stacks_as_json(folder: Path) -> dict[str, Any]:
    words = ("stacks", str(only_run(folder).path), "--after", "0.5")
    text = run_stepwell(*words, cwd=folder, check=True).stdout
    assert "rank 1 never arrived" in " ".join(text.split())
    # Python stacks are there if the ranks made no progress for 5 s. Their paths cannot be wrapped.
    assert [line for line in text.splitlines() if len(line) > 80 and ".py:" not in line] == []
    document: dict[str, Any] = json.loads(
        run_stepwell(*words, "--json", cwd=folder, check=True).stdout
    )
    return document


def check_hang(document: dict[str, Any]) -> None:
    result = document["hang"]
    assert result["collective"] == "all_reduce"
    assert result["step"] == 4
    assert [waiting["ranks"] for waiting in result["waiting"]] == [[0]]
    assert [missing["rank"] for missing in result["missing"]] == [1]
    assert result["missing"][0]["inside"] == ["train step", "reading a file that never comes"]
    paths = {s["rank"]: [f["name"] for f in s["frames"]] for s in document["stacks"]}
    assert paths == {
        0: ["train step", "all_reduce"],
        1: ["train step", "reading a file that never comes"],
    }


TRAINING = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from stepwell.integrations.torch import annotate
from tests.analysis.clocks import RankClock
CASE = sys.argv[1]
dist.init_process_group("gloo")
clock = RankClock()
clock.__enter__()
run = stepwell.init("ddp", dir=RUNS)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Linear(128, 10))

    def forward(self, x):
        clock.advance(0.005)
        if CASE == "forward" and run.rank == 1:
            clock.advance(0.03)
        result = self.layers(x)
        result.register_hook(lambda _: clock.advance(0.002))
        return result

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 60 * 8

    def __getitem__(self, i):
        if CASE == "data" and run.rank == 1 and i % 8 == 0:
            clock.advance(0.03)
        return torch.randn(64), i % 10

model = DistributedDataParallel(Model())
clock.follow(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = torch.utils.data.DataLoader(Data(), 8)
annotate(model, optimizer, loader)
for step, (x, y) in enumerate(loader):
    run.set_step(step)
    with run.span("train step"):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
run.finish()
dist.destroy_process_group()
"""


@pytest.mark.full
@pytest.mark.torch
@pytest.mark.parametrize("case", ["forward", "data", "none"])
def test_a_real_slow_rank(tmp_path: Path, case: str) -> None:
    """The collectives of DDP are in its backward pass, where the fast rank waits for the slow one."""
    pytest.importorskip("torch")
    program = write_program(tmp_path, TRAINING)
    run_ranks(program, case, env=environ(tmp_path), cwd=tmp_path, check=True)
    result = stragglers(only_run(tmp_path))
    if case == "none":
        assert [s for s in result if s.kind == "chronic"] == []
        return
    (slow,) = [s for s in result if s.kind == "chronic"]
    assert (slow.rank, slow.phase) == (1, case)
    assert len(slow.steps) >= 58
    assert slow.ns / len(slow.steps) == pytest.approx(30 * MS, rel=0.01)


def test_steps_that_spans_tell_themselves(tmp_path: Path) -> None:
    """An iteration with the attribute ``step`` needs no ``set_step``."""
    with stepwell.init("declared", dir=tmp_path) as run:
        for step in (10, 20, 30):
            with run.span("train step", step=step), run.span("forward"):
                pass
    (grid,) = read_grids(stepwell.open_run(run.path))
    assert grid.steps.tolist() == [10, 20, 30]


def test_stacks_of_a_living_run(tmp_path: Path) -> None:
    """Threads with their open spans; a main thread without any, with its last span."""
    go_on, inside = threading.Event(), threading.Event()

    def work() -> None:
        with stepwell.span("upload", part=3):
            inside.set()
            go_on.wait(30)

    with stepwell.init("alive", dir=tmp_path) as run:
        run.set_step(7)
        with run.span("forward"):
            pass
        thread = threading.Thread(target=work, name="uploader")
        thread.start()
        inside.wait(30)
        main, other = stacks(stepwell.open_run(run.path))
        go_on.set()
        thread.join()
    assert (main.thread, main.status, main.step) == ("MainThread", "running", 7)
    assert main.frames == ()
    assert main.last is not None
    assert main.last.name == "forward"
    assert (other.thread, [f.name for f in other.frames]) == ("uploader", ["upload"])
    assert other.frames[0].attributes == {"part": 3}
    assert 0 <= other.frames[0].seconds < 60


def test_the_command_tells_ranks_in_the_same_place_together(simulated: Simulate) -> None:
    """One paragraph for ranks in the same place, 80 columns wide, the hang first."""
    run, _ = simulated(12, 40, HangFault(5, 30))
    shown = run_stepwell("stacks", str(run.path), cwd=run.path)
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert lines[1].startswith(
        "ranks 0, 1, 2, 3, 4, 6 and 5 more have been in all_reduce for 5 min 00 s"
    )
    assert "rank 5 never arrived" in " ".join(shown.stdout.split())
    assert "ranks 0-4, 6-11 · MainThread · step 30" in shown.stdout
    healthy, _ = simulated(2, 40)
    assert "No spans were open" in run_stepwell("stacks", str(healthy.path), cwd=run.path).stdout
