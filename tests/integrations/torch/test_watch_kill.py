"""``stepwell.watch``: after ``kill -9`` every loss whose step had ended is in the journal, with its step."""

from __future__ import annotations

import random
import struct
import subprocess
from pathlib import Path

import polars as pl
import pytest

from tests.harness.marks import others_in_full

pytest.importorskip("torch")

import stepwell
from tests.harness import environment, run_stepwell, start_script

pytestmark = pytest.mark.torch
VICTIM = """
import os, struct, sys
import torch
import stepwell
from tests.integrations.torch.loops import make_loader, make_model, make_optimizer

kind = sys.argv[1]
torch.set_num_threads(1)
model = make_model()
optimizer, loader = make_optimizer(model), make_loader()
if kind == "two optimizers":
    other = make_model()
    second = make_optimizer(other)
    stepwell.watch({"a": model, "b": other}, [optimizer, second], loader, diagnostics=False)
else:
    stepwell.watch(model, optimizer, None if kind == "no loader" else loader, diagnostics=False)
made = 0
while True:
    parts = []
    for i, (x, y) in enumerate(loader):
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        parts.append(loss.detach())
        if kind == "accumulated" and i % 2 == 0:
            continue
        optimizer.step()
        os.write(1, struct.pack("qd", made, sum(part.item() for part in parts)))
        if kind == "two optimizers":
            torch.nn.functional.mse_loss(other(x), y).backward()
            second.step()
            second.zero_grad()
        parts = []
        optimizer.zero_grad()
        made += 1
"""
KINDS = ("loader", "no loader", "accumulated", "two optimizers")
RECORD = struct.Struct("qd")


def kill_one(kind: str, seed: int, folder: Path) -> None:
    """Kill a training at a random moment, and compare its journal with what it wrote to a pipe."""
    numbers = random.Random(seed)
    child = start_script(
        VICTIM,
        kind,
        cwd=folder,
        env=environment(STEPWELL_DIR=str(folder / "runs"), STEPWELL_RUN_ID=f"run-{seed}"),
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    try:
        seen = child.stdout.read(RECORD.size * numbers.randrange(1, 60))
    finally:
        child.kill()
    seen += child.stdout.read()
    child.stdout.close()
    child.wait(60)
    written = list(RECORD.iter_unpack(seen[: len(seen) // RECORD.size * RECORD.size]))
    assert written
    run = stepwell.open_run(folder / "runs" / f"run-{seed}")
    name = "loss/a" if kind == "two optimizers" else "loss"
    rows = run.metrics().collect().filter(pl.col("name") == name).sort("step")
    found = rows.select("step", "value").rows()
    # The one after the last may be there as well: the kill came before it was written to the pipe.
    assert found[: len(written)] == written, kind
    assert len(found) <= len(written) + 1
    assert run.status == "killed"


@pytest.mark.parametrize("kind", others_in_full(KINDS, KINDS[:1]))
def test_every_loss_survives_a_kill(kind: str, tmp_path: Path) -> None:
    """The rows equal what the training wrote elsewhere, also the last one."""
    for seed in range(2):
        kill_one(kind, seed, tmp_path)


@pytest.mark.torture
def test_every_loss_survives_five_hundred_kills(tmp_path: Path) -> None:
    """The same for all kinds of loop, in turn."""
    for seed in range(500):
        kill_one(KINDS[seed % len(KINDS)], seed, tmp_path)


def test_the_report_tells_at_which_step_it_was_killed(tmp_path: Path) -> None:
    """In a loop without a loader, too."""
    script = """
import os, signal
import torch
import stepwell
from tests.integrations.torch.loops import make_model, make_optimizer
model = make_model(); optimizer = make_optimizer(model)
stepwell.watch(model, optimizer, name="killed")
for _ in range(47):
    model(torch.rand(8, 4)).mean().backward()
    optimizer.step()
os.kill(os.getpid(), signal.SIGKILL)
"""
    start_script(script, cwd=tmp_path, env=environment()).wait(60)
    text = run_stepwell("report", "killed", cwd=tmp_path).stdout
    assert "killed at step 46" in " ".join(text.split())
