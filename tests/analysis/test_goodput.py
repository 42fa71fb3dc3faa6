"""Goodput: parts that sum to the wall time to the nanosecond, and every planted loss with its amount."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell._core.errors import StepwellError
from stepwell.analysis.findings import Facts
from stepwell.analysis.goodput import PARTS, Goodput, goodput, runs_of_session
from stepwell.reading import open_run
from stepwell.testing import FakeClock
from stepwell.testing.simulate import (
    DataBound,
    HangFault,
    PlannedDurations,
    Restart,
    RunPlan,
    Stall,
    StragglerFault,
    make_plan,
    simulate,
)
from stepwell.testing.simulate.plan import MS, SECOND
from tests.harness import recording_environment, run_script
from tests.processes.programs import only_run, write_program


def check_sum(found: Goodput) -> None:
    assert sum(found.parts.values()) == found.wall_ns == found.end_ns - found.start_ns
    assert set(found.parts) == set(PARTS)
    assert min(found.parts.values()) >= 0


def of_plan(path: Path, plan: RunPlan) -> tuple[Goodput, dict[str, Any]]:
    truth = simulate(path, plan)
    found = goodput(open_run(path))
    check_sum(found)
    assert found.wall_ns == truth["wall_ns"]
    return found, truth


def close(amount: float) -> Any:
    return pytest.approx(amount, rel=0.01)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("ranks", [1, 2, 5, 16])
@pytest.mark.parametrize("seed", [0, 1])
def test_everything_planted_is_found_and_nothing_else(
    tmp_path: Path, ranks: int, seed: int
) -> None:
    """A straggler, a stall, steps bound by data and a restart in one run: rank, steps and amount."""
    found, truth = of_plan(tmp_path / "run", make_plan(ranks, 1000, seed=seed))
    planted = [
        *(
            ("straggler wait", p["rank"], p["phase"], p["steps"], p["ns"])
            for p in truth["stragglers"]
        ),
        *(("stall", p["rank"], p["phase"], p["steps"], p["ns"]) for p in truth["stalls"]),
        *(("data", None, "data", p["steps"], p["ns"]) for p in truth["data_bound"]),
        *(
            (
                "redone",
                None,
                None,
                list(range(p["resumed_from_step"], p["died_in_step"] + 1)),
                p["redone_ns"],
            )
            for p in truth["restarts"]
        ),
    ]
    assert len(planted) == (4 if ranks > 1 else 3)
    losses = {loss.kind: loss for loss in found.losses}
    assert len(losses) == len(found.losses) == len(planted)
    for kind, rank, phase, steps, ns in planted:
        loss = losses[kind]
        assert (loss.rank, loss.phase, list(loss.steps)) == (rank, phase, steps)
        assert loss.ns == close(ns)
    for part in ("straggler wait", "stall"):
        assert found.parts[part] == close(sum(p[4] for p in planted if p[0] == part))
    (restart,) = truth["restarts"]
    assert found.parts["redone"] == restart["redone_ns"]
    assert found.parts["gap between attempts"] == restart["gap_ns"]
    assert found.parts["restore"] == restart["restore_ns"]
    assert found.redone_steps == restart["redone_steps"]
    assert found.steps == 1000
    pace = PlannedDurations()
    assert found.parts["initialisation"] == 2 * sum(pace.initialisation)
    assert found.parts["checkpoint save"] == 10 * pace.checkpoint
    assert found.parts["ending"] == pace.ending
    # Of each step that counts once, and of the phase in which data was slow.
    assert found.parts["data"] == close(1000 * pace.data + truth["data_bound"][0]["ns"])


@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize("jitter", [0.0, 0.05, 0.2])
def test_a_healthy_run_loses_nothing(tmp_path: Path, ranks: int, jitter: float) -> None:
    """But what every run needs."""
    found, _ = of_plan(tmp_path / "run", RunPlan(ranks, 300, pace=PlannedDurations(jitter=jitter)))
    assert found.losses == []
    lost = ("stall", "straggler wait", "redone", "gap between attempts", "restore", "validation")
    assert [found.parts[part] for part in lost] == [0] * len(lost)


def test_a_straggler_without_collectives(tmp_path: Path) -> None:
    """Who waits in its backward pass for a slow one is not to blame, and the wait is seen all the same."""
    slow = StragglerFault(1, "forward", range(50, 150), 30 * MS)
    found, truth = of_plan(tmp_path / "run", RunPlan(2, 200, (slow,), collectives=False))
    (loss,) = found.losses
    assert (loss.rank, loss.phase, list(loss.steps)) == (
        1,
        "forward",
        truth["stragglers"][0]["steps"],
    )
    assert found.parts["straggler wait"] == close(truth["stragglers"][0]["ns"])


def test_two_stragglers_cost_what_the_slower_one_costs(tmp_path: Path) -> None:
    """The others wait for both at once."""
    faults = (
        StragglerFault(1, "data", range(200), 30 * MS),
        StragglerFault(3, "forward", range(200), 50 * MS),
    )
    found, _ = of_plan(tmp_path / "run", RunPlan(4, 200, faults))
    assert found.parts["straggler wait"] == close(200 * 50 * MS)


@pytest.mark.parametrize("phase", ["data", "forward", "optimizer"])
def test_a_stall_of_all_ranks(tmp_path: Path, phase: str) -> None:
    """No rank stands out, the step does."""
    found, _ = of_plan(tmp_path / "run", RunPlan(4, 300, (Stall(120, phase, 6 * SECOND),)))
    (loss,) = found.losses
    assert (loss.kind, loss.rank, loss.phase, loss.steps) == ("stall", None, phase, (120,))
    assert found.parts["stall"] == close(6 * SECOND)


def test_slow_first_steps_are_initialisation(tmp_path: Path) -> None:
    """Compilation takes time once, and is not a stall."""
    found, _ = of_plan(tmp_path / "run", RunPlan(2, 100, (Stall(0, "forward", 9 * SECOND),)))
    assert found.parts["stall"] == 0
    assert found.parts["initialisation"] == close(
        9 * SECOND + sum(PlannedDurations().initialisation)
    )


def test_all_steps_bound_by_data(tmp_path: Path) -> None:
    """Without other steps to compare with, all waiting counts."""
    found, _ = of_plan(tmp_path / "run", RunPlan(2, 100, (DataBound(range(100), 99 * MS),)))
    (loss,) = found.losses
    assert loss.kind == "data"
    assert len(loss.steps) == 100
    assert found.parts["data"] == loss.ns == close(100 * 100 * MS)


def test_a_hang_is_a_stall(tmp_path: Path) -> None:
    """A job that hung until it was killed lost that time."""
    found, truth = of_plan(tmp_path / "run", RunPlan(3, 100, (HangFault(1, 60, 200 * SECOND),)))
    (loss,) = found.losses
    assert (loss.kind, loss.steps) == ("stall", (60,))
    assert found.parts["stall"] == close(truth["hang"]["ns"])
    assert found.steps == 60


def test_several_restarts(tmp_path: Path) -> None:
    """The work of an attempt is lost from the earliest step from which a later one continued."""
    faults = (Restart(150, 5 * SECOND), Restart(130, 7 * SECOND), Restart(250, 9 * SECOND, True))
    found, truth = of_plan(tmp_path / "run", RunPlan(2, 300, faults))
    assert found.attempts == 4
    assert found.parts["gap between attempts"] == 21 * SECOND
    assert found.parts["redone"] == sum(r["redone_ns"] for r in truth["restarts"])
    # 100 to 149 and 100 to 129 again, then 200 to 249.
    assert found.redone_steps == 50 + 30 + 50
    assert found.steps == 300


def test_runs_of_one_session(tmp_path: Path) -> None:
    """A job that continues as another run is one job, and the time in between is lost."""
    one = simulate(tmp_path / "one", RunPlan(2, 250, session="night"))
    later = one["attempts"][-1]["end_ns"] + 60 * SECOND
    two = simulate(
        tmp_path / "two", RunPlan(2, 400, session="night", first_step=200, began_ns=later, seed=5)
    )
    simulate(tmp_path / "other", RunPlan(2, 50, session="day"))
    runs = runs_of_session(stepwell.list_runs(tmp_path), "night")
    assert [run.id for run in runs] == ["one", "two"]
    found = goodput(runs)
    check_sum(found)
    assert found.wall_ns == one["wall_ns"] + 60 * SECOND + two["wall_ns"]
    assert found.parts["gap between attempts"] == 60 * SECOND
    assert found.steps == 400
    assert found.redone_steps == 50


def test_runs_side_by_side_are_refused(tmp_path: Path) -> None:
    """They are not one continued job."""
    for name in ("one", "two"):
        simulate(tmp_path / name, RunPlan(1, 3000))
    with pytest.raises(StepwellError, match="same time"):
        goodput(stepwell.list_runs(tmp_path))


def test_rates(tmp_path: Path) -> None:
    """Throughput, MFU, cost and energy from what is known; absent otherwise."""
    simulate(tmp_path / "run", RunPlan(4, 100))
    run = open_run(tmp_path / "run")
    unknown = goodput(run).rates
    assert [unknown.samples, unknown.mfu, unknown.cost, unknown.joules] == [None] * 4
    run.document["config"] = {
        "global_batch_size": 32,
        "flops_per_sample": 1e9,
        "price_per_hour": 36.0,
    }
    found = goodput(run, peak_flops=1e12)
    seconds = found.wall_ns / 1e9
    rates = found.rates
    assert rates.samples == 3200
    assert rates.samples_per_second == pytest.approx(3200 / seconds)
    assert rates.mfu == pytest.approx(3200 * 1e9 / (seconds * 4 * 1e12))
    assert rates.cost == pytest.approx(seconds / 100)
    assert rates.cost_per_sample == pytest.approx(seconds / 320_000)


def test_energy(tmp_path: Path) -> None:
    """Counters of all processes are added up, of each its last value; measured ones count first."""
    with stepwell.init("energy", dir=tmp_path, config={"global_batch_size": 2}) as run:
        for step in range(5):
            run.set_step(step)
            with run.span("forward"):
                pass
            run.log({"system/energy_cpu_measured_joules": 10.0 * step})
            run.log({"system/energy_cpu_estimated_joules": 99.0})
    rates = goodput(open_run(run.path)).rates
    assert (rates.joules, rates.joules_per_sample) == (40.0, 4.0)
    assert not rates.is_energy_estimated


KILLED = """
import signal
from stepwell.testing import FakeClock
is_first = not (RUNS / "job").exists()
clock = FakeClock()
if not is_first:
    clock.advance(1)
clock.__enter__()
run = stepwell.init("job", dir=RUNS, run_id="job")
first = 0 if is_first else 20
for step in range(first, 60):
    run.set_step(step)
    with run.span("train step"):
        with run.span("data"):
            clock.advance(0.002)
        with run.span("forward"):
            clock.advance(0.004)
        if is_first and step == 30:
            os.kill(os.getpid(), signal.SIGKILL)
    if step == 40:
        with run.span("checkpoint"):
            clock.advance(0.2)
run.finish()
"""


def test_a_real_job_that_was_killed_and_resumed(tmp_path: Path) -> None:
    """Two real processes, one after the other; the parts sum to the wall time to the nanosecond."""
    program = write_program(tmp_path, KILLED)
    env = recording_environment(tmp_path / "runs")
    for code in (-signal.SIGKILL, 0):
        done = run_script(program, env=env, cwd=tmp_path)
        assert done.returncode == code, done.stderr
    found = goodput(only_run(tmp_path))
    check_sum(found)
    assert (found.attempts, found.steps, found.redone_steps) == (2, 60, 10)
    # The first one ended in its 31st step, the second one began a second after the first one did.
    assert found.parts["gap between attempts"] == SECOND - 31 * 6 * MS
    # The step that it died in is redone, too.
    assert found.parts["redone"] == 11 * 6 * MS
    assert found.parts["checkpoint save"] == 200 * MS
    assert found.parts["data"] == 60 * 2 * MS
    assert found.parts["productive"] == 60 * 4 * MS


def test_a_run_without_spans(tmp_path: Path) -> None:
    """All of its time is start-up; nothing fails."""
    with stepwell.init("empty", dir=tmp_path) as run:
        pass
    found = goodput(open_run(run.path))
    check_sum(found)
    assert found.steps == 0
    assert found.share == 0.0


def test_spans_of_the_user_are_not_code_in_no_span(tmp_path: Path) -> None:
    """A span without a phase, in each step, counts as progress; only the rest is idle."""
    with FakeClock() as clock, stepwell.init("own", dir=tmp_path) as run:
        for step in range(50):
            run.set_step(step)
            for name, seconds in (("forward", 0.1), ("rollout", 0.3)):
                with run.span(name):
                    clock.advance(seconds)
            clock.advance(0.2)
    found = goodput(open_run(run.path))
    # The last pause is after the last step.
    assert found.parts["idle"] == pytest.approx(49 * 0.2 * SECOND, abs=MS)
    assert found.parts["productive"] == pytest.approx((49 * 0.4 + 0.1) * SECOND, abs=MS)
    assert Facts(open_run(run.path)).goodput.parts == found.parts
