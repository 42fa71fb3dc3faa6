"""Gradients that explode, vanish or are clipped to almost nothing, and layers whose weights do not change."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import numpy as np

from stepwell._core.text import number, rate
from stepwell.analysis.findings.curves import GRADIENT, MetricCurve, at_common_steps
from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.findings.loss import is_not_meant_to_fall, main_loss

PARAMETER = re.compile(r"[./_](\w*_)?(weight|bias)$")
FEWEST = 6
EXPLODES = 30.0
"""Factor by which the last values exceed the first ones."""
EXPLODES_LEARNING = 300.0
"""The same while the loss is near its minimum: gradients may grow as a model becomes confident."""
VANISHES = 1e-3
"""Share of the first values that is left at the end …"""
LOSS_LEFT = 0.5
"""… while at least this share of the initial loss is left."""
NEAR_LOWEST = 0.1
"""Share of the total decrease of the loss: a loss this close to its minimum is near it."""
TINY = 1e-5
"""Share of the largest norm among the layers: a layer with less does not learn."""
BEFORE = "gradient_norm_before_clipping"
AFTER = "gradient_norm/overall"
FEWEST_CLIPPED = 20
"""Least number of steps with both norms."""
FEWEST_LOSSES = 100
LEFT_BY_CLIPPING = 0.01
"""Gradients with less than this share of their norm left count as clipped away …"""
MOST = 0.5
"""… if more than this share of the steps has such gradients."""
FELL = 0.1
"""A loss that fell by this share shows that the clipped gradients are large enough."""
DELTA = "weight_delta/"
FEWEST_DELTAS = 3
OVERALL = "overall"


def find_exploding_or_vanishing(facts: Facts) -> Iterator[Finding]:
    """Yield findings for gradients that explode or vanish over time, and for layers without gradients."""
    curves = [c for c in facts.curves.matching(GRADIENT) if len(c) >= FEWEST]
    layers = [c for c in curves if not _is_overall(c.name)]
    main = overall_norm(facts)
    if main is not None and len(main) >= FEWEST:
        yield from _over_time(facts, main, layers)
    yield from _across_layers(facts, layers)


def overall_norm(facts: Facts) -> MetricCurve | None:
    """Return the norm of all gradients, before clipping if that was recorded."""
    whole = [c for c in facts.curves.matching(GRADIENT) if _is_overall(c.name)]
    before = [c for c in whole if "before" in c.name]
    return next(iter(before or whole), None)


def _is_overall(name: str) -> bool:
    return "/" not in name or re.search(r"/(overall|total)\b", name) is not None


def _over_time(facts: Facts, main: MetricCurve, layers: list[MetricCurve]) -> Iterator[Finding]:
    early = float(np.median(main.values[: max(3, len(main) // 5)]))
    late = float(np.median(main.values[-max(2, len(main) // 10) :]))
    if early <= 0:
        return
    losses = [c for c in facts.curves.losses if len(c) >= FEWEST]
    loss = max(losses, key=len, default=None)
    evidence = {"metric": main.name, "early": early, "late": late}
    change = f"from {number(early)} to {number(late)}"
    if late >= (EXPLODES_LEARNING if loss and _is_near_lowest(loss) else EXPLODES) * early:
        step = int(main.steps[np.argmax(main.values >= EXPLODES / 3 * early)])
        layer = _changed_most(layers, 1)
        where = f", most in layer {layer}" if layer else ""
        yield Finding(
            "exploding-gradients",
            "critical",
            f"Gradients explode from step {step} on: {main.name} rises {change}{where}.",
            {**evidence, "layer": layer},
            (step, main.span[1]),
            advice="Clip the gradients, lower the learning rate or warm it up, and check the batch of that "
            "step.",
            link=facts.command("plot", "gradient"),
        )
    # If the loss fell, small gradients are expected.
    elif loss and late <= VANISHES * early and loss.end >= LOSS_LEFT * loss.start:
        step = int(main.steps[np.argmax(main.values <= 0.03 * early)])
        layer = _changed_most(layers, -1)
        where = f", most in layer {layer}" if layer else ""
        yield Finding(
            "vanishing-gradients",
            "critical",
            f"Gradients vanish from step {step} on: {main.name} falls {change}{where}, while {loss.name} is "
            f"still {number(loss.end)} ({number(loss.start)} at the start).",
            {**evidence, "layer": layer},
            (step, main.span[1]),
            advice="Check for saturated or dead units, the initialisation and missing normalisation.",
            link=facts.command("plot", "gradient"),
        )


def _is_near_lowest(loss: MetricCurve) -> bool:
    """Return whether a loss ends near its minimum."""
    lowest = float(loss.smooth.min())
    return loss.end - lowest <= NEAR_LOWEST * (loss.start - lowest)


def _changed_most(layers: list[MetricCurve], sign: int) -> str | None:
    ratios = {}
    for curve in layers:
        early, late = curve.level(0.0, 0.2), curve.level(0.9, 1.0)
        if early > 0 and late > 0:
            ratios[curve.name] = sign * (np.log(late) - np.log(early))
    return max(ratios, key=ratios.__getitem__).partition("/")[2] if ratios else None


def _across_layers(facts: Facts, layers: list[MetricCurve]) -> Iterator[Finding]:
    if len(layers) < 3:
        return
    levels = {c.name: c.level(0.0, 1.0) for c in layers}
    largest = max(levels, key=levels.__getitem__)
    tiny = [name for name, level in levels.items() if 0 < level < TINY * levels[largest]]
    # A bias alone may have no gradient: a normalisation after it removes its effect.
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
        f"Gradients vanish on the way to layer {first.partition('/')[2]}{others}: from step "
        f"{int(curve.steps[0])} on their norm is {number(levels[first])} there and "
        f"{number(levels[largest])} in {largest.partition('/')[2]}.",
        {"metric": first, "layers": tiny, "level": levels[first], "largest": levels[largest]},
        curve.span,
        advice="Try residual connections, normalisation, another activation or another initialisation.",
        link=facts.command("plot", "gradient"),
    )


def find_clipping(facts: Facts) -> Iterator[Finding]:
    """Yield at most one finding for the run.

    Only for SGD: adaptive optimizers divide by the size of the gradients, so clipping matters little.
    """
    names = facts.curves.names
    if BEFORE not in names or AFTER not in names or not _is_plain(facts):
        return
    before, after = facts.curves.curve(BEFORE), facts.curves.curve(AFTER)
    steps, (old, new) = at_common_steps((before, after))
    cut = new < LEFT_BY_CLIPPING * old
    if len(steps) < FEWEST_CLIPPED or cut.mean() <= MOST:
        return
    loss = main_loss(facts)
    if loss is None or len(loss) < FEWEST_LOSSES or is_not_meant_to_fall(facts):
        return
    first, last = loss.start, loss.end
    if first - last >= FELL * abs(first):
        return
    typical, left = float(np.median(old[cut])), float(np.median(new[cut]))
    smaller = f"{rate(typical / left)} times smaller than without clipping" if left > 0 else "zero"
    falls = "hardly falls" if last < first else "does not fall"
    yield Finding(
        "clipping",
        "warning",
        f"Clipping cuts the gradient norm from {number(typical)} to {number(left)} in {int(cut.sum())} of "
        f"{len(steps)} sampled steps: each update is {smaller}, and {loss.name} {falls} "
        f"({number(first)} at the start, {number(last)} at the end).",
        {
            "metric": BEFORE,
            "before": typical,
            "after": left,
            "cut": int(cut.sum()),
            "samples": len(steps),
        },
        (int(steps[0]), int(steps[-1])),
        advice="Raise max_norm of clip_grad_norm_(), or unscale the gradients before clipping them.",
        link=facts.command("plot", AFTER, BEFORE),
    )


def _is_plain(facts: Facts) -> bool:
    """Return whether the optimizer's updates are proportional to the gradients."""
    optimizer = facts.run.config.get("optimizer")
    name = optimizer.get("class") if isinstance(optimizer, Mapping) else optimizer
    return isinstance(name, str) and "sgd" in name.lower()


def find_frozen_layers(facts: Facts) -> Iterator[Finding]:
    """Yield at most one finding for all layers."""
    moves = [c for c in facts.curves.matching(f"^{DELTA}") if len(c) >= FEWEST_DELTAS]
    still = [c for c in moves if not np.any(c.values)]
    if not still:
        return
    layers = [c.name.removeprefix(DELTA) for c in still]
    if OVERALL in layers:
        text, layers = "No weight changes", [OVERALL]
    else:
        shown = ", ".join(layers[:3]) + (f" and {len(layers) - 3} more" if len(layers) > 3 else "")
        text = f"The weights of {shown} do not change"
    pulled = [n for n in layers if _has_gradient(facts, n)]
    first, last = still[0].span
    # Layers without a gradient may be frozen on purpose.
    is_meant = not pulled and OVERALL not in layers
    reason = ", and they have no gradient" if is_meant else ""
    reason = ", although they have gradients" if pulled else reason
    yield Finding(
        "frozen-layers",
        "note" if is_meant else "warning" if OVERALL not in layers else "critical",
        f"{text} from step {first} to {last}{reason}.",
        {"metric": still[0].name, "layers": layers, "with_gradient": pulled},
        (first, last),
        advice="If this is not intended, check requires_grad, detach(), and whether the layer is used."
        if is_meant
        else "Check that they are in the optimizer and that their learning rate is above 0.",
        link=facts.command("plot", f"{DELTA}*"),
    )


def _has_gradient(facts: Facts, group: str) -> bool:
    name = f"gradient_norm/{group}"
    return name in facts.curves.names and bool(np.any(facts.curves.curve(name).values))
