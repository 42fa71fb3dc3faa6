"""After ``kill -9`` the losses of all steps that had ended are in the run, whatever the trainer logs."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("lightning")
pytest.importorskip("transformers")

import stepwell
from tests.harness import TRAINERS, environment, run_script
from tests.integrations.trainers import curve

pytestmark = pytest.mark.torch
TRAINER = """
import os
from pathlib import Path
from transformers import Trainer
from stepwell.integrations.transformers import StepwellCallback
from tests.integrations.trainers import make_trainer

losses = []

class Killed(Trainer):
    def training_step(self, *args, **kwargs):
        if len(losses) == 9:
            Path("losses.json").write_text(str(losses))
            os.kill(os.getpid(), 9)
        loss = super().training_step(*args, **kwargs)
        losses.append(loss.item())
        return loss

# It would log for the first time after 500 steps.
make_trainer(Path("."), [StepwellCallback(dir="runs")], cls=Killed, logging_steps=500).train()
"""
LIGHTNING = """
import os
from pathlib import Path
from tests.integrations.lightning.fits import hooked, loader, model_class, options

class Killed(model_class()):
    def on_train_batch_start(self, batch, batch_idx):
        if len(self.losses) == 9:
            Path("losses.json").write_text(str(self.losses))
            os.kill(os.getpid(), 9)

hooked()(**options(max_epochs=2, log_every_n_steps=500)).fit(Killed(), loader())
"""


@pytest.mark.parametrize("script", [TRAINER, LIGHTNING], ids=["transformers", "lightning"])
def test_losses_survive(tmp_path: Path, script: str) -> None:
    variables = environment(STEPWELL_DIR=str(tmp_path / "runs"))
    done = run_script(script, modules=TRAINERS, cwd=tmp_path, env=variables)
    assert done.returncode == -signal.SIGKILL, done.stderr
    (run,) = stepwell.list_runs(tmp_path / "runs")
    losses = json.loads((tmp_path / "losses.json").read_text())
    assert len(losses) == 9
    assert curve(run, "loss") == [(i, pytest.approx(loss)) for i, loss in enumerate(losses)]
