"""Statistics of the outputs of a model's layers, from one forward pass without side effects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stepwell._core.errors import StepwellError
from stepwell.diagnostics.batches import Parts
from stepwell.diagnostics.config import TelemetryConfig
from stepwell.diagnostics.isolation import isolated_eval, unwrapped
from stepwell.diagnostics.norms import precision

RECTIFIERS = (nn.ReLU, nn.ReLU6, nn.Hardswish, nn.Hardsigmoid, nn.Threshold, nn.Hardtanh)
"""Layers whose gradient vanishes where the output is exactly zero or at a bound."""
Keep = Callable[[str, nn.Module, "Tensor | None", Tensor], None]
"""Function of the name of a layer, the layer, its input and its output."""
MAX_COMPARED = 100
"""The number of embeddings that are compared with each other."""


@dataclass
class LayerOutput:
    """Statistics of the output of one layer; of its last call if it is called several times.

    They are computed at once: the outputs of all layers together may not fit into memory.
    """

    statistics: dict[str, Tensor]
    dead: Tensor | None


def layer_outputs(
    model: Any,
    parts: Parts,
    device: torch.device,
    config: TelemetryConfig,
    names: tuple[str, ...] | list[str] | None,
) -> dict[str, LayerOutput]:
    """Return the outputs of the named layers; of all layers without children if ``names`` is None."""
    outputs: dict[str, LayerOutput] = {}

    def keep(name: str, module: nn.Module, given: Tensor | None, output: Tensor) -> None:
        outputs[name] = LayerOutput(statistics(output), dead_share(module, output))

    _pass(model, parts, device, config, names, keep)
    return outputs


def vectors_of(
    model: Any, parts: Parts, device: torch.device, config: TelemetryConfig
) -> Tensor | None:
    """Return the embeddings: the output of ``embedding_layer``, else the input of the last linear layer."""
    chosen = config.embedding_layer
    layer = chosen or last_linear(model)
    if layer is None:
        return None
    embeddings: list[Tensor] = []

    def keep(name: str, module: nn.Module, given: Tensor | None, output: Tensor) -> None:
        vectors = output if chosen else given
        if vectors is not None:
            embeddings.append(vectors.detach().clone())

    _pass(model, parts, device, config, [layer], keep)
    return torch.cat(embeddings) if embeddings else None


def statistics(output: Tensor) -> dict[str, Tensor]:
    """Return mean, standard deviation, largest magnitude and percentage of zeros."""
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
    """Return the percentage of units that are zero for every example; None if not in ``RECTIFIERS``."""
    if not isinstance(module, RECTIFIERS) or output.ndim < 2:
        return None
    # The channels of images are the second axis, the features of other inputs the last.
    axis = 1 if output.ndim in (4, 5) else output.ndim - 1
    others = [i for i in range(output.ndim) if i != axis]
    return 100.0 * (output.count_nonzero(dim=others) == 0).float().mean()


def embedding_statistics(vectors: Tensor) -> dict[str, Any]:
    """Return the norms of embeddings and their mean cosine similarity (near 1: they have collapsed)."""
    rows = vectors.reshape(vectors.shape[0], -1).to(precision(vectors.device))
    lengths = rows.norm(dim=1)
    result: dict[str, Any] = {
        "norm_mean": lengths.mean(),
        "norm_std": lengths.std(correction=0),
        "norm_min": lengths.min(),
        "norm_max": lengths.max(),
    }
    few = nn.functional.normalize(rows[:MAX_COMPARED], dim=1)
    count = few.shape[0]
    if count > 1:
        cosines = few @ few.T
        result["cosine_mean"] = (cosines.sum() - cosines.diagonal().sum()) / (count * (count - 1))
    return result


def last_linear(model: Any) -> str | None:
    """Return the name of the last linear layer."""
    names = [n for n, module in unwrapped(model).named_modules() if isinstance(module, nn.Linear)]
    return names[-1] if names else None


def _pass(
    model: Any,
    parts: Parts,
    device: torch.device,
    config: TelemetryConfig,
    names: tuple[str, ...] | list[str] | None,
    keep: Keep,
) -> None:
    """Call the model once, and pass the input and output of each layer to ``keep``."""
    inner = unwrapped(model)
    with ExitStack() as stack:
        # The hooks are added first, so that they are removed after everything else is restored.
        for name, module in _chosen(inner, names):
            handle = module.register_forward_hook(_hook(name, keep))
            stack.callback(handle.remove)
        with isolated_eval(inner, device, config.holdout_dtype):
            inner(*parts.args, **parts.kwargs)


def _chosen(
    model: nn.Module, names: tuple[str, ...] | list[str] | None
) -> Iterator[tuple[str, nn.Module]]:
    modules = dict(model.named_modules())
    if names is None:
        yield from ((n, module) for n, module in modules.items() if not any(module.children()))
        return
    for name in names:
        if name not in modules:
            raise StepwellError(
                f"the model has no layer {name!r}. It has: {', '.join(list(modules)[1:20])}"
            )
        yield name, modules[name]


def _hook(name: str, keep: Keep) -> Any:
    def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if isinstance(output, list | tuple) and output:
            output = output[0]
        given = args[0] if args and isinstance(args[0], Tensor) else None
        if isinstance(output, Tensor) and output.is_floating_point() and output.numel():
            keep(name, module, given, output)

    return hook
