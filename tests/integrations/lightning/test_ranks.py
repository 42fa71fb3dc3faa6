"""Several processes: each rank records its own part of one run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import stepwell
from tests.harness import TRAINERS, environment, run_ranks, run_script
from tests.nesting.tree import check_tree, edges

pytestmark = pytest.mark.torch

PROGRAM = """
import os, sys, warnings
warnings.simplefilter("ignore")
import torch
import lightning.pytorch as pl
from stepwell.integrations.lightning import hook_trainer_cls


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    torch.manual_seed(1)
    data = torch.utils.data.TensorDataset(torch.randn(48, 3), torch.randn(48, 1))
    batches = torch.utils.data.DataLoader(data, batch_size=4)
    trainer = hook_trainer_cls(pl.Trainer)(
        max_epochs=2, accelerator="cpu", devices=2, strategy=sys.argv[1], logger=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=os.getcwd(),
    )
    trainer.fit(Model(), batches, batches)
"""
STEPS = 12
"""Of the 12 batches in an epoch each of the two ranks gets half."""
TREE = {
    ("application", None): 1,
    ("distributed_code_initialization", "application"): 1,
    ("model_initialization", "application"): 1,
    ("optimizer_initialization", "application"): 1,
    ("data_loader_initialization", "application"): 2,
    ("validation_loop", "application"): 1,
    ("validation_loop", "training_loop"): 2,
    ("validation_single_iteration", "validation_loop"): 2 + STEPS,
    ("data_loading", "validation_loop"): 2 + STEPS,
    ("model_forward", "validation_single_iteration"): 2 + STEPS,
    ("training_loop", "application"): 1,
    ("data_loading", "training_loop"): STEPS,
    ("training_single_iteration", "training_loop"): STEPS,
    ("model_forward", "training_single_iteration"): STEPS,
    ("model_backward", "training_single_iteration"): STEPS,
    ("optimizer_update", "training_single_iteration"): STEPS,
    ("diagnostics", "training_single_iteration"): 1,
    ("checkpoint_save_sync", "training_loop"): 2,
}


def _launch(folder: Path, strategy: str, ranks: int = 0) -> stepwell.reading.RecordedRun:
    """Run the program in several ranks, or once where Lightning starts the others."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    options: dict[str, Any] = {
        "cwd": folder,
        "env": environment(STEPWELL_STRICT="1"),
        "check": True,
        "timeout": 240,
        "modules": TRAINERS,
    }
    if ranks:
        run_ranks(program, strategy, world=ranks, **options)
    else:
        run_script(program, strategy, **options)
    (run,) = stepwell.list_runs(folder / "runs")
    assert run.status == "finished"
    return run


def _check(run: stepwell.reading.RecordedRun, spans: pl.DataFrame, process: str) -> None:
    check_tree(spans)
    assert dict(edges(spans)) == TREE
    assert set(spans["status"]) == {"ok"}
    events = run.events().collect().filter(pl.col("process") == process)
    (update,) = events.filter(pl.col("name") == "training_metrics_update")["attributes"]
    found = pl.Series([update]).str.json_decode(
        pl.Struct({"num_iterations": pl.Int64, "num_train_samples": pl.Int64})
    )
    # Samples are those of both ranks.
    assert found[0] == {"num_iterations": STEPS, "num_train_samples": 2 * 4 * STEPS}
    assert events.filter(pl.col("name") == "telemetry_data_error").height == 0


def test_ranks_of_a_launcher(tmp_path: Path) -> None:
    """Two ranks, as torchrun starts them: one run, both with the whole tree and the same counters."""
    run = _launch(tmp_path, "ddp", ranks=2)
    processes = run.processes().collect().sort("rank")
    assert processes["rank"].to_list() == [0, 1]
    spans = run.spans().collect()
    for process in processes["process"]:
        _check(run, spans.filter(pl.col("process") == process), process)


@pytest.mark.parametrize(
    "strategy", ["ddp_fork", pytest.param("ddp_spawn", marks=pytest.mark.full)]
)
def test_processes_that_lightning_makes(tmp_path: Path, strategy: str) -> None:
    """They record as children of the process that has started them, and say which ranks they are."""
    run = _launch(tmp_path, strategy)
    children = run.processes().collect().filter(pl.col("role") == "worker")
    spans = run.spans().collect()
    ranks = []
    for process in children["process"]:
        mine = spans.filter(pl.col("process") == process)
        _check(run, mine, process)
        (text,) = mine.filter(pl.col("name") == "application")["attributes"]
        ranks.append(text)
    assert sorted(ranks) == [f'{{"rank":{rank},"world_size":2}}' for rank in range(2)]


@pytest.mark.full
def test_ranks_that_lightning_starts(tmp_path: Path) -> None:
    """With its own launcher of scripts all ranks write one run as well."""
    run = _launch(tmp_path, "ddp")
    processes = run.processes().collect().sort("rank")
    found = processes.select("rank", "local_rank", "attempt", "role").rows()
    assert found == [(0, 0, 0, "main"), (1, 1, 0, "main")]
    spans = run.spans().collect()
    for process in processes["process"]:
        _check(run, spans.filter(pl.col("process") == process), process)
