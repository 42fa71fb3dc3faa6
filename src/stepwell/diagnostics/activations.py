"""What the layers of a model give out, seen in one forward pass that leaves no trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stepwell.diagnostics.batches import Parts
from stepwell.diagnostics.config import TelemetryConfig
from stepwell.diagnostics.no_trace import bare, no_trace
from stepwell.diagnostics.norms import precision
from stepwell.journal.errors import StepwellError

RECTIFIERS = (nn.ReLU, nn.ReLU6, nn.Hardswish, nn.Hardsigmoid, nn.Threshold, nn.Hardtanh)
"""Layers whose output is exactly zero, or at its bound, where nothing can be learnt."""
Keep = Callable[[str, nn.Module, "Tensor | None", Tensor], None]
"""Gets the name of a layer, the layer, what it took and what it gave."""
MAX_COMPARED = 100
"""Embeddings that are compared with each other."""


@dataclass
class Seen:
    """What one layer gave out; of a layer that is called several times, the last time.

    The numbers are taken at once: the outputs of all layers may not fit into memory together.
    """

    statistics: dict[str, Tensor]
    dead: Tensor | None


def look_at(
    model: Any,
    parts: Parts,
    device: torch.device,
    config: TelemetryConfig,
    names: tuple[str, ...] | list[str] | None,
) -> dict[str, Seen]:
    """What each of the named layers gives out; all without children when no names are given."""
    seen: dict[str, Seen] = {}

    def keep(name: str, module: nn.Module, given: Tensor | None, output: Tensor) -> None:
        seen[name] = Seen(statistics(output), dead_share(module, output))

    _pass(model, parts, device, config, names, keep)
    return seen


def vectors_of(
    model: Any, parts: Parts, device: torch.device, config: TelemetryConfig
) -> Tensor | None:
    """The embeddings of the examples: what the chosen layer gives out, or what the last linear one takes."""
    chosen = config.embedding_layer
    layer = chosen or last_linear(model)
    if layer is None:
        return None
    found: list[Tensor] = []

    def keep(name: str, module: nn.Module, given: Tensor | None, output: Tensor) -> None:
        vectors = output if chosen else given
        if vectors is not None:
            found.append(vectors.detach().clone())

    _pass(model, parts, device, config, [layer], keep)
    return torch.cat(found) if found else None


def statistics(output: Tensor) -> dict[str, Tensor]:
    """Mean, standard deviation, largest magnitude and share of zeros."""
    wide = precision(output.device)
    count = output.numel()
    mean = output.mean(dtype=wide)
    square = torch.linalg.vector_norm(output, dtype=wide).square()
    return {
        "mean": mean,
        "std": (square / count - mean.square()).clamp(min=0).sqrt(),
        "abs_max": torch.stack(output.aminmax()).abs().max(),
        "zero_pct": 100.0 * (1 - output.count_nonzero().to(wide) / count),
    }


def dead_share(module: nn.Module, output: Tensor) -> Tensor | None:
    """Percentage of the units that give zero for every example; None for layers that rectify nothing."""
    if not isinstance(module, RECTIFIERS) or output.ndim < 2:
        return None
    # Channels of an image come second, features of anything else last.
    axis = 1 if output.ndim in (4, 5) else output.ndim - 1
    others = [i for i in range(output.ndim) if i != axis]
    return 100.0 * (output.count_nonzero(dim=others) == 0).float().mean()


def likeness(vectors: Tensor) -> dict[str, Any]:
    """Norms of embeddings, and the mean cosine between two of them (near 1: they have collapsed)."""
    rows = vectors.reshape(vectors.shape[0], -1).to(precision(vectors.device))
    lengths = rows.norm(dim=1)
    found: dict[str, Any] = {
        "norm_mean": lengths.mean(),
        "norm_std": lengths.std(correction=0),
        "norm_min": lengths.min(),
        "norm_max": lengths.max(),
    }
    few = nn.functional.normalize(rows[:MAX_COMPARED], dim=1)
    count = few.shape[0]
    if count > 1:
        cosines = few @ few.T
        found["cosine_mean"] = (cosines.sum() - cosines.diagonal().sum()) / (count * (count - 1))
    return found


def last_linear(model: Any) -> str | None:
    """The name of the last linear layer."""
    names = [n for n, module in bare(model).named_modules() if isinstance(module, nn.Linear)]
    return names[-1] if names else None


def _pass(
    model: Any,
    parts: Parts,
    device: torch.device,
    config: TelemetryConfig,
    names: tuple[str, ...] | list[str] | None,
    keep: Keep,
) -> None:
    """Call the model once, and hand over what each of the layers takes and gives."""
    inner = bare(model)
    with ExitStack() as stack:
        # Hooks before the rest: they are taken off after everything else was put back.
        for name, module in _chosen(inner, names):
            handle = module.register_forward_hook(_hook(name, keep))
            stack.callback(handle.remove)
        with no_trace(inner, device, config.holdout_dtype):
            inner(*parts.args, **parts.kwargs)


def _chosen(
    model: nn.Module, names: tuple[str, ...] | list[str] | None
) -> Iterator[tuple[str, nn.Module]]:
    known = dict(model.named_modules())
    if names is None:
        yield from ((n, module) for n, module in known.items() if not any(module.children()))
        return
    for name in names:
        if name not in known:
            raise StepwellError(
                f"the model has no layer {name!r}; it has: {', '.join(list(known)[1:20])}"
            )
        yield name, known[name]


def _hook(name: str, keep: Keep) -> Any:
    def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if isinstance(output, list | tuple) and output:
            output = output[0]
        given = args[0] if args and isinstance(args[0], Tensor) else None
        if isinstance(output, Tensor) and output.is_floating_point() and output.numel():
            keep(name, module, given, output)

    return hook
