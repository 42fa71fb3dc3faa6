"""Workers of a DataLoader record items with the epoch and step that their parent was in at that moment."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from stepwell.reading import RecordedRun
from tests.harness import recording_environment, run_script
from tests.processes.programs import only_run, write_program

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

DATASET = """
import torch
from torch.utils.data import DataLoader, Dataset
from stepwell import ai
from stepwell.integrations.torch import annotate

class Numbers(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        with ai.data.item(args={"index": index}):
            pass
        with open("loaded", "a") as file:
            file.write(f"{index}\\n")
        return torch.ones(4) * index

def wait_for(count):
    # Until this number of items has been loaded.
    end = time.monotonic() + 100
    while not Path("loaded").exists() or len(Path("loaded").read_text().split()) < count:
        assert time.monotonic() < end
        time.sleep(0.005)
"""


def execute(folder: Path, program: str, *arguments: str) -> None:
    env = recording_environment(folder / "runs")
    path = write_program(folder, program, DATASET)
    run_script(path, *arguments, cwd=folder, env=env, check=True)


def items(run: RecordedRun) -> list[tuple[int, int | None, int | None]]:
    """Index, epoch and step of each item, and that it was recorded in a worker."""
    spans = run.spans().collect()
    processes = run.processes().collect().select("process", "role")
    found = spans.filter(pl.col("name") == "item").join(processes, on="process")
    assert set(found["role"]) == {"worker"}
    assert set(found["category"]) == {"data"}
    return sorted(
        (json.loads(text)["index"], epoch, step)
        for text, epoch, step in found.select("attributes", "epoch", "step").iter_rows()
    )


METHODS = ["fork", pytest.param("spawn", marks=pytest.mark.full)]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("persistent", [False, True])
def test_by_hand(tmp_path: Path, method: str, persistent: bool) -> None:
    """``ai.update(epoch=, step=)`` in the parent is seen by workers that live, or are made later."""
    program = """
    if __name__ == "__main__":
        run = stepwell.init(dir=RUNS)
        persistent = sys.argv[2] == "True"
        # One batch in the making at a time: asked for in a step, it is loaded in that step.
        loader = DataLoader(Numbers(), batch_size=2, num_workers=1, prefetch_factor=1,
            persistent_workers=persistent, multiprocessing_context=sys.argv[1])
        for epoch in range(2):
            ai.update(epoch=epoch, step=10 * epoch)
            batches = iter(loader)
            for i in range(4):
                wait_for(8 * epoch + 2 * i + 2)
                # The next() that takes batch i asks for batch i + 1.
                ai.update(epoch=epoch, step=10 * epoch + i)
                next(batches)
            del batches
        del loader
        run.finish()
    """
    execute(tmp_path, program, method, str(persistent))
    # Batch 0 is asked for by iter(), batch i + 1 when batch i is taken, in step i.
    expected = sorted(
        (index, epoch, 10 * epoch + max(0, index // 2 - 1))
        for epoch in range(2)
        for index in range(8)
    )
    assert items(only_run(tmp_path)) == expected


@pytest.mark.parametrize("method", METHODS)
def test_annotated(tmp_path: Path, method: str) -> None:
    """With a whole annotated loop the same holds, and the workers need nothing of it."""
    program = """
    if __name__ == "__main__":
        run = stepwell.init(dir=RUNS)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        loader = DataLoader(Numbers(), batch_size=2, num_workers=1, prefetch_factor=1,
            multiprocessing_context=sys.argv[1])
        annotate(model, optimizer, loader)
        for epoch in range(2):
            ai.update(epoch=epoch)
            for i, x in enumerate(loader):
                # The next batch is being made meanwhile, in this step.
                wait_for(8 * epoch + min(2 * i + 4, 8))
                model(x).sum().backward()
                optimizer.step()
        run.finish()
    """
    execute(tmp_path, program, method)
    run = only_run(tmp_path)
    # Step s is under way while batch s + 1 of the epoch is made; the first one of an epoch is
    # asked for and awaited before its step.
    assert items(run) == sorted(
        (index, epoch, 4 * epoch + max(0, index // 2 - 1))
        for epoch in range(2)
        for index in range(8)
    )
    main = run.spans().filter(pl.col("name") != "item").collect()
    # In each epoch the workers start, and end in a fetch without a batch.
    assert dict(main.group_by("name").len().iter_rows()) == {
        "dataloader": 2,
        "fetch": 8 + 2,
        "forward": 8,
        "backward": 8,
        "step": 8,
    }
