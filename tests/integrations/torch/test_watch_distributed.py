"""Two real ranks under ``watch``: data parallel, sharded, and only some of them recorded."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from stepwell.reading import RecordedRun
from tests.harness import recording_environment, run_ranks
from tests.integrations.torch.watched import curve, updates
from tests.nesting.tree import check_tree
from tests.processes.programs import only_run, write_program

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

HEAD = """
os.environ["STEPWELL_DIR"] = str(RUNS)
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()

def make():
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))

numbers = torch.Generator().manual_seed(rank)
items = TensorDataset(torch.rand(12, 4, generator=numbers), torch.rand(12, 1, generator=numbers))

def train(wrap, watched, **options):
    model = wrap(make())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(items, batch_size=4)
    watch = stepwell.watch(model, optimizer, loader, diagnostics=2, **options) if watched else None
    for _ in range(2):
        for x, y in loader:
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    if watch is not None:
        watch.close()
    return [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]

def same(wrap, **options):
    pairs = zip(train(wrap, False), train(wrap, True, **options), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
"""
WRAPPINGS = {
    "ddp": "same(torch.nn.parallel.DistributedDataParallel)",
    "fsdp2": """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
mesh = init_device_mesh("cpu", (2,))
same(lambda model: fully_shard(model, mesh=mesh) or model)
""",
}
TAIL = """
dist.destroy_process_group()
"""


def launch(folder: Path, program: str) -> RecordedRun:
    """Run this in two ranks; returns what they recorded."""
    env = recording_environment(folder / "runs")
    path = write_program(folder, HEAD + program + TAIL)
    run_ranks(path, env=env, cwd=folder, check=True)
    return only_run(folder)


@pytest.mark.parametrize("how", WRAPPINGS)
def test_two_ranks(tmp_path: Path, how: str) -> None:
    """Both count all samples; weights are those of training without; norms are of the whole."""
    run = launch(tmp_path, WRAPPINGS[how])
    assert run.status == "finished"
    spans = run.spans().collect()
    check_tree(spans)
    iterations = spans.filter(pl.col("name") == "training_single_iteration")
    assert iterations.group_by("rank").len().sort("rank").rows() == [(0, 6), (1, 6)]
    told = updates(run)
    assert [each["num_train_samples"] for each in told] == [2 * 4 * 6] * 2
    norms = curve(run, "gradient_norm/overall")
    # The norm of sharded gradients needs all ranks at once: only where it was asked for.
    steps = range(6) if how == "ddp" else (0, 2, 4)
    assert [step for step, _ in norms] == [step for step in steps for _ in range(2)]
    values = [value for _, value in norms]
    assert values[::2] == values[1::2]
    assert len(curve(run)) == 12


def test_some_ranks(tmp_path: Path) -> None:
    """Only those that are chosen record, with no collective that the others would have to join."""
    run = launch(
        tmp_path,
        """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
mesh = init_device_mesh("cpu", (2,))
os.environ["STEPWELL_STRICT"] = "0"
train(lambda model: fully_shard(model, mesh=mesh) or model, True, ranks=[1])
""",
    )
    assert set(run.spans().collect()["rank"]) == {1}
    assert updates(run)[-1]["num_iterations"] == 6
    assert curve(run, "gradient_norm/overall") == []
