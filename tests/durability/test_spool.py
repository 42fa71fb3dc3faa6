"""The spool: live files on the node, copies by plain writes in a run folder on a network."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import stepwell
from stepwell._core import system
from tests.durability.helpers import (
    Child,
    attributes,
    files_below,
    main_process,
    numbers,
    only_run,
    remove,
    values,
)
from tests.durability.verify import Tables, verify
from tests.durability.victims import WITHOUT_END, Nursery
from tests.durability.watcher import check_attributes, check_spans
from tests.durability.workload import ITEM_OUT, LEAF_OUT, METRIC, THREADS
from tests.harness import wait_until

TRAIN = """
def train(begin, count):
    for i in range(begin, begin + count):
        with span("item", i=i):
            pass
        log({"loss": float(i)}, step=i)
        if i % 100 == 0:
            event("tick", i=i)
"""


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    """A child with a spool."""
    with Child(tmp_path, STEPWELL_SPOOL=str(tmp_path / "spool")) as child:
        child.do(TRAIN + "run = init('spooled', dir='runs')")
        yield child


def _move_spool_away(tmp_path: Path) -> None:
    (tmp_path / "spool").rename(tmp_path / "out of sight")


def test_live_files(child: Child, tmp_path: Path) -> None:
    """Live files are in the spool, which process.json names, and a reader on the node sees them."""
    child.do("train(0, 1000)")
    run = only_run(tmp_path / "runs")
    spool = Path(main_process(run)["spool"])
    assert spool.is_relative_to(tmp_path / "spool")
    assert files_below(spool, "spans-*.live") == ["spans-00000.live"]
    assert numbers(run, "item") == list(range(1000))
    assert values(run, "loss") == [float(i) for i in range(1000)]
    child.kill()
    assert numbers(only_run(tmp_path / "runs"), "item") == list(range(1000))


def test_nothing_is_mapped_in_run_folder(child: Child, tmp_path: Path) -> None:
    """The process maps no file of the run folder, which may be on NFS."""
    child.do("train(0, 40_000); run.flush()")
    maps = child.do("answer = open('/proc/self/maps').read()")
    assert str(tmp_path / "spool") in maps
    assert str(tmp_path / "runs") not in maps


def test_copies(child: Child, tmp_path: Path) -> None:
    """Who cannot see the spool reads what was copied: all that is a second or two old."""
    outer = "outer = span('outer', a=1); outer.__enter__(); outer.set(b=2)"
    child.do(f"{outer}\ntrain(0, 30_000)\nwith span('new name'): pass")
    child.do("run.flush()")
    child.kill()
    _move_spool_away(tmp_path)
    run = only_run(tmp_path / "runs")
    assert numbers(run, "item") == list(range(30_000))
    assert values(run, "loss") == [float(i) for i in range(30_000)]
    assert run.events().collect().height == 300
    (opened,) = run.open_spans().collect().to_dicts()
    assert (opened["name"], json.loads(opened["attributes"])) == ("outer", {"a": 1, "b": 2})
    assert run.status == "killed"
    assert not run.spans().filter(pl.col("name") == "new name").collect().is_empty()


@pytest.mark.full
def test_copies_appear_by_themselves(child: Child, tmp_path: Path) -> None:
    """Without a flush the copies are made in the background, and a span's end follows its start."""
    child.do("outer = span('outer'); outer.__enter__(); train(0, 100)")
    wait_until(lambda: _copied(tmp_path, "item") == ["ok"] * 100)
    assert _copied(tmp_path, "outer") == ["open"]
    child.do("outer.set(late=1)")
    wait_until(lambda: _without_spool(tmp_path, "outer")["attributes"].to_list() == ['{"late":1}'])
    child.do("outer.__exit__(None, None, None)")
    wait_until(lambda: _copied(tmp_path, "outer") == ["ok"])


def _elsewhere(runs: Path) -> Any:
    """The run as another node reads it, from a copy of its folder; None when that just changed."""
    copy = runs.with_name("elsewhere")
    shutil.rmtree(copy, ignore_errors=True)
    try:
        shutil.copytree(runs, copy, ignore=shutil.ignore_patterns(".*"))
    except shutil.Error:
        return None
    for path in copy.glob("*/*/process.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "spool": None}))
    return only_run(copy)


def _without_spool(tmp_path: Path, name: str) -> pl.DataFrame:
    run = wait_until(lambda: _elsewhere(tmp_path / "runs"))
    return run.spans().filter(pl.col("name") == name).collect()


def _copied(tmp_path: Path, name: str) -> list[str]:
    return _without_spool(tmp_path, name)["status"].to_list()


def test_every_end_is_copied(child: Child, tmp_path: Path) -> None:
    """Spans that end while they are being copied are copied once more."""
    code = """
def restless(number):
    for _ in range(400):
        opened = [span(f"deep-{number}-{k}") for k in range(20)]
        for one in opened: one.__enter__()
        time.sleep(0.0005)
        for one in reversed(opened): one.__exit__(None, None, None)
    done.append(number)
    time.sleep(600)
done = []
sys.setswitchinterval(1e-5)
for number in range(4):
    threading.Thread(target=restless, args=(number,), daemon=True).start()
while len(done) < 4: run.flush()
run.flush()
"""
    child.do(code)
    child.kill()
    _move_spool_away(tmp_path)
    run = only_run(tmp_path / "runs")
    assert run.spans().collect()["status"].value_counts().rows() == [("ok", 4 * 400 * 20)]


def test_finish(child: Child, tmp_path: Path) -> None:
    """After finish everything is in the run folder, and nothing is left in the spool."""
    child.do("train(0, 30_000)\npid = os.fork()\nif pid == 0:\n    train(0, 100); os._exit(0)")
    child.do("os.waitpid(pid, 0); run.finish()")
    assert child.do("answer = warnings") == []
    assert [p for p in (tmp_path / "spool").rglob("*") if p.is_file()] == []
    _move_spool_away(tmp_path)
    run = only_run(tmp_path / "runs")
    assert files_below(run.path, "*.live") == []
    items = run.spans().filter(pl.col("name") == "item").collect()
    assert sorted(a["i"] for a in attributes(items)) == sorted([*range(30_000), *range(100)])
    assert run.status == "finished"


@pytest.mark.full
@pytest.mark.torch
def test_kill_and_lose_spool(tmp_path: Path) -> None:
    """Kill -9 in the midst of it, the spool gone with its node: what had been copied is whole; with
    the spool nothing is missing.
    """
    nursery = Nursery(STEPWELL_SPOOL=str(tmp_path / "spool"))
    try:
        for number in range(3):
            folder = tmp_path / str(number)
            victim = nursery.start(folder, WITHOUT_END if number == 1 else 0, rest=0.001)
            rows = [victim.book.thread(n) for n in range(THREADS)]
            marks = [[row[k] for row in rows] for k in (ITEM_OUT, METRIC, LEAF_OUT)]
            wait_until(partial(_has_copied, folder / "runs", marks), seconds=60)
            victim.kill()
            run = only_run(folder / "runs")
            verify(Tables(run), victim.book)
            remove(tmp_path / "spool")
            _is_whole(stepwell.open_run(run.path), marks)
    finally:
        nursery.close()


def _has_copied(runs: Path, marks: list[list[int]]) -> bool:
    """Whether what had been recorded at these marks has reached the run folder."""
    run = _elsewhere(runs)
    if run is None:
        return False
    metrics = Counter(run.metrics().collect()["name"].to_list())
    ended = run.spans().filter(pl.col("status") == "ok").collect()
    spans = Counter(ended["name"].to_list())
    return all(
        spans[f"item-{n}"] >= marks[0][n]
        and metrics[f"a-{n}"] >= marks[1][n]
        and spans[f"leaf-{n}"] >= marks[2][n]
        for n in range(THREADS)
    )


def _is_whole(run: Any, marks: list[list[int]]) -> None:
    tables = Tables(run)
    spans = run.spans().collect()
    check_spans(spans)
    check_attributes(spans, set())
    for number in range(THREADS):
        items, metrics, leaves = (mark[number] for mark in marks)
        assert (tables.spans[f"item-{number}"]["status"] == "ok").sum() >= items
        assert (tables.spans[f"leaf-{number}"]["status"] == "ok").sum() >= leaves
        values = tables.metrics[f"a-{number}"]["value"].to_list()
        assert len(values) >= metrics
        assert values == [float(i) for i in range(len(values))]
    # A thread has at most one open span of each kind: all others have ended.
    opened = run.open_spans().collect()["name"].to_list()
    assert len(opened) == len(set(opened))


MOUNTS = r"""
22 1 259:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
30 22 0:26 / /home rw shared:2 - nfs4 server:/home rw,vers=4.2
31 30 0:27 / /home/fast rw - xfs /dev/nvme0n1 rw
32 22 0:28 / /scratch rw - lustre 10.0.0.1@o2ib:/scratch rw,flock
33 22 0:29 / /mnt/my\040data rw - fuse.sshfs me@host:/data rw
34 22 0:30 / /var/lib/box rw - overlay overlay rw,lowerdir=/a
35 22 0:31 / /dev/shm rw,nosuid master:3 propagate_from:2 - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("path", "kind", "network"),
    [
        ("/", "ext4", False),
        ("/srv/x", "ext4", False),
        ("/home", "nfs4", True),
        ("/home/me/runs", "nfs4", True),
        ("/home/fast/runs", "xfs", False),
        ("/home/faster", "nfs4", True),
        ("/homestead", "ext4", False),
        ("/scratch/a/b", "lustre", True),
        ("/mnt/my data/runs", "fuse.sshfs", True),
        ("/var/lib/box/runs", "overlay", False),
        ("/dev/shm/runs", "tmpfs", False),
    ],
)
def test_file_system(path: str, kind: str, network: bool) -> None:
    """The longest mount point of a path determines its file system, and whether it is shared."""
    assert system.file_system(Path(path), MOUNTS) == kind
    assert (system.NETWORK_FILE_SYSTEMS.search(kind) is not None) is network


def test_later_mount_hides_earlier() -> None:
    """Of two mounts on one point, the later one counts."""
    mounts = MOUNTS + "40 30 0:40 / /home rw - btrfs /dev/sdb rw\n"
    assert system.file_system(Path("/home/me"), mounts) == "btrfs"
    assert system.file_system(Path("/anywhere"), "") == ""
