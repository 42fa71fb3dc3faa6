"""Two ranks, started like torchrun does: all record, or only the first, as configured."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

import stepwell
from tests.harness import TRAINERS, recording_environment, run_ranks
from tests.integrations.trainers import attributes_of
from tests.processes.programs import only_run, write_program

pytestmark = pytest.mark.torch

TRAINER = """
from stepwell.integrations.transformers import StepwellCallback
from tests.integrations.trainers import make_data, make_trainer
callback = StepwellCallback(dir=RUNS)
trainer = make_trainer(
    Path.cwd(), [callback], eval_strategy="epoch", eval_dataset=make_data(6), save_strategy="epoch",
    num_train_epochs=1, gradient_accumulation_steps=2, logging_steps=1, ddp_backend="gloo",
)
trainer.train()
callback.finish()
if trainer.is_world_process_zero():
    history = trainer.state.log_history
    Path("told.json").write_text(json.dumps([trainer.state.global_step, history]))
import torch.distributed as dist
dist.destroy_process_group()
"""

ACCELERATE = """
from accelerate import Accelerator
from stepwell.integrations.accelerate import StepwellTracker, prepare
from tests.integrations.test_accelerate import parts, train
everywhere = sys.argv[1] == "all"
tracker = StepwellTracker("two", dir=RUNS, main_process_only=not everywhere)
accelerator = Accelerator(cpu=True, log_with=tracker, gradient_accumulation_steps=2)
accelerator.init_trackers("project", config={"lr": 0.1})
ready = prepare(accelerator, *parts(), diagnostics=False)
assert (tracker.tracker is not None) == (everywhere or accelerator.is_main_process)
losses = train(accelerator, *ready)
assert len(losses) == 4
accelerator.end_training()
"""


def launch(folder: Path, text: str, *arguments: str) -> str:
    """Run this on two ranks; what they printed."""
    env = recording_environment(folder / "runs")
    program = write_program(folder, text)
    ranks = run_ranks(
        program, *arguments, env=env, cwd=folder, check=True, timeout=240, modules=TRAINERS
    )
    return "".join(rank.stdout + rank.stderr for rank in ranks)


def test_a_trainer_on_two_ranks(tmp_path: Path) -> None:
    """Each rank has its steps and its loss; what is logged is the mean of both, on the first."""
    out = launch(tmp_path, TRAINER)
    assert "stepwell" not in out
    steps, history = json.loads((tmp_path / "told.json").read_text())
    run = only_run(tmp_path)
    spans = run.spans().collect()
    iterations = spans.filter(pl.col("name") == "training_single_iteration")
    assert iterations.group_by("rank").len().sort("rank").rows() == [(0, steps), (1, steps)]
    # 26 samples are 13 for each rank, in batches of 4, of which two make up a step.
    loop = attributes_of(spans, "training_loop")[0]
    assert loop["train_iterations_target"] == steps == 2
    events = run.events().collect().filter(pl.col("name") == "training_metrics_update")
    updates = [json.loads(text) for text in events["attributes"]]
    assert [one["num_iterations"] for one in updates] == [2, 2]
    metrics = run.metrics().collect()
    logged = metrics.filter(pl.col("name") == "logged_loss").sort("step")
    assert logged["rank"].to_list() == [0, 0]
    assert logged["value"].to_list() == [entry["loss"] for entry in history if "loss" in entry]
    losses = metrics.filter(pl.col("name") == "loss").group_by("step").agg(pl.col("value").mean())
    assert losses.sort("step")["value"].to_list() == pytest.approx(logged["value"].to_list())
    saved = run.events().collect().filter(pl.col("name") == "save_checkpoint_success")
    assert sorted(saved["rank"]) == [0, 1]
    assert set(spans["status"]) == {"ok"}


@pytest.mark.full
@pytest.mark.parametrize("who", ["all", "main"])
def test_a_loop_of_accelerate_on_two_ranks(tmp_path: Path, who: str) -> None:
    """7 batches are 4 for each rank, one of them twice: 2 steps in each of 2 epochs."""
    launch(tmp_path, ACCELERATE, who)
    run = only_run(tmp_path)
    ranks = [0, 1] if who == "all" else [0]
    spans = run.spans().collect().filter(pl.col("name") == "step")
    assert spans.group_by("rank").len().sort("rank").rows() == [(rank, 4) for rank in ranks]
    metrics = run.metrics().collect().filter(pl.col("name") == "train/loss")
    assert metrics["rank"].to_list() == [0] * 4
    config = stepwell.open_run(run.path).config
    assert config["lr"] == 0.1
    assert config["accelerate"]["num_processes"] == 2
    assert config["accelerate"]["gradient_accumulation_steps"] == 2
