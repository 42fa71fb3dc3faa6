"""The program of each rank in test_sharded.py; fails if a number is wrong."""

from __future__ import annotations

import copy
import json
import math
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from stepwell.diagnostics import TelemetryConfig, TrainingTelemetry, norms
from stepwell.diagnostics.gradients import Gradients
from stepwell.diagnostics.groups import grouped
from stepwell.diagnostics.norms import fetch
from stepwell.diagnostics.weights import WeightBaseline

LIMIT = 0.003
RULE = {"backbone": "^backbone", "head": "^head", "frozen": "^frozen", "unused": "^unused"}


class Net(nn.Module):
    """Sizes that no number of ranks divides, a layer that is frozen and one that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(6, 7).requires_grad_(False)
        self.backbone = nn.Sequential(nn.Linear(7, 33), nn.GELU(), nn.Linear(33, 8))
        self.head = nn.Linear(8, 3)
        self.unused = nn.Linear(3, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(self.frozen(inputs)))


class Even(nn.Module):
    """For tensor parallelism, which wants sizes that can be divided.

    Its loss hardly depends on what comes before the normalisation, so gradients there are mostly rounding
    in float32, and differ between the ways of computing them: it is trained in float64.
    """

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Linear(8, 16)
        self.head = nn.Linear(16, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.norm(self.head(self.backbone(inputs).relu()))


def norm64(tensors: list[torch.Tensor | None]) -> float:
    return math.sqrt(sum(float(t.double().square().sum()) for t in tensors if t is not None))


def expected(model: nn.Module, what: list[torch.Tensor | None]) -> dict[str, float]:
    """By group, of a model that is not sharded."""
    named = [(name, one) for (name, _), one in zip(model.named_parameters(), what, strict=True)]
    found = {"overall": norm64([one for _, one in named])}
    for group in RULE:
        own = [one for name, one in named if name.startswith(group)]
        if own:
            found[group] = norm64(own)
    return found


def same(found: dict[str, torch.Tensor] | None, right: dict[str, float], what: str) -> None:
    assert found is not None, what
    numbers = fetch(found)
    for name, value in right.items():
        if name in numbers or value:
            assert math.isclose(numbers[name], value, rel_tol=1e-5, abs_tol=1e-9), (
                what,
                name,
                numbers,
                right,
            )


def train(plain: nn.Module, sharded: nn.Module, folder: Path, what: str, inputs: int) -> None:
    """Both models take the same steps; the sharded one's numbers have to be those of the plain one."""
    # torch itself cannot clip parameters of which some are spread and others not, or not alike.
    clips = what in ("ddp", "fsdp", "hybrid")
    rule = {name: pattern for name, pattern in RULE.items() if hasattr(plain, name)}
    optimizers = [
        torch.optim.SGD([p for p in one.parameters() if p.requires_grad], 0.5, momentum=0.9)
        for one in (plain, sharded)
    ]
    gradients = Gradients(sharded, optimizers[1], rule)
    baselines = [
        WeightBaseline(folder / f"{what}.{dist.get_rank()}.pt", mode, "run/0")
        for mode in ("disk", "memory")
    ]
    assert [one.delta(grouped(sharded, None, rule)) for one in baselines] == [None, None]
    for step in range(3):
        torch.manual_seed(100 + step)
        batch = torch.randn(4 * dist.get_world_size(), inputs).to(next(plain.parameters()).dtype)
        before = [one.detach().clone() for one in plain.parameters()]
        gradients.take_next()
        for model in (plain, sharded):
            part = batch
            if isinstance(model, DistributedDataParallel):
                part = batch.chunk(dist.get_world_size())[dist.get_rank()]
            model(part).square().mean().backward()
        right = norm64([one.grad for one in plain.parameters()])
        if step and clips:
            totals = [nn.utils.clip_grad_norm_(one.parameters(), LIMIT) for one in (plain, sharded)]
            gradients.note_clipping(totals[1])
        right_gradients = expected(plain, [one.grad for one in plain.parameters()])
        gathered = norm64([whole(p.grad) for p in sharded.parameters() if p.grad is not None])
        if "fsdp1" in what:
            gathered = right
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        same(gradients.latest(), right_gradients, f"{what}: gradients")
        same(gradients.latest(), {"overall": gathered}, f"{what}: gathered gradients")
        clipped = gradients.before_clipping
        assert (clipped is not None) == (step > 0 and clips)
        if clipped is not None:
            assert math.isclose(float(clipped), right, rel_tol=1e-4), (what, float(clipped), right)
        moved = [now.detach() - old for now, old in zip(plain.parameters(), before, strict=True)]
        for baseline in baselines:
            found = baseline.delta(grouped(sharded, None, rule))
            same(found, expected(plain, moved), f"{what}: weights")


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def fsdp(model: nn.Module, mesh: DeviceMesh | None = None) -> nn.Module:
    for part in model.children():
        fully_shard(part, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def fsdp1(model: nn.Module, original: bool) -> nn.Module:
    """The older way; each part on its own, since what is frozen cannot be in one piece with what is not."""

    def wrapped(module: nn.Module) -> nn.Module:
        return FullyShardedDataParallel(
            module, use_orig_params=original, device_id=torch.device("cpu")
        )

    for name, part in list(model.named_children()):
        setattr(model, name, wrapped(part))
    return model


def one_rank_in_trouble(folder: Path) -> None:
    """No rank waits forever, no rank has a wrong number, and the next collection works."""
    torch.manual_seed(3)
    model = fsdp(Net())
    path = folder / f"trouble.{dist.get_rank()}.pt"
    baseline = WeightBaseline(path, "disk", "run/0")
    groups = grouped(model)
    assert baseline.delta(groups) is None
    assert baseline.delta(groups) is not None
    if dist.get_rank() == 1:
        os.truncate(path, 300)
    assert baseline.delta(groups) is None
    assert baseline.delta(groups) is not None
    write = os.pwrite
    if dist.get_rank() == 1:

        def failing(*_: object) -> int:
            raise OSError(28, "full")

        os.pwrite = failing
        try:
            baseline.delta(groups)
        except OSError:
            os.pwrite = write
        assert os.pwrite is write
    else:
        assert baseline.delta(groups) is None
    assert baseline.delta(groups) is None
    assert baseline.delta(groups) is not None


def one_rank_with_a_broken_rule() -> None:
    """The others get a number that marks this, and do not wait."""
    torch.manual_seed(3)
    model = fsdp(Net())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    gradients = Gradients(model, optimizer)
    model(torch.randn(4, 6)).mean().backward()
    if dist.get_rank() == 1:

        def failing(*_: object) -> torch.Tensor:
            raise RuntimeError("broken")

        right, norms.squares = norms.squares, failing
    gradients.take_next()
    optimizer.step()
    if dist.get_rank() == 1:
        norms.squares = right
        try:
            gradients.latest()
        except RuntimeError:
            return
        raise AssertionError("nothing was raised")
    assert math.isnan(fetch(gradients.latest() or {})["overall"])


def holdout_of(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.zeros(4, 6), torch.tensor([0, 1, 2, 0]))] * count


def collected(
    model: nn.Module, holdout: int, fails_at: int | None = None, **options: bool
) -> list[dict[str, Any]]:
    """The records of five steps with a collection after each; rank 1 is in trouble at one of them."""
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    telemetry = TrainingTelemetry(TelemetryConfig(collect_every_n=2, **options))
    telemetry.set_holdout_data(holdout_of(holdout))
    right = norms.squares

    def failing(*_: object) -> torch.Tensor:
        raise RuntimeError("out of memory")

    for batch_idx in range(1, 7):
        optimizer.zero_grad()
        model(torch.ones(4, 6)).square().sum().backward()
        norms.squares = failing if fails_at == batch_idx and dist.get_rank() == 1 else right
        optimizer.step()
        norms.squares = right
        telemetry.on_batch_end(model, optimizer, batch_idx, 0, "cpu")
    telemetry.close()
    assert telemetry.metrics_file is not None
    with open(telemetry.metrics_file) as lines:
        return [json.loads(line) for line in lines]


def whole_collections() -> None:
    """Numbers of sharded weights where a rank has none of some; holdouts and troubles that differ."""
    torch.manual_seed(3)
    plain = Net()
    every = torch.cat([one.detach().double().flatten() for one in plain.parameters()])
    for model in (fsdp(copy.deepcopy(plain)), fsdp1(copy.deepcopy(plain), True)):
        found = collected(model, 1, track_weight_stats=True, track_activations=True)
        stats = found[-1]["weight_stats"]["overall"]
        assert stats["count"] == every.numel()
        assert math.isclose(stats["norm"], float(every.norm()), rel_tol=1e-5)
        assert math.isclose(stats["mean"], float(every.mean()), rel_tol=1e-5)
        assert math.isclose(stats["std"], float(every.std(correction=0)), rel_tol=1e-5)
        assert math.isclose(stats["abs_max"], float(every.abs().max()), rel_tol=1e-5)
        assert all("holdout_logits" in it and "activations" in it for it in found)
        # Only some ranks were given a holdout: nobody waits for the others' forward pass.
        found = collected(model, dist.get_rank() % 2, track_activations=True)
        assert not any("holdout_logits" in it or "activations" in it for it in found)
        right = [it["gradient_norm"]["overall"] for it in found]
        for fails_at in range(1, 7):
            found = collected(model, 0, fails_at)
            # In the batch of a collection, zero_grad had not come yet: what is there is what was used.
            assert [it["gradient_norm"]["overall"] for it in found] == right


def unchanged() -> None:
    """The same bits with and without."""

    def trained(watch: bool) -> list[torch.Tensor]:
        torch.manual_seed(3)
        model = fsdp(Net())
        optimizer = torch.optim.AdamW(model.parameters(), 0.1)
        gradients = Gradients(model, optimizer)
        baseline = WeightBaseline(None, "sample")
        for _ in range(4):
            if watch:
                gradients.take_next()
            model(torch.randn(4, 6)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if watch:
                gradients.latest()
                baseline.delta(grouped(model))
        return [one.detach().full_tensor() for one in model.parameters()]

    assert all(map(torch.equal, trained(True), trained(False)))


def tensor_parallel(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    plan = {"backbone": ColwiseParallel(), "head": RowwiseParallel()}
    return parallelize_module(model, mesh, plan)


def main(folder: Path) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    size = dist.get_world_size()
    torch.manual_seed(7)
    plain = Net()
    ddp_plain = copy.deepcopy(plain)
    ddp = DistributedDataParallel(copy.deepcopy(plain), find_unused_parameters=True)
    # Otherwise data parallelism gives what nobody used a gradient of zeros, and momentum moves it.
    train(ddp_plain, ddp, folder, "ddp", 6)
    train(copy.deepcopy(plain), fsdp(copy.deepcopy(plain)), folder, "fsdp", 6)
    for original in (True, False):
        model = fsdp1(copy.deepcopy(plain), original)
        train(copy.deepcopy(plain), model, folder, f"fsdp1 {original}", 6)
    even = Even().double()
    mesh = init_device_mesh("cpu", (size,))
    train(copy.deepcopy(even), tensor_parallel(copy.deepcopy(even), mesh), folder, "tensor", 8)
    if size == 4:
        meshes_of_two_dimensions(plain, even, folder)
    one_rank_in_trouble(folder)
    one_rank_with_a_broken_rule()
    if size == 2:
        # What these say does not depend on how many ranks there are.
        os.chdir(folder)
        whole_collections()
        unchanged()
    dist.barrier()
    dist.destroy_process_group()


def meshes_of_two_dimensions(plain: Net, even: nn.Module, folder: Path) -> None:
    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    train(copy.deepcopy(plain), fsdp(copy.deepcopy(plain), both), folder, "hybrid", 6)
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    mixed = tensor_parallel(copy.deepcopy(even), grid["tensor"])
    train(copy.deepcopy(even), fsdp(mixed, grid["data"]), folder, "both", 8)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
