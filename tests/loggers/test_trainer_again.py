"""A trainer that trains twice, on two processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness import environment, run_ranks

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

PROGRAM = """
import torch
from torch.utils.data import TensorDataset
from stepwell.integrations.torch import TorchTrainer

data = TensorDataset(torch.randn(8, 4), torch.randint(0, 3, (8,)))
model = torch.nn.Linear(4, 3)
config = {"batch_size": 2, "num_workers_dataloader": 0}
trainer = TorchTrainer(config=config, epochs=2, model=model, strategy="ddp", random_seed=1)
for _ in range(2):
    *_, trained = trainer.execute(data)
    assert trained is model
    assert trainer.train_glob_step == 4
print("done")
"""


def test_it_can_be_executed_again_on_two_processes(tmp_path: Path) -> None:
    """The second time there is another process group, which the model must use."""
    env = environment(STEPWELL_DIR=str(tmp_path / "runs"))
    ranks = run_ranks(PROGRAM, cwd=tmp_path, env=env, check=True)
    assert [rank.stdout for rank in ranks] == ["done\n", "done\n"]
