"""Step and epoch of spans recorded by DataLoader workers."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from tests.processes.programs import execute, only_run, write_program

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

PROGRAM = """
from torch.utils.data import DataLoader
from stepwell import ai

class Images:
    read = 0

    def __len__(self):
        return 8

    @ai.data.item
    def __getitem__(self, index):
        with ai.data.preprocess(index=index):
            pass
        self.read += 1
        KEYWORDS
        with ai.data.io.read(index=index):
            stepwell.log({"read": float(index)})
            stepwell.event("read", index=index)
        return index

run = stepwell.init(dir=RUNS)
loader = DataLoader(Images(), batch_size=2, num_workers=2, persistent_workers=True)
for epoch in range(3):
    ai.update(epoch=epoch, step=100 + epoch)
    assert len(list(loader)) == 4
del loader
run.finish()
"""


def records(folder: Path, update: str) -> dict[str, list[tuple[int, int | None, int | None]]]:
    """Index, step and epoch of what the workers recorded, by table."""
    execute(folder, write_program(folder, PROGRAM.replace("KEYWORDS", update)))
    run = only_run(folder)
    spans = run.spans().collect().filter(pl.col("name").is_in(["preprocess", "data.io.read"]))
    found: dict[str, list[tuple[int, int | None, int | None]]] = {}
    for name, step, epoch, text in spans.select("name", "step", "epoch", "attributes").iter_rows():
        found.setdefault(name, []).append((json.loads(text)["index"], step, epoch))
    for value, step, epoch in run.metrics().collect().select("value", "step", "epoch").iter_rows():
        found.setdefault("metrics", []).append((int(value), step, epoch))
    rows = run.events().collect().select("step", "epoch", "attributes").iter_rows()
    found["events"] = [(json.loads(text)["index"], step, epoch) for step, epoch, text in rows]
    return {name: sorted(rows, key=str) for name, rows in found.items()}


def test_a_worker_that_sets_the_step_keeps_the_epoch(tmp_path: Path) -> None:
    """The step is the worker's own from when it sets one, the epoch always that of its parent."""
    found = records(tmp_path, "ai.update(step=self.read)")
    # Each worker reads four of the eight items of an epoch.
    epochs = {
        name: sorted((index, epoch) for index, _, epoch in rows) for name, rows in found.items()
    }
    every = sorted((index, epoch) for index in range(8) for epoch in range(3))
    assert epochs == dict.fromkeys(["preprocess", "data.io.read", "metrics", "events"], every)
    own = sorted([*range(1, 13)] * 2)
    for name in ("data.io.read", "metrics", "events"):
        assert sorted(step or 0 for _, step, _ in found[name]) == own
    # What is recorded before the first call has the step of the parent.
    assert sorted(step or 0 for _, step, _ in found["preprocess"]) == sorted(
        [100, 100, *[*range(1, 12)] * 2]
    )


def test_a_worker_that_sets_the_epoch_keeps_the_step(tmp_path: Path) -> None:
    """The other way round, too."""
    found = records(tmp_path, "ai.update(epoch=50)")
    rows = sorted((index, 100 + epoch, 50) for index in range(8) for epoch in range(3))
    assert {name: sorted(found[name]) for name in ("data.io.read", "metrics", "events")} == (
        dict.fromkeys(["data.io.read", "metrics", "events"], rows)
    )
