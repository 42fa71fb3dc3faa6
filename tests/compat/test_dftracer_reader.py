"""A storage benchmark written for dftracer: a reader of 200 decorated methods, read by two workers."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.nesting.tree import check_tree
from tests.processes.programs import execute, only_run, write_program

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

PROGRAM = """
import math
import os
import sys

import torch
from torch.utils.data import DataLoader, Dataset

from stepwell.compat.dftracer import DFTRACER_ENABLE, ai, dft_fn as Profile, dftracer as Tracer

METHOD = sys.argv[1]
FILES, BATCH, EPOCHS = 8, 2, 2
log_of_reader = Profile("reader")
log_of_loader = Profile("data_loader")


def open_trace(is_child):
    # A forked child has the log of its parent.
    if not DFTRACER_ENABLE or (is_child and METHOD == "fork"):
        return None
    suffix = f"-{os.getpid()}" if is_child else ""
    return Tracer.initialize_log(
        logfile=f"traces/trace-0-of-1{suffix}.pfw", data_dir="data:./data", process_id=0
    )


class Reader:
    @log_of_reader.log_init
    def __init__(self, epoch):
        self.epoch = epoch

    @log_of_reader.log
    def read_index(self, image_idx, step):
        self.image_idx, self.step = image_idx, step
        sizes = [stage(self, image_idx) for stage in STAGES]
        log_of_reader.update(image_size=sum(sizes))
        return torch.full((4,), image_idx)


def stage_named(name):
    def stage(self, image_idx):
        return image_idx + 1

    stage.__qualname__ = f"Reader.{name}"
    setattr(Reader, name, log_of_reader.log(stage))
    return getattr(Reader, name)


STAGES = [stage_named(f"stage_{number}") for number in range(198)]


class Files(Dataset):
    @log_of_loader.log_init
    def __init__(self, epoch):
        self.first_epoch = epoch
        self.reader = None
        self.count = 0
        self.log = None

    @log_of_loader.log
    def worker_init(self, worker_id):
        self.log = open_trace(is_child=True)
        self.reader = Reader(self.first_epoch)

    def __del__(self):
        if getattr(self, "log", None):
            self.log.finalize()

    @log_of_loader.log
    def __len__(self):
        return FILES

    @ai.data.item
    def __getitem__(self, image_idx):
        self.count += 1
        step = math.ceil(self.count / BATCH)
        log_of_loader.update(step=step)
        ai.update(step=step)
        return self.reader.read_index(image_idx, step)


class Loader:
    @log_of_loader.log_init
    def __init__(self, epoch):
        self.epoch = epoch
        dataset = Files(epoch)
        self.batches = DataLoader(
            dataset,
            batch_size=BATCH,
            num_workers=2,
            multiprocessing_context=METHOD,
            worker_init_fn=dataset.worker_init,
            persistent_workers=True,
        )

    @log_of_loader.log
    def next(self):
        step = 1
        for batch in ai.dataloader.fetch.iter(self.batches):
            log_of_loader.update(step=step)
            ai.update(step=step)
            step += 1
            yield batch
        self.epoch += 1
        log_of_loader.update(epoch=self.epoch)
        ai.update(epoch=self.epoch)


@ai.compute
def compute(batch):
    with ai.compute.forward:
        return batch.float().sum()


@ai.checkpoint.capture
def save(epoch):
    with ai.checkpoint.io.write(args={"bytes": 2**40}):
        pass


@ai.pipeline.train
def train(loader, epoch):
    ai.comm.barrier.start()
    ai.comm.barrier.stop()
    for batch in loader.next():
        compute(batch)


@ai
def main():
    with Profile(name="setup", cat="benchmark"):
        loader = Loader(epoch=1)
    ai.update(epoch=1)
    for epoch in ai.pipeline.epoch.iter(range(1, EPOCHS + 1), include_iter=False):
        ai.pipeline.epoch.start(metadata=True)
        train(loader, epoch)
        save(epoch)
        ai.pipeline.epoch.stop(metadata=True)
        # As hooks do: the last start is never stopped.
        ai.device.transfer.start()
        for _ in range(2):
            ai.device.transfer.stop()
            ai.device.transfer.start()


if __name__ == "__main__":
    os.environ["STEPWELL_DIR"] = str(RUNS)
    log = open_trace(is_child=False)
    main()
    log.finalize()
"""


@pytest.fixture(
    params=["fork", *(pytest.param(m, marks=pytest.mark.full) for m in ("spawn", "forkserver"))],
    scope="module",
)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where it ran, with workers that were started in one of the ways."""
    folder = tmp_path_factory.mktemp(request.param)
    execute(folder, write_program(folder, PROGRAM), request.param)
    return folder


@pytest.fixture
def spans(folder: Path) -> pl.DataFrame:
    """Its records, with the worker that wrote them."""
    run = only_run(folder)
    found = run.spans().collect()
    check_tree(found)
    return found.join(run.processes().collect().select("process", "worker"), on="process")


def test_all_of_it_is_there(spans: pl.DataFrame) -> None:
    """Every call of every method, and nothing that did not happen."""
    counts = Counter(spans["name"].to_list())
    stages = {name: counts.pop(name) for name in list(counts) if "stage_" in name}
    # 8 files in 2 epochs.
    assert stages == {f"Reader.stage_{number}": 16 for number in range(198)}
    lengths = counts.pop("Files.__len__")
    assert lengths >= 1  # as often as PyTorch asks
    assert counts == {
        "Reader.__init__": 2,
        "Reader.read_index": 16,
        "Files.__init__": 1,
        "Files.worker_init": 2,
        "item": 16,
        "Loader.__init__": 1,
        "Loader.next": 2,
        "fetch.iter": 8,
        "fetch.block": 8,
        "compute": 8,
        "forward": 8,
        "capture": 2,
        "checkpoint.io.write": 2,
        "train": 2,
        "barrier": 2,
        "ai_root": 1,
        "setup": 1,
        "epoch.block": 2,
        # Two in each epoch, and the one that was open in the end.
        "transfer": 5,
    }
    categories = set(spans.select("name", "category").iter_rows())
    assert {("Reader.read_index", "reader"), ("Loader.next", "data_loader")} <= categories
    assert Counter(spans.filter(pl.col("status") != "ok")["name"]) == {"transfer": 1}


def test_workers_are_told_apart(spans: pl.DataFrame) -> None:
    """Each of the two reads half of the files, in the epoch of its parent and the step that it counts."""
    reads = spans.filter(pl.col("name") == "Reader.read_index")
    assert sorted(reads["worker"].to_list()) == [0] * 8 + [1] * 8
    found = sorted(reads.select("worker", "step").iter_rows())
    assert found == [(worker, step) for worker in (0, 1) for step in (1, 1, 2, 2, 3, 3, 4, 4)]
    items = spans.filter(pl.col("name") == "item")
    assert Counter(items["epoch"].to_list()) == {1: 8, 2: 8}


def test_arguments_of_calls(spans: pl.DataFrame) -> None:
    """Those of the call and of the reader, and what was set inside the call."""
    reads: list[dict[str, Any]] = [
        json.loads(text)
        for text in spans.filter(pl.col("name") == "Reader.read_index")["attributes"]
    ]
    # The epoch is the reader's own attribute.
    assert {read["epoch"] for read in reads} == {1}
    assert Counter(read["image_idx"] for read in reads) == dict.fromkeys(range(8), 2)
    assert {read["image_size"] - 198 * (read["image_idx"] + 1) for read in reads} == {0}
    stages = spans.filter(pl.col("name") == "Reader.stage_7")["attributes"]
    assert sorted(json.loads(text)["image_idx"] for text in stages) == sorted([*range(8)] * 2)
    (bytes_written,) = set(spans.filter(pl.col("name") == "checkpoint.io.write")["attributes"])
    assert json.loads(bytes_written) == {"bytes": 2**40}


def test_the_traces(folder: Path, spans: pl.DataFrame) -> None:
    """The main process has the name that was asked for, workers have files beside it; each line is JSON."""
    names = sorted(path.name for path in (folder / "traces").iterdir())
    assert names[0].endswith("-fork.pfw")
    assert names[1].endswith("-fork.pfw")
    assert names[2:] == ["trace-0-of-1.pfw"]
    found: Counter[str] = Counter()
    for name in names:
        first, *middle, last = (folder / "traces" / name).read_text().splitlines()
        assert (first, last) == ("[", "]")
        records = [json.loads(line) for line in middle]
        found.update(r["name"] for r in records if r["ph"] == "X" and r["cat"] != "dftracer")
        notes = [r["args"]["name"] for r in records if r["name"] == "CM"]
        assert ("epoch.start" in notes) == (name == "trace-0-of-1.pfw")
    assert found == Counter(spans["name"].to_list())
