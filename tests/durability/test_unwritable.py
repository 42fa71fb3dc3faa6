"""Folders that cannot be written, or are removed: training continues, with one warning."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import textwrap
from pathlib import Path

import polars as pl
import pytest

from tests.durability.helpers import (
    Child,
    main_process,
    mounted,
    numbers,
    only_run,
    remount,
    remove,
    run_script,
    values,
)
from tests.harness import wait_until

TRAIN = """
def train(begin, count):
    for i in range(begin, begin + count):
        with span("item", i=i) as item:
            item.set(more=1)
            log({"loss": float(i)}, step=i)
            set_step(i)
            event("tick", i=i)
"""
NOBODY = 65534
WATCHED = """
import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(TensorDataset(torch.ones(32, 4)), 8)
stepwell.watch(model, optimizer, loader)
for _ in range(2):
    for (batch,) in loader:
        model(batch).mean().backward()
        optimizer.step()
"""


def _expect_one_warning(child: Child) -> None:
    (warning,) = child.do("answer = warnings")
    assert "cannot write to" in warning
    assert "Training continues" in warning


def test_path_below_file(tmp_path: Path) -> None:
    """A folder that cannot exist, being below a file, costs one warning and nothing else."""
    (tmp_path / "file").write_text("in the way")
    with Child(tmp_path) as child:
        child.do(TRAIN + "run = init('x', dir='file/runs')\ntrain(0, 1000)")
        child.do("run.artifact(b'1234', 'four')")
        child.do(WATCHED)
        child.do("answer = run.flush(1); run.finish(timeout=60)")
        _expect_one_warning(child)
        assert child.end() == 0
        assert "stepwell report" not in child.stderr()
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.mark.root
def test_read_only_file_system(tmp_path: Path) -> None:
    """On a read-only file system calls do nothing and are counted; recording begins, without a
    restart, when it can be written.
    """
    with mounted("tmpfs", 24, tmp_path) as disk:
        remount(disk, "ro")
        with Child(tmp_path) as child:
            child.do(TRAIN + f"run = init('x', dir={str(disk)!r})\ntrain(0, 1000)")
            _expect_one_warning(child)
            remount(disk, "rw")
            wait_until(lambda: list(disk.glob("*/*/process.json")))
            child.do("train(1000, 500)")
            child.do("run.finish()")
            _expect_one_warning(child)
        run = only_run(disk)
        assert numbers(run, "item") == list(range(1000, 1500))
        assert values(run, "loss") == [float(i) for i in range(1000, 1500)]
        # A span, two attribute sets that went with it, a metric, a step and an event for each.
        assert main_process(run)["dropped"] >= 3 * 1000
        assert run.status == "finished"


@pytest.mark.root
def test_no_permission(tmp_path: Path) -> None:
    """Somebody who may not write there trains undisturbed, with one warning."""
    if os.geteuid() != 0:
        pytest.skip("needs root: it becomes another user")
    # pytest's own folders are closed to others.
    place = Path("/tmp") / f"stepwell-closed-{os.getpid()}"
    place.mkdir(mode=0o755)
    try:
        with Child(tmp_path) as child:
            # Once as root, so that all is imported: the user "nobody" cannot read packages of root.
            child.do(TRAIN + "run = init('x', dir='runs')\ntrain(0, 10)\nrun.finish()")
            child.do(f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})")
            child.do(f"run = init('x', dir={str(place)!r})\ntrain(0, 1000)")
            _expect_one_warning(child)
            child.do("run.finish(timeout=60)")
            _expect_one_warning(child)
            assert child.end() == 0
        assert list(place.iterdir()) == []
    finally:
        shutil.rmtree(place)


IMMUTABLE = """
import subprocess
def immutable(sign):
    os.sync()  # else the pages may still be written to
    subprocess.run(["chattr", "-R", sign + "i", str(run.path.parent)], check=True)
"""


@pytest.mark.root
@pytest.mark.parametrize("before", ["", "import faulthandler; faulthandler.enable()"])
def test_pages_that_may_not_be_written(tmp_path: Path, before: str) -> None:
    """A store that the file system refuses would be a SIGBUS: the segment goes on in memory, and is written
    when the file system takes it again.
    """
    with mounted("ext4", 64, tmp_path) as disk, Child(tmp_path) as child:
        child.do(f"{before}\n{TRAIN}{IMMUTABLE}run = init('x', dir={str(disk)!r})\ntrain(0, 1000)")
        child.do("immutable('+')")
        try:
            child.do("train(1000, 2000)")
            _expect_one_warning(child)
        finally:
            child.do("immutable('-')")
        child.do("train(3000, 1000)")
        child.do("run.finish()")
        assert child.end() == 0
        run = only_run(disk)
        assert numbers(run, "item") == list(range(4000))
        assert values(run, "loss") == [float(i) for i in range(4000)]
        assert run.status == "finished"


@pytest.mark.root
def test_the_end_waits_for_pages_that_may_not_be_written(tmp_path: Path) -> None:
    """A run that finishes while the file system refuses its records waits a moment for it."""
    with mounted("ext4", 64, tmp_path) as disk, Child(tmp_path) as child:
        child.do(f"{TRAIN}{IMMUTABLE}run = init('x', dir={str(disk)!r})\ntrain(0, 1000)")
        child.do("immutable('+'); train(1000, 2000)")
        child.do("import threading; threading.Timer(1, immutable, '-').start()")
        child.do("run.finish()")
        _expect_one_warning(child)
        assert child.end() == 0
        run = only_run(disk)
        assert numbers(run, "item") == list(range(3000))
        assert values(run, "loss") == [float(i) for i in range(3000)]
        assert run.status == "finished"


@pytest.mark.full
@pytest.mark.root
@pytest.mark.parametrize("ending", ["finish", "kill"])
def test_pages_that_are_never_written_again(tmp_path: Path, ending: str) -> None:
    """Killed or finished while the file system refuses: earlier records are there; losses are counted."""
    with mounted("ext4", 64, tmp_path) as disk, Child(tmp_path) as child:
        child.do(f"{TRAIN}{IMMUTABLE}run = init('x', dir={str(disk)!r})")
        child.do("drops = run._recorder.journal.drops")
        child.do("train(0, 1000); immutable('+'); train(1000, 3000)")
        try:
            if ending == "kill":
                child.kill()
            else:
                child.do("run.finish(timeout=1)")
                drops = child.do("answer = dict(drops)")
                refused, lost = child.do("answer = warnings")
                assert child.end() == 0
        finally:
            subprocess.run(["chattr", "-R", "-i", str(disk)], check=True)
        run = only_run(disk)
        kept = numbers(run, "item")
        assert kept[:1000] == list(range(1000))
        if ending == "finish":
            assert "cannot write to" in refused
            assert "They are lost." in lost
            assert drops["spans"] == 4000 - len(kept)


@pytest.mark.parametrize("by", ["another process", "a mapping of its own"])
def test_other_bus_errors_end_the_process_as_ever(tmp_path: Path, by: str) -> None:
    """Only stores to segments are survived."""
    code = {
        # Not before this one sleeps: a handler in Python can run then.
        "another process": """
            import subprocess
            subprocess.Popen(["sh", "-c", f"sleep 1; kill -BUS {os.getpid()}"])
        """,
        "a mapping of its own": """
            import mmap
            with open("file", "w+b") as file:
                file.truncate(8192)
                memory = mmap.mmap(file.fileno(), 8192)
                file.truncate(0)
            memory[5000] = 1
        """,
    }[by]
    done = run_script(
        f"run = init('x', dir='runs')\nlog({{'loss': 1.0}})\n{textwrap.dedent(code)}\ntime.sleep(60)",
        tmp_path,
    )
    assert done.returncode == -signal.SIGBUS
    assert values(only_run(tmp_path / "runs"), "loss") == [1.0]


@pytest.mark.full
def test_deleted_while_live(tmp_path: Path) -> None:
    """Rm -rf of the run folder while it is written: training crosses roll-overs and finishes."""
    with Child(tmp_path) as child:
        child.do(TRAIN + "run = init('x', dir='runs')\ntrain(0, 1000)")
        remove(tmp_path / "runs")
        child.do("outer = span('outer'); outer.__enter__()\ntrain(0, 40_000)")
        child.do("with span('new name'): log({'new metric': 1.0}); event('new event')")
        child.do("outer.__exit__(None, None, None); run.finish(timeout=1)")
        assert len(child.do("answer = warnings")) == 1
        assert child.end() == 0


@pytest.mark.full
def test_deleted_then_another_run(tmp_path: Path) -> None:
    """After a run folder was deleted, the same process can record the next run in full."""
    with Child(tmp_path) as child:
        child.do(TRAIN + "run = init('one', dir='runs')\ntrain(0, 1000)")
        remove(tmp_path / "runs")
        child.do("train(0, 20_000); run.finish(timeout=1)")
        child.do("run = init('two', dir='runs')\ntrain(0, 500)\nrun.finish()")
    run = only_run(tmp_path / "runs")
    assert numbers(run, "item") == list(range(500))
    assert main_process(run)["dropped"] == 0
    names = set(run.spans().select(pl.col("name").unique()).collect()["name"])
    assert names == {"item"}
