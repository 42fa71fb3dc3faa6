"""A loss or gradients that are NaN or infinite: since which step, and in which layer first."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import polars as pl

from stepwell.analysis.findings.curves import Curve
from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding

LOSS = r"(^|[/_.-])loss([/_.-]|$)"
GRADIENT = r"grad(ient)?s?[/_.-]*norm"
IN_A_ROW = 3
"""So many gradients that are not finite, one after the other, are more than a scaler finding its scale."""


def rule(facts: Facts) -> Iterator[Finding]:
    """At most one finding: what was not finite first, with where it came from."""
    every = [facts.curves.curve(name) for name in facts.curves.names]
    # Of several losses the first to go.
    losses = sorted((c for c in every if _is(LOSS, c)), key=_first_odd)
    gradients = sorted((c for c in every if _is(GRADIENT, c)), key=_first_odd)
    gradients = [c for c in gradients if losses or _lasts(c)]
    if not losses and not gradients:
        return
    gradient_step = _first_odd(gradients[0]) if gradients else None
    first = min(_first_odd(c) for c in (*losses, *gradients))
    layer = _layer(facts, gradients, gradient_step)
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
        so = "so" if gradient_kind == kind else gradient_kind
        if gradient_step < _first_odd(main):
            text += f"; gradients were {so} already at step {gradient_step}"
        else:
            sparse = _last_finite(gradients[0])
            when = f"at step {gradient_step}{sparse}" if sparse else f"from step {gradient_step} on"
            text += f"; gradients are {so} {when}"
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
        "Look at the batch of that step; lower the learning rate, clip gradients, guard log and "
        "division, or use bfloat16 in place of float16.",
        facts.command("plot", main.name),
    )


def _is(pattern: str, curve: Curve) -> bool:
    return len(curve.odd) > 0 and bool(re.search(pattern, curve.name, re.IGNORECASE))


def _first_odd(curve: Curve) -> int:
    return int(curve.odd[0])


def _last_finite(curve: Curve) -> str:
    """When it was last known to be finite, to follow the first step at which it was not; "" for the step
    before.
    """
    before = curve.steps[curve.steps < _first_odd(curve)]
    if not len(before) or _first_odd(curve) - int(before[-1]) <= 1:
        return ""
    return f" (last finite at step {int(before[-1])})"


def _then_nan(facts: Facts, curve: Curve, kind: str) -> str:
    """Since when it is NaN, where it was infinite first; "" otherwise."""
    if kind == "NaN":
        return ""
    rows = facts.curves.rows(curve.name).filter(pl.col("value").is_nan())
    first = rows["step"].min()
    return f", and NaN from step {first} on" if isinstance(first, int) else ""


def _lasts(curve: Curve) -> bool:
    """Whether it was not finite several times in a row."""
    if len(curve) == 0:
        return True
    every = np.sort(np.concatenate([curve.steps, curve.odd]))
    is_odd = np.isin(every, curve.odd)
    runs = np.convolve(is_odd.astype(int), np.ones(IN_A_ROW, int))
    return bool(runs.max() >= IN_A_ROW)


def _layer(facts: Facts, gradients: list[Curve], step: int | None) -> str | None:
    """The layer that it began in, when some others were still finite then.

    Gradients are computed from the last layer to the first, so it is the last one of those.
    """
    if step is None:
        return None
    names = [n for n in facts.curves.names if re.search(GRADIENT, n, re.I) and "/" in n]
    parts = [n for n in names if not n.endswith(("/overall", "/total"))]
    odd = [n for n in parts if step in facts.curves.curve(n).odd]
    if not odd or len(odd) == len(parts):
        return None
    return odd[-1].partition("/")[2]


def _kind(facts: Facts, curves: list[Curve], step: int) -> tuple[str, tuple[int, ...]]:
    """NaN or infinite, and on which ranks, at the first step."""
    rows = [facts.curves.rows(c.name).filter(pl.col("step") == step) for c in curves]
    table = pl.concat(rows).filter(~pl.col("value").is_finite())
    has_nan = bool(table["value"].is_nan().any())
    return "NaN" if has_nan else "infinite", tuple(sorted(set(table["rank"].to_list())))
