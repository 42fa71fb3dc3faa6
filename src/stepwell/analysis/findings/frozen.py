"""Layers whose weights do not move."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding

PREFIX = "weight_delta/"
FEWEST = 3
OVERALL = "overall"


def rule(facts: Facts) -> Iterator[Finding]:
    """One finding for all of them."""
    moves = [c for c in facts.curves.matching(f"^{PREFIX}") if len(c) >= FEWEST]
    if not moves:
        return
    still = [c for c in moves if not np.any(c.values)]
    names = [c.name.removeprefix(PREFIX) for c in still]
    if not still:
        return
    if OVERALL in names:
        text = "No weight moves at all"
        layers = [OVERALL]
    else:
        layers = names
        shown = ", ".join(layers[:3]) + (f" and {len(layers) - 3} more" if len(layers) > 3 else "")
        text = f"The weights of {shown} do not move"
    pulled = [n for n in layers if _has_gradient(facts, n)]
    first, last = int(still[0].steps[0]), int(still[0].steps[-1])
    # Without a gradient somebody may have frozen them on purpose.
    is_meant = not pulled and OVERALL not in layers
    reason = (
        "although they have gradients"
        if pulled
        else "and they have no gradient"
        if is_meant
        else ""
    )
    yield Finding(
        "frozen-layers",
        "note" if is_meant else "warning" if OVERALL not in layers else "critical",
        f"{text} from step {first} to {last}{', ' + reason if reason else ''}.",
        {"metric": still[0].name, "layers": layers, "with_gradient": pulled},
        (first, last),
        advice="If that is not meant: requires_grad, detach(), and whether the layer is used at all."
        if is_meant
        else "Are they in the optimizer, and is their learning rate above 0?",
        link=facts.command("plot", f"{PREFIX}*"),
    )


def _has_gradient(facts: Facts, group: str) -> bool:
    name = f"gradient_norm/{group}"
    return name in facts.curves.names and bool(np.any(facts.curves.curve(name).values))
