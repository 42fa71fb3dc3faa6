"""The distance between the weights of two runs, layer by layer, from their snapshots."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from stepwell._core.errors import StepwellError
from stepwell.reading import RecordedRun

FOLDER = Path("telemetry") / "snapshots"
BLOCK = 1 << 20


@dataclass(frozen=True)
class LayerDistance:
    """One parameter in both snapshots: L2 distance, the same relative to the first, and the cosine."""

    layer: str
    count: int
    l2: float
    relative: float | None
    cosine: float | None


@dataclass(frozen=True)
class WeightComparison:
    """Two snapshots. ``only`` are the layers that one of them lacks or has with another shape."""

    runs: tuple[str, str]
    snapshots: tuple[str, str]
    overall: LayerDistance
    layers: list[LayerDistance]
    only: list[str]


def compare_weights(a: RecordedRun, b: RecordedRun) -> WeightComparison | None:
    """Compare the latest snapshot that both have, or else the latest of each; None if one has none."""
    ours, theirs = snapshots(a), snapshots(b)
    if not ours or not theirs:
        return None
    common = [name for name in ours if name in theirs]
    first, second = (common or list(ours))[-1], (common or list(theirs))[-1]
    left, right = _load(ours[first]), _load(theirs[second])
    shared = [name for name in left if name in right and left[name].shape == right[name].shape]
    sums = {name: _sums(left[name], right[name]) for name in shared}
    total = [sum(column) for column in zip(*sums.values(), strict=True)] or [0.0] * 5
    return WeightComparison(
        (a.id, b.id),
        (first, second),
        _distance("overall", total),
        [_distance(name, its_sums) for name, its_sums in sums.items()],
        sorted((left.keys() | right.keys()) - set(shared)),
    )


def weight_table(a: RecordedRun, b: RecordedRun) -> pl.DataFrame:
    """Return a row for each layer, ``overall`` first; no rows if there are no snapshots."""
    comparison = compare_weights(a, b)
    lines = [] if comparison is None else [comparison.overall, *comparison.layers]
    schema = {
        "layer": pl.String,
        "count": pl.Int64,
        "l2": pl.Float64,
        "relative": pl.Float64,
        "cosine": pl.Float64,
    }
    return pl.DataFrame([vars(line) for line in lines], schema=schema, orient="row")


def snapshots(run: RecordedRun) -> dict[str, Path]:
    """Return the snapshots of a run by name, in the order of training."""
    folder = run.path / FOLDER
    if folder.is_symlink() or not folder.is_dir():
        return {}
    # Follow no links: a run folder from someone else may link to any file.
    files = [path for path in folder.glob("*.pt") if path.is_file() and not path.is_symlink()]
    return {path.stem: path for path in sorted(files, key=lambda path: path.name)}


def _load(path: Path) -> dict[str, Any]:
    try:
        import torch
    except ImportError:
        raise StepwellError(
            "comparing weights needs torch: pip install 'stepwell[torch]', or leave them out with "
            "--no-weights"
        ) from None
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        # torch raises many kinds of errors for a bad file, with very long messages: show the first line.
        reason = str(error).strip().splitlines()[0][:200] if str(error) else type(error).__name__
        raise StepwellError(f"{path} is not a snapshot of weights: {reason}") from None
    items = loaded.items() if isinstance(loaded, dict) else []
    weights = {str(name): item for name, item in items if isinstance(item, torch.Tensor)}
    if not weights:
        raise StepwellError(f"{path} contains no tensors")
    return weights


def _sums(a: Any, b: Any) -> tuple[float, ...]:
    """Return count, squared distance, dot product and squared norms, in float64, block by block."""
    flat_a, flat_b = a.detach().reshape(-1), b.detach().reshape(-1)
    distance = dot = size_a = size_b = 0.0
    for begin in range(0, flat_a.numel(), BLOCK):
        x, y = (_doubles(flat[begin : begin + BLOCK]) for flat in (flat_a, flat_b))
        distance += float(((x - y) ** 2).sum())
        dot += float((x * y).sum())
        size_a += float((x * x).sum())
        size_b += float((y * y).sum())
    return float(flat_a.numel()), distance, dot, size_a, size_b


def _doubles(block: Any) -> Any:
    import torch

    if block.is_complex():
        return torch.view_as_real(block.to(torch.complex128)).reshape(-1)
    return block.to(torch.float64)


def _distance(layer: str, sums: Any) -> LayerDistance:
    count, distance, dot, size_a, size_b = sums
    return LayerDistance(
        layer,
        int(count),
        math.sqrt(distance),
        math.sqrt(distance / size_a) if size_a else None,
        # Rounding errors may exceed 1.
        max(-1.0, min(1.0, dot / math.sqrt(size_a * size_b))) if size_a and size_b else None,
    )
