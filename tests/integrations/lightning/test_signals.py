"""Signals during a fit: Lightning catches Ctrl-C, and ends the program with exit code 1."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.harness import TRAINERS, environment, run_script

FIT = """
import os, signal, sys
import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset
import stepwell
from stepwell.integrations.lightning import TelemetryCallback

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        if index == 3:
            os.kill(os.getpid(), getattr(signal, sys.argv[1]))
        return self.layer(batch[0]).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

run = stepwell.init("fit", dir="runs")
trainer = pl.Trainer(
    max_epochs=1, accelerator="cpu", logger=False, callbacks=[TelemetryCallback()],
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Model(), DataLoader(TensorDataset(torch.ones(64, 4)), 8))
"""


@pytest.mark.parametrize(
    ("name", "status"),
    [("SIGINT", "interrupted"), pytest.param("SIGTERM", "killed", marks=pytest.mark.full)],
)
def test_a_signal_during_a_fit(tmp_path: Path, name: str, status: str) -> None:
    """The run has the status and the signal that ended it, whatever Lightning exits with."""
    (tmp_path / "fit.py").write_text(FIT)
    run_script(
        tmp_path / "fit.py", name, cwd=tmp_path, env=environment(), timeout=240, modules=TRAINERS
    )
    (path,) = tmp_path.glob("runs/*/rank-*/process.json")
    about: dict[str, Any] = json.loads(path.read_text())
    assert (about["status"], about["signal"]) == (status, name)
