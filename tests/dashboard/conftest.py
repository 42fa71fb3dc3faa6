"""Recorded runs, and a server over them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import stepwell
from stepwell.testing.simulate import make_plan, simulate
from tests.dashboard.serving import Server, served


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated run of 4 ranks with faults, and a small recorded one with an artifact and a picture."""
    folder = tmp_path_factory.mktemp("runs")
    simulate(folder / "job", make_plan(4, 200))
    with stepwell.init(
        "small", dir=folder, run_id="small", config={"lr": 0.1, "deep": {"a": 1}}
    ) as run:
        for step in range(50):
            run.set_step(step, step // 10)
            with run.span("forward", batch=step):
                run.log({"train/loss": 1 / (step + 1), "val/accuracy": step / 50})
        run.log({"odd": float("nan")})
        file = folder / "notes.txt"
        file.write_text("hello")
        run.artifact(file)
    return folder


@pytest.fixture(scope="module")
def server(runs: Path) -> Iterator[Server]:
    with served(runs) as running:
        yield running
