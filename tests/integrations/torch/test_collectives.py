"""Collectives of two real ranks: names, counts, sizes and waiting times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from stepwell.reading import RecordedRun
from tests.harness import recording_environment, run_ranks
from tests.integrations.torch.loops import per_step
from tests.nesting.tree import check_tree, edges
from tests.processes.programs import only_run, write_program

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

HEAD = """
import torch, torch.distributed as dist
from stepwell import ai
from stepwell.integrations.torch import annotate
from torch.distributed import all_reduce as imported_before
dist.init_process_group("gloo")
rank = dist.get_rank()
run = stepwell.init(dir=RUNS)
"""
TAIL = """
run.finish()
dist.destroy_process_group()
"""


def launch(folder: Path, program: str) -> RecordedRun:
    """Run this in two ranks; returns what they recorded."""
    env = recording_environment(folder / "runs")
    path = write_program(folder, program)
    run_ranks(path, env=env, cwd=folder, check=True)
    return only_run(folder)


def of_rank(run: RecordedRun, rank: int) -> pl.DataFrame:
    spans = run.spans().filter(pl.col("rank") == rank).collect().sort("start_ns")
    check_tree(spans)
    return spans


def described(spans: pl.DataFrame) -> list[tuple[str, Any]]:
    return [
        (name, json.loads(text) if text else None)
        for name, text in spans.select("name", "attributes").iter_rows()
    ]


def test_all_of_them(tmp_path: Path) -> None:
    """Each call is one span with what this rank gives, in bytes, and the number of ranks."""
    program = """
    x, other = torch.ones(4), 1 - rank
    parts = lambda: [torch.zeros(4), torch.zeros(4)]
    before = dist.all_reduce
    handle = annotate()
    dist.all_reduce(x)
    dist.all_gather(parts(), x)
    dist.all_gather_into_tensor(torch.zeros(8), x)
    dist.reduce_scatter(torch.zeros(4), parts())
    dist.reduce_scatter_tensor(torch.zeros(4), torch.zeros(8))
    dist.broadcast(x, src=0)
    dist.barrier()
    dist.gather(x, parts() if rank == 0 else None, dst=0)
    dist.scatter(x, parts() if rank == 0 else None, src=0)
    dist.all_to_all_single(torch.zeros(4), tensor_in := torch.ones(4))
    dist.reduce(tensor=x, dst=0)
    if rank == 0:
        dist.send(x, 1)
    else:
        dist.recv(x, 0)
    imported_before(x)
    handle.remove()
    assert dist.all_reduce is before
    dist.all_reduce(x)
    """
    run = launch(tmp_path, HEAD + program.replace("\n    ", "\n") + TAIL)
    one, two = {"bytes": 16, "world_size": 2}, {"bytes": 32, "world_size": 2}
    expected = [
        ("all_reduce", one),
        ("all_gather", one),
        ("all_gather", one),
        ("reduce_scatter", two),
        ("reduce_scatter", two),
        ("bcast", one),
        ("barrier", {"world_size": 2}),
        ("gather", one),
        ("scatter", one),
        ("all_to_all", one),
        ("reduce", one),
    ]
    for rank, message in ((0, "send"), (1, "receive")):
        spans = of_rank(run, rank)
        assert described(spans) == [*expected, (message, one)]
        assert set(spans["category"]) == {"comm"}
        assert spans["parent"].null_count() == spans.height


def test_without_waiting(tmp_path: Path) -> None:
    """The launch is one span, waiting for it another; a batch of messages is made as ever."""
    program = """
    from torch.distributed import isend, irecv
    x, other = torch.ones(4), 1 - rank
    annotate()
    work = dist.all_reduce(x, async_op=True)
    with run.span("meanwhile"):
        pass
    work.wait()
    work.wait()  # once is enough
    dist.all_reduce(x, async_op=True)  # nobody waits
    pending = [dist.isend(x, other), dist.irecv(torch.zeros(4), other)]
    for each in pending:
        each.wait()
    del pending, each, work
    ops = [dist.P2POp(isend, x, other), dist.P2POp(dist.irecv, torch.zeros(4), other)]
    for each in dist.batch_isend_irecv(ops):
        each.wait()
    objects = [None, None]
    dist.all_gather_object(objects, {"rank": rank})
    assert [each["rank"] for each in objects] == [0, 1]
    """
    run = launch(tmp_path, HEAD + program.replace("\n    ", "\n") + TAIL)
    about = {"bytes": 16, "world_size": 2, "async": True}
    for rank in (0, 1):
        found = described(of_rank(run, rank))
        assert found[:5] == [
            ("all_reduce", about),
            ("meanwhile", None),
            ("all_reduce.wait", about),
            ("all_reduce", about),
            ("send", about),
        ]
        names = [name for name, _ in found[4:]]
        assert names.count("send") == names.count("receive") == 2
        assert names.count("send.wait") == names.count("receive.wait") == 2
        # An object is sent as its size and then its bytes.
        assert names[-2:] == ["all_gather", "all_gather"]
        assert len(names) == 10


def test_an_error_and_a_smaller_group(tmp_path: Path) -> None:
    """Exceptions of a collective are raised; a group has its own number of ranks."""
    program = """
    alone = [dist.new_group([0]), dist.new_group([1])][rank]
    annotate()
    dist.all_reduce(torch.ones(2), group=alone)
    for wrong in (("no tensor",), (torch.ones(1), "sum", "no group"), ()):
        try:
            dist.all_reduce(*wrong)
        except Exception as error:
            assert "stepwell" not in str(error)
        else:
            raise SystemExit("no error")
    """
    run = launch(tmp_path, HEAD + program.replace("\n    ", "\n") + TAIL)
    for rank in (0, 1):
        spans = of_rank(run, rank)
        assert spans["status"].to_list() == ["ok", "error", "error", "error"]
        assert described(spans)[0] == ("all_reduce", {"bytes": 8, "world_size": 1})


def test_data_parallel(tmp_path: Path) -> None:
    """A model wrapped for distribution, annotated as a whole or as the part inside."""
    program = """
    from torch.nn.parallel import DistributedDataParallel
    torch.manual_seed(0)
    inner = torch.nn.Linear(4, 1)
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    annotate([model, inner], optimizer)
    for i in range(3):
        with model.no_sync():
            model(torch.ones(1, 4) * rank).sum().backward()
        model(torch.ones(1, 4) * rank).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    total = inner.weight.detach().clone()
    dist.all_reduce(total)
    assert torch.equal(total, inner.weight * 2)
    """
    run = launch(tmp_path, HEAD + program.replace("\n    ", "\n") + TAIL)
    one = {"forward": 2, "backward": 2, "step": 1}
    for rank in (0, 1):
        spans = of_rank(run, rank)
        assert per_step(spans) == {0: one, 1: one, 2: one, 3: {"all_reduce": 1}}
        assert {above for _, above in edges(spans)} == {None}


def test_sharded(tmp_path: Path) -> None:
    """A sharded model records its gathers and scatters, inside the passes that need them."""
    program = """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    mesh = init_device_mesh("cpu", (2,))
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    annotate(model, optimizer)
    for i in range(2):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    """
    run = launch(tmp_path, HEAD + program.replace("\n    ", "\n") + TAIL)
    for rank in (0, 1):
        found = edges(of_rank(run, rank))
        for name in ("forward", "backward", "step"):
            assert found.pop((name, None)) == 2
        assert found.pop(("all_gather", "forward")) == 2 * 2
        # How often it gathers again for the way back is PyTorch's own affair.
        assert found.pop(("reduce_scatter", "backward")) == 2 * 2
        assert set(found) <= {("all_gather", "backward")}
