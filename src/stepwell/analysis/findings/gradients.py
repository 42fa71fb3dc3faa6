"""Gradients that explode or vanish: since which step, in which layer most."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from stepwell.analysis.findings.curves import Curve
from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.findings.wording import number

GRADIENT = r"grad(ient)?s?[/_.-]*norm"
PARAMETER = re.compile(r"[./_](\w*_)?(weight|bias)$")
FEWEST = 6
EXPLODES = 30.0
"""So many times what it was at first, over the last values."""
EXPLODES_LEARNING = 300.0
"""The same while the loss is as low as it ever was: gradients may grow as a model gets sure of itself."""
VANISHES = 1e-3
"""So little is left of what it was at first …"""
LOSS_LEFT = 0.5
"""… while the loss still is at least so much of what it was."""
NEAR_LOWEST = 0.1
"""Of all that the loss came down: so near to the lowest is as low."""
TINY = 1e-5
"""Of the largest among the layers: a layer that learns nothing."""


def rule(facts: Facts) -> Iterator[Finding]:
    """Exploding or vanishing over time, and layers that get next to nothing."""
    curves = [c for c in facts.curves.matching(GRADIENT) if len(c) >= FEWEST]
    layers = [c for c in curves if not _is_overall(c.name)]
    main = overall_norm(facts)
    if main is not None and len(main) >= FEWEST:
        yield from _over_time(facts, main, layers)
    yield from _across_layers(facts, layers)


def overall_norm(facts: Facts) -> Curve | None:
    """The norm of all gradients, before clipping where that is known."""
    whole = [c for c in facts.curves.matching(GRADIENT) if _is_overall(c.name)]
    before = [c for c in whole if "before" in c.name]
    return next(iter(before or whole), None)


def _is_overall(name: str) -> bool:
    return "/" not in name or re.search(r"/(overall|total)\b", name) is not None


def _over_time(facts: Facts, main: Curve, layers: list[Curve]) -> Iterator[Finding]:
    early = float(np.median(main.values[: max(3, len(main) // 5)]))
    late = float(np.median(main.values[-max(2, len(main) // 10) :]))
    if early <= 0:
        return
    if late >= (EXPLODES_LEARNING if _is_learning(facts) else EXPLODES) * early:
        step = int(main.steps[np.argmax(main.values >= EXPLODES / 3 * early)])
        layer = _changed_most(layers, 1)
        yield _finding(facts, "exploding-gradients", main, early, late, step, layer)
    elif late <= VANISHES * early and not _has_learnt(facts):
        step = int(main.steps[np.argmax(main.values <= 0.03 * early)])
        layer = _changed_most(layers, -1)
        yield _finding(facts, "vanishing-gradients", main, early, late, step, layer)


def _finding(
    facts: Facts, kind: str, main: Curve, early: float, late: float, step: int, layer: str | None
) -> Finding:
    explodes = kind.startswith("exploding")
    where = f", most in layer {layer}" if layer else ""
    why = "" if explodes else _loss_still(facts)
    return Finding(
        kind,
        "critical",
        f"Gradients {'explode' if explodes else 'vanish'} from step {step} on: {main.name} goes from "
        f"{number(early)} to {number(late)}{where}{why}.",
        {"metric": main.name, "early": early, "late": late, "layer": layer},
        (step, int(main.steps[-1])),
        advice="Clip gradients, lower the learning rate or warm it up; look at the batch of that step."
        if explodes
        else "Look for saturated or dead units, the initialisation and missing normalisation.",
        link=facts.command("plot", "gradient"),
    )


def _loss(facts: Facts) -> Curve | None:
    """The training loss that was logged most often."""
    losses = [c for c in facts.curves.losses if len(c) >= FEWEST]
    return max(losses, key=len, default=None)


def _has_learnt(facts: Facts) -> bool:
    """Whether the loss came down: then small gradients are what is wanted. Unknown counts as yes."""
    loss = _loss(facts)
    return loss is None or loss.level(0.9, 1.0) < LOSS_LEFT * loss.level(0.0, 0.1)


def _is_learning(facts: Facts) -> bool:
    """Whether the loss is at the end about as low as it ever was; not, if it is unknown."""
    loss = _loss(facts)
    if loss is None:
        return False
    lowest, first = float(loss.smooth.min()), loss.level(0.0, 0.1)
    return loss.level(0.9, 1.0) - lowest <= NEAR_LOWEST * (first - lowest)


def _loss_still(facts: Facts) -> str:
    loss = _loss(facts)
    if loss is None:
        return ""
    then, now = number(loss.level(0.0, 0.1)), number(loss.level(0.9, 1.0))
    return f", while {loss.name} is still {now} ({then} at first)"


def _changed_most(layers: list[Curve], sign: int) -> str | None:
    ratios = {}
    for curve in layers:
        early, late = curve.level(0.0, 0.2), curve.level(0.9, 1.0)
        if early > 0 and late > 0:
            ratios[curve.name] = sign * (np.log(late) - np.log(early))
    return max(ratios, key=ratios.__getitem__).partition("/")[2] if ratios else None


def _across_layers(facts: Facts, layers: list[Curve]) -> Iterator[Finding]:
    if len(layers) < 3:
        return
    levels = {c.name: c.level(0.0, 1.0) for c in layers}
    largest = max(levels, key=levels.__getitem__)
    tiny = [name for name, level in levels.items() if 0 < level < TINY * levels[largest]]
    # A bias alone may well have none: what comes after it takes it off again.
    alive = {PARAMETER.sub("", name) for name in levels if name not in tiny}
    tiny = [name for name in tiny if PARAMETER.sub("", name) not in alive]
    if not tiny:
        return
    first = tiny[0]
    curve = facts.curves.curve(first)
    more = len(tiny) - 1
    others = f" and {more} more layer{'s' if more > 1 else ''}" if more else ""
    yield Finding(
        "vanishing-gradients",
        "warning",
        f"Gradients vanish on their way to layer {first.partition('/')[2]}{others}: "
        f"{number(levels[first])} there, {number(levels[largest])} in {largest.partition('/')[2]}, "
        f"from step {int(curve.steps[0])} on.",
        {"metric": first, "layers": tiny, "level": levels[first], "largest": levels[largest]},
        (int(curve.steps[0]), int(curve.steps[-1])),
        advice="Residual connections, normalisation, another activation or initialisation.",
        link=facts.command("plot", "gradient"),
    )
