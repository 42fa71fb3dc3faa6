"""``stepwell simulate``: writes a synthetic run with planted faults."""

from __future__ import annotations

from pathlib import Path

from stepwell._core.errors import StepwellError
from stepwell.cli.output import print_json
from stepwell.cli.progress import ProgressBar
from stepwell.cli.terminal import seconds
from stepwell.testing.simulate import make_plan, simulate
from stepwell.testing.simulate.plan import FAULTS


def simulate_run(
    ranks: int, steps: int, output: Path, plant: list[str], seed: int, as_json: bool = False
) -> None:
    """Write a synthetic run, with a progress bar, and print the planted faults."""
    kinds = _kinds(plant)
    plan = make_plan(ranks, steps, kinds, seed=seed)
    with ProgressBar(f"{output}") as bar:
        truth = simulate(output, plan, bar.update)
    if as_json:
        print_json(truth)
        return
    print(f"{output}: {ranks} ranks, {steps} steps, {seconds(truth['wall_ns'] / 1e9)}")
    for line in _planted(truth):
        print(f"  {line}")
    print(f"planted faults: {output / 'truth.json'}")


def _kinds(plant: list[str]) -> tuple[str, ...]:
    if not plant:
        return FAULTS
    if "nothing" in plant:
        if len(plant) > 1:
            raise StepwellError("--plant nothing excludes every other --plant")
        return ()
    return tuple(plant)


def _planted(truth: dict[str, list[dict[str, object]]]) -> list[str]:
    lines = []
    for kind, title in (
        ("stragglers", "straggler"),
        ("stalls", "stall"),
        ("data_bound", "data-bound"),
    ):
        for item in truth[kind]:
            steps, ns = item["steps"], item["ns"]
            assert isinstance(steps, list)
            assert isinstance(ns, int)
            who = f"rank {item['rank']}" if item.get("rank") is not None else "all ranks"
            where = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
            phase = item.get("phase", "data")
            lines.append(f"{title}: {who}, {phase}, {where}, {seconds(ns / 1e9)} in total")
    for item in truth["restarts"]:
        redone, gap = item["redone_ns"], item["gap_ns"]
        assert isinstance(redone, int)
        assert isinstance(gap, int)
        lines.append(
            f"restart: died in step {item['died_in_step']}, resumed from {item['resumed_from_step']} "
            f"after {seconds(gap / 1e9)}; {seconds(redone / 1e9)} of work repeated"
        )
    return lines
