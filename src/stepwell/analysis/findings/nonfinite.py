"""A loss or gradients that are NaN or infinite: from which step on, and in which layer first."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import polars as pl

from stepwell.analysis.findings.curves import GRADIENT, LOSS, MetricCurve
from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding

IN_A_ROW = 3
"""Fewer non-finite gradients in a row are normal for a GradScaler that looks for its scale."""


def find_nonfinite(facts: Facts) -> Iterator[Finding]:
    """Yield at most one finding: the first metric that was not finite, and where it started."""
    losses = _odd_curves(facts, LOSS)
    gradients = [c for c in _odd_curves(facts, GRADIENT) if losses or _lasts(c)]
    if not losses and not gradients:
        return
    gradient_step = _first_odd(gradients[0]) if gradients else None
    first = min(_first_odd(c) for c in (*losses, *gradients))
    layer = _layer(facts, gradient_step)
    names = [c.name for c in (losses or gradients)]
    main = losses[0] if losses else gradients[0]
    kind, _ = _kind(facts, [main], _first_odd(main))
    _, ranks = _kind(facts, [*losses, *gradients], first)
    ends = len(main) == 0 or main.odd[-1] >= main.steps[-1]
    text = f"{main.name} is {kind} {'from' if ends else 'at'} step {_first_odd(main)}"
    text += " on" if ends else f" ({len(main.odd)} value{'s' if len(main.odd) > 1 else ''})"
    text += f"{_last_finite(main)}{_then_nan(facts, main, kind)}" if ends else ""
    if gradient_step is not None and losses:
        gradient_kind, _ = _kind(facts, gradients, gradient_step)
        if gradient_step < _first_odd(main):
            text += f"; gradients were already {gradient_kind} at step {gradient_step}"
        else:
            sparse = _last_finite(gradients[0])
            when = f"at step {gradient_step}{sparse}" if sparse else f"from step {gradient_step} on"
            text += f"; gradients are {gradient_kind} {when}"
    if layer:
        text += f", first in layer {layer}"
    if facts.ranks > 1 and ranks:
        text += f" (rank {ranks[0]})"
    yield Finding(
        "not-finite",
        "critical" if ends else "warning",
        f"{text}.",
        {"metric": main.name, "metrics": names, "step": first, "layer": layer, "kind": kind},
        (first,),
        ranks if facts.ranks > 1 else (),
        "Check the batch of that step. Then try a lower learning rate, gradient clipping, or bfloat16 "
        "instead of float16, and guard log() and division.",
    )


def _odd_curves(facts: Facts, pattern: str) -> list[MetricCurve]:
    """Return the curves that are not always finite, the first to be so first."""
    names = (name for name in facts.curves.names if re.search(pattern, name, re.IGNORECASE))
    return sorted((c for c in map(facts.curves.curve, names) if len(c.odd)), key=_first_odd)


def _first_odd(curve: MetricCurve) -> int:
    return int(curve.odd[0])


def _last_finite(curve: MetricCurve) -> str:
    """Return `` (last finite at step 9)``, or "" if that is the step just before."""
    before = curve.steps[curve.steps < _first_odd(curve)]
    if not len(before) or _first_odd(curve) - int(before[-1]) <= 1:
        return ""
    return f" (last finite at step {int(before[-1])})"


def _then_nan(facts: Facts, curve: MetricCurve, kind: str) -> str:
    """Return from which step on it is NaN, if it was infinite first, else ""."""
    if kind == "NaN":
        return ""
    rows = facts.curves.parts[curve.name].filter(pl.col("value").is_nan())
    first = rows["step"].min()
    return f", and NaN from step {first} on" if isinstance(first, int) else ""


def _lasts(curve: MetricCurve) -> bool:
    """Return whether it was not finite several times in a row."""
    if len(curve) == 0:
        return True
    every = np.sort(np.concatenate([curve.steps, curve.odd]))
    is_odd = np.isin(every, curve.odd)
    runs = np.convolve(is_odd.astype(int), np.ones(IN_A_ROW, int))
    return bool(runs.max() >= IN_A_ROW)


def _layer(facts: Facts, step: int | None) -> str | None:
    """Return the layer in which it started; None if all or no layers were not finite at that step.

    Gradients are computed from the last layer to the first, so it is the last layer that is not finite.
    """
    if step is None:
        return None
    names = [n for n in facts.curves.names if re.search(GRADIENT, n, re.I) and "/" in n]
    parts = [n for n in names if not n.endswith(("/overall", "/total"))]
    odd = [n for n in parts if step in facts.curves.curve(n).odd]
    if not odd or len(odd) == len(parts):
        return None
    return odd[-1].partition("/")[2]


def _kind(facts: Facts, curves: list[MetricCurve], step: int) -> tuple[str, tuple[int, ...]]:
    """Return "NaN" or "infinite", and the ranks, at this step."""
    rows = [facts.curves.parts[c.name].filter(step=step) for c in curves]
    table = pl.concat(rows).filter(~pl.col("value").is_finite())
    has_nan = bool(table["value"].is_nan().any())
    return "NaN" if has_nan else "infinite", tuple(sorted(set(table["rank"].to_list())))
