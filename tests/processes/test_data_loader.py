"""Workers of a torch DataLoader record with their number, and leave no files behind."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from tests.nesting.tree import check_tree, edges
from tests.processes.programs import execute, files_of, only_run, write_program

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

DATASET = """
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        with stepwell.span("load", index=index):
            stepwell.log({"read": float(index)})
        return index
"""


@pytest.mark.parametrize(
    "method",
    # Here each worker imports PyTorch.
    ["fork", *(pytest.param(name, marks=pytest.mark.full) for name in ("spawn", "forkserver"))],
)
def test_workers_record(tmp_path: Path, method: str) -> None:
    """Each item is loaded by a worker with a number, in the epoch that its parent was in."""
    program = """
    if __name__ == "__main__":
        run = stepwell.init(dir=RUNS)
        loader = DataLoader(
            Numbers(), batch_size=4, num_workers=2, multiprocessing_context=sys.argv[1]
        )
        for epoch in range(2):
            run.set_step(4 * epoch, epoch=epoch)
            with run.span("epoch"):
                for i, batch in enumerate(loader):
                    with run.span("step"):
                        assert batch.tolist() == list(range(4 * i, 4 * i + 4))
        run.finish()
    """
    execute(tmp_path, write_program(tmp_path, program, DATASET), method)
    run = only_run(tmp_path)
    spans = run.spans().collect()
    check_tree(spans)
    assert edges(spans) == {("epoch", None): 2, ("step", "epoch"): 8, ("load", None): 32}
    loads = spans.filter(pl.col("name") == "load")
    processes = run.processes().collect()
    loads = loads.join(processes.select("process", "worker", "role"), on="process")
    assert set(loads["role"]) == {"worker"}
    assert set(loads["rank"]) == {0}
    seen = {
        (json.loads(text)["index"], worker, epoch)
        for text, worker, epoch in loads.select("attributes", "worker", "epoch").iter_rows()
    }
    # Batches of four go to the two workers in turn.
    assert seen == {(i, i // 4 % 2, epoch) for i in range(16) for epoch in range(2)}
    names = processes.filter(pl.col("role") == "worker")["name"].to_list()
    assert sorted(names) == ["worker-0", "worker-0", "worker-1", "worker-1"]
    read = run.metrics().collect()
    assert sorted(read["value"]) == sorted([float(i) for i in range(16)] * 2)
    assert set(read.select("step", "epoch").iter_rows()) == {(0, 0), (4, 1)}
    assert not any("workers/" in name for name in files_of(run))


@pytest.mark.full
def test_fifty_epochs_leave_no_more_files_than_one(tmp_path: Path) -> None:
    """Workers that come and go with each epoch are folded in, while running and in the end."""
    program = """
    def files(run):
        return sorted(
            path.suffix for path in run.path.rglob("*") if path.is_file() and path.name[0] != "."
        )

    for epochs in (1, 50):
        run = stepwell.init(dir=RUNS, run_id=f"epochs-{epochs}")
        loader = DataLoader(Numbers(), batch_size=8, num_workers=2)
        for epoch in range(epochs):
            run.set_step(epoch, epoch=epoch)
            with run.span("epoch"):
                assert len(list(loader)) == 2
        assert run.flush()
        running = files(run)
        run.finish()
        print(json.dumps([running, files(run)]))
    """
    printed = execute(tmp_path, write_program(tmp_path, program, DATASET))
    one, fifty = (json.loads(line) for line in printed.splitlines())
    assert fifty[0] == one[0]
    assert fifty[1] == one[1]
    run = next(r for r in (Path(tmp_path) / "runs").iterdir() if r.name == "epochs-50")
    from stepwell import open_run

    recorded = open_run(run)
    spans = recorded.spans().collect()
    assert edges(spans) == {("epoch", None): 50, ("load", None): 800}
    loads = spans.filter(pl.col("name") == "load")
    assert loads["process"].n_unique() == 100
    per_epoch = loads.group_by("epoch").len().sort("epoch")
    assert per_epoch.rows() == [(epoch, 16) for epoch in range(50)]
    assert recorded.processes().collect().height == 101


def test_persistent_workers(tmp_path: Path) -> None:
    """Workers that live as long as the loader record every epoch, and are folded in at the end."""
    program = """
    run = stepwell.init(dir=RUNS)
    loader = DataLoader(Numbers(), batch_size=4, num_workers=2, persistent_workers=True)
    for epoch in range(5):
        run.set_step(epoch, epoch=epoch)
        assert len(list(loader)) == 4
    assert run.flush()
    assert stepwell.open_run(run.path).spans().collect().height == 80
    del loader
    run.finish()
    """
    execute(tmp_path, write_program(tmp_path, program, DATASET))
    run = only_run(tmp_path)
    spans = run.spans().collect()
    assert edges(spans) == {("load", None): 80}
    assert spans["process"].n_unique() == 2
    per_epoch = spans.group_by("epoch").len().sort("epoch")
    assert per_epoch.rows() == [(epoch, 16) for epoch in range(5)]
    assert not any("workers/" in name for name in files_of(run))
