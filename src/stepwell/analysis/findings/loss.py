"""The training loss itself: diverged, rising, flat, or at the level of guessing.

Levels are medians over parts of the curve, so that single values do not matter. A difference counts only when
it is more than the noise of these medians, and a loss is called flat only when the noise is small enough to
rule out that it fell. Losses that are not meant to fall (of one among several optimizers, of reinforcement
learning) are only looked at for divergence.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from stepwell.analysis.findings.curves import Curve
from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.findings.learning_rate import is_warming_up
from stepwell.analysis.findings.stuck import class_count
from stepwell.analysis.findings.wording import number
from stepwell.analysis.time import ledger

FEWEST = 30
"""Values that a loss must have to be judged, divergence beyond doubt aside."""
FEWEST_CERTAIN = 8
DIVERGED = 10.0
"""Times the level at the start …"""
DIVERGED_NOISES = 10.0
"""… and this many times the noise at the start above it."""
DIVERGED_CERTAIN = 100.0
"""Times the level at the start, in the last three values: enough for short runs."""
SMALL = 0.1
"""Losses below this have converged, whatever they do there."""
RISES = 0.2
"""By this share of the level at the start the end must be higher."""
BACK = 0.5
"""Or this share of the way that the loss had come down is lost again."""
BLOCKS = 20
SIGNIFICANT = 5.0
"""Standard errors."""
FELL = 0.05
"""A loss that fell by this share, or may have done so within the noise, is not flat."""
SWING = 0.03
"""Of the level: parts of a flat loss are no further apart, noise aside."""
FEWEST_FLAT = 100
MOST_APART = 10
"""Steps between two values: further apart the fall of the first steps may lie before the first value."""
NEAR_CHANCE = 0.01
NEAR_KNOWN_CHANCE = 0.03
CLASS_COUNTS = (*range(2, 11), 100, 1000)
"""Numbers of classes that are assumed when none is configured."""
REINFORCEMENT = re.compile(
    r"(^|[/_.\-\s])(reward|return|episode|episodic|rollout|advantage|policy|actor|critic|td|q|ppo|env"
    r"|environment|gae|gym)s?([/_.\-\s]|$)",
    re.IGNORECASE,
)
ADVERSARIAL = re.compile(
    r"(^|[/_.\-\s])(gan|generator|discriminator|adversarial|gen|disc|d|g)([/_.\-\s]|$)",
    re.IGNORECASE,
)
TERM = re.compile(
    r"(^|[/_.\-])(kl|kld|kl_?div|commit|commitment|codebook|vq|aux|auxiliary|balance|balancing|entropy|penalty"
    r"|reg|regulari[sz]ation|prior)([/_.\-]|$)",
    re.IGNORECASE,
)
"""Terms of a loss that may start at 0 and rise: the KL divergence of a VAE, auxiliary losses, penalties."""
PRETRAINED = re.compile(
    r"pretrain|fine.?tun|resume|lora|adapter|base_model|name_or_path|warm_start|init_from|load_from"
    r"|(from|load)_(checkpoint|ckpt|weights)|^(checkpoint|ckpt|weights)(_path)?$",
    re.IGNORECASE,
)
"""Keys of a configuration that say that training starts from trained weights."""


@dataclass(frozen=True)
class Shape:
    """A loss curve in a few robust numbers.

    Attributes:
        first: median of the first tenth.
        last: median of the last tenth.
        blocks: medians of equal parts, ``BLOCKS`` at most.
        error: standard error of the median of a tenth.
        noise: standard deviation of single values.
    """

    first: float
    last: float
    blocks: NDArray[np.float64]
    error: float
    noise: float


def rule(facts: Facts) -> Iterator[Finding]:
    """At most one finding for each loss: diverged, else rising, at chance or flat."""
    for curve in judged_losses(facts):
        found = _diverged(facts, curve)
        if found is not None:
            yield found
            return
    main = main_loss(facts)
    if main is None or len(main) < FEWEST or is_not_meant_to_fall(facts):
        return
    shape = shape_of(main)
    for look in (_rises, _rises_again, _at_chance, _flat):
        found = look(facts, main, shape)
        if found is not None:
            yield found
            return


def main_loss(facts: Facts) -> Curve | None:
    """The training loss: of those named so, the one with the most values."""
    named = [curve for curve in facts.curves.losses if facts.curves.is_whole_loss(curve.name)]
    return max(named, key=len, default=None)


def judged_losses(facts: Facts) -> list[Curve]:
    """The training loss; without one its parts, except for terms that rise in healthy trainings, too."""
    main = main_loss(facts)
    if main is not None and len(main) >= FEWEST_CERTAIN:
        return [main]
    return [curve for curve in facts.curves.losses if not TERM.search(curve.name)]


def shape_of(curve: Curve) -> Shape:
    """Medians and noise of a curve."""
    values = curve.values
    tenth = max(3, len(values) // 10)
    edges = np.linspace(0, len(values), min(BLOCKS, len(values) // 3) + 1).astype(int)
    parts = [values[low:high] for low, high in pairwise(edges)]
    blocks = np.array([np.median(part) for part in parts])
    # Within a part the trend is small; the parts at both ends matter most.
    spreads = [1.4826 * float(np.median(np.abs(part - np.median(part)))) for part in parts]
    noise = max(float(np.median(spreads)), curve.noise)
    wander = 1.4826 * float(np.median(np.abs(np.diff(blocks)))) / math.sqrt(2)
    error = max(1.2533 * noise / math.sqrt(tenth), wander)
    return Shape(
        float(np.median(values[:tenth])), float(np.median(values[-tenth:])), blocks, error, noise
    )


def _diverged(facts: Facts, curve: Curve) -> Finding | None:
    values = curve.values
    if len(values) < FEWEST_CERTAIN:
        return None
    start = values[: max(3, len(values) // 20)]
    base = abs(float(np.median(start)))
    last = float(values[-3:].min())
    end = float(np.median(values[-max(3, len(values) // 20) :]))
    spread = 1.4826 * float(np.median(np.abs(start - np.median(start))))
    least = max(base, 1e-12)
    is_certain = last > DIVERGED_CERTAIN * least and last > DIVERGED_NOISES * spread
    is_judged = len(values) >= FEWEST and not is_not_meant_to_fall(facts)
    first = abs(float(values[0]))
    if is_judged and not is_certain and last > DIVERGED_CERTAIN * first:
        # Gone after the first step already: nothing comes near the first value again.
        is_certain = float(np.quantile(values[1:], 0.05)) > DIVERGED * first > 0
        base = first if is_certain else base
    is_likely = (
        is_judged and end > DIVERGED * least and end - base > DIVERGED_NOISES * max(spread, 1e-12)
    )
    final = float(values[-1])
    if not (is_certain or is_likely) or max(end, last) < SMALL:
        return None
    low = curve.smooth <= 3 * base
    since = int(np.flatnonzero(low)[-1]) + 1 if low.any() else 0
    step = int(curve.steps[min(since, len(values) - 1)])
    more = _gradient_growth(facts, step)
    return Finding(
        "diverged",
        "critical",
        f"The loss diverges from step {step} on: {curve.name} goes from {number(base)} to "
        f"{number(final)} at step {int(curve.steps[-1])}{more}.",
        {"metric": curve.name, "first": base, "last": final, "since": step},
        (step, int(curve.steps[-1])),
        advice="Check that zero_grad() is called in every step; lower the learning rate, warm it up, or "
        "clip gradients.",
        link=facts.command("plot", curve.name),
    )


def _gradient_growth(facts: Facts, step: int) -> str:
    from stepwell.analysis.findings.gradients import overall_norm

    curve = overall_norm(facts)
    if curve is None or len(curve) < 2:
        return ""
    first, last = float(np.median(curve.values[:3])), float(curve.values[-1])
    if not last > DIVERGED * first:
        return ""
    return f", the gradient norm from {number(first)} to {number(last)}"


def _rises(facts: Facts, curve: Curve, shape: Shape) -> Finding | None:
    """Worse at the end than at the start."""
    rise = shape.last - shape.first
    scale = max(abs(shape.first), shape.noise)
    margin = max(RISES * scale, SIGNIFICANT * shape.error)
    late = shape.blocks[-max(2, len(shape.blocks) // 5) :]
    if rise < margin or shape.last < SMALL or late.min() < shape.first + margin / 2:
        return None
    # A start that is still falling has its level from before that.
    if float(np.median(curve.values[:3])) > shape.last:
        return None
    return Finding(
        "rising-loss",
        "critical" if shape.last > 2 * abs(shape.first) else "warning",
        f"The loss rises: {curve.name} is {number(shape.first)} in the first tenth of the steps and "
        f"{number(shape.last)} in the last tenth (steps {int(curve.steps[0])} to {int(curve.steps[-1])}).",
        {"metric": curve.name, "first": shape.first, "last": shape.last},
        (int(curve.steps[0]), int(curve.steps[-1])),
        advice="Lower the learning rate; check the sign of the loss, and that the data and labels do not "
        "change during the run.",
        link=facts.command("plot", curve.name),
    )


def _rises_again(facts: Facts, curve: Curve, shape: Shape) -> Finding | None:
    """Came down, and went up again for good."""
    blocks = shape.blocks
    lowest = int(blocks.argmin())
    low, top = float(blocks[lowest]), max(float(blocks[0]), float(np.median(curve.values[:3])))
    end = float(np.median(blocks[-2:]))
    rise = end - low
    lasting = blocks[lowest + 1 :]
    if (
        len(lasting) < max(3, len(blocks) // 5)
        or rise < BACK * (top - low)
        or rise < max(BACK * abs(low), SIGNIFICANT * shape.error, 3 * shape.noise / 2)
        or end < SMALL
        or not _goes_up(lasting, low)
    ):
        return None
    step = int(curve.steps[lowest * len(curve) // len(blocks)])
    return Finding(
        "rising-loss",
        "warning",
        f"The loss rises again from about step {step} on: {curve.name} falls from {number(top)} to "
        f"{number(low)} and is {number(end)} at the end.",
        {"metric": curve.name, "first": top, "lowest": low, "last": end, "since": step},
        (step, int(curve.steps[-1])),
        advice="Lower the learning rate or let it decay; check that the data do not change during the run.",
        link=facts.command("plot", curve.name),
    )


def _goes_up(blocks: NDArray[np.float64], low: float) -> bool:
    """Whether the latter half is above the first half, and nowhere near the lowest again."""
    half = len(blocks) // 2
    first, second = np.median(blocks[: half or 1]), np.median(blocks[half:])
    return bool(second >= first and blocks[half:].min() > low + 0.5 * (second - low))


def _at_chance(facts: Facts, curve: Curve, shape: Shape) -> Finding | None:
    """Where a classifier ends that says the same of every example: at the logarithm of the classes."""
    half = len(curve) // 2
    level = float(np.median(curve.values[half:]))
    swing = float(np.ptp(shape.blocks[len(shape.blocks) // 2 :]))
    if level <= 0 or swing > _most_swing(curve, shape, level) or is_warming_up(facts):
        return None
    classes = _chance_of(level, class_count(facts), curve, shape)
    if classes is None:
        return None
    return Finding(
        "at-chance",
        "critical",
        f"The loss stays at {level:.4g} = ln {classes}, chance level for {classes} classes "
        f"({curve.name}, steps {int(curve.steps[half])} to {int(curve.steps[-1])}).",
        {"metric": curve.name, "level": level, "classes": classes},
        (int(curve.steps[0]), int(curve.steps[-1])),
        advice="Check that labels belong to their inputs, that the loss is computed from the model's output, "
        "and the learning rate.",
        link=facts.command("plot", curve.name),
    )


def _most_swing(curve: Curve, shape: Shape, level: float) -> float:
    """How far apart the medians of parts may be that have the same level."""
    error = 1.2533 * shape.noise / math.sqrt(len(curve) / len(shape.blocks))
    return min(max(SWING * level, 5 * error), 0.1 * level)


def _chance_of(level: float, known: int | None, curve: Curve, shape: Shape) -> int | None:
    """The number of classes whose chance level this is."""
    if known is not None:
        is_near = abs(level / math.log(known) - 1) < NEAR_KNOWN_CHANCE
        return known if is_near and shape.noise < 0.2 * level else None
    # A healthy loss may well end near such a level, but not without noise.
    if shape.noise > (0.1 if _is_flat(curve, shape) else 0.015) * level:
        return None
    error = 1.2533 * shape.noise / math.sqrt(len(curve) / 2)
    near = min(NEAR_CHANCE, max(NEAR_CHANCE / 2, 3 * error / level))
    nearest = min(CLASS_COUNTS, key=lambda count: abs(level - math.log(count)))
    return nearest if abs(level / math.log(nearest) - 1) < near else None


def _flat(facts: Facts, curve: Curve, shape: Shape) -> Finding | None:
    level = float(np.median(curve.values))
    is_dense = float(np.median(np.diff(curve.steps))) <= MOST_APART
    if (
        len(curve) < FEWEST_FLAT
        or not is_dense
        or level < SMALL
        or is_warming_up(facts)
        or _starts_trained(facts, curve)
        or not _is_flat(curve, shape)
    ):
        return None
    return Finding(
        "flat-loss",
        "warning",
        f"The loss does not decrease: {curve.name} is {number(shape.first)} in the first tenth of the steps "
        f"and {number(shape.last)} in the last tenth (steps {int(curve.steps[0])} to "
        f"{int(curve.steps[-1])}).",
        {"metric": curve.name, "first": shape.first, "last": shape.last},
        (int(curve.steps[0]), int(curve.steps[-1])),
        advice="Try a larger learning rate; check that labels belong to their inputs, and that the loss is "
        "computed from the model's output without detach() or no_grad().",
        link=facts.command("plot", curve.name),
    )


def _is_flat(curve: Curve, shape: Shape) -> bool:
    """Whether the noise rules out that the loss fell, in the first steps or over the whole run."""
    values, level = curve.values, abs(float(np.median(curve.values)))
    if shape.first - shape.last + 2 * math.sqrt(2) * shape.error > FELL * level:
        return False
    for count in (1, 3, 10, len(values) // 100, len(values) // 30):
        if count:
            head = float(np.median(values[:count]))
            error = 1.2533 * shape.noise / math.sqrt(count)
            if head - level > max(SWING * level, 3.5 * error):
                return False
    return float(np.ptp(shape.blocks)) <= 2 * _most_swing(curve, shape, level)


def is_not_meant_to_fall(facts: Facts) -> bool:
    """Whether the run is one of reinforcement or adversarial learning by its metrics and configuration."""
    if sum(curve.name.startswith("loss/") for curve in facts.curves.losses) > 1:
        # One for each of several optimizers.
        return True
    names = [*facts.curves.names, *_keys(facts.run.config)]
    return any(REINFORCEMENT.search(name) for name in names) or any(
        ADVERSARIAL.search(name)
        for name in names
        if "loss" in name.lower() or "gan" in name.lower()
    )


def _starts_trained(facts: Facts, curve: Curve) -> bool:
    """Whether training goes on from weights that were trained before, as far as anything says so."""
    if int(curve.steps[0]) > MOST_APART or facts.attempts > 1:
        return True
    if "restore" in ledger(facts.accounts, by=())["phase"].to_list():
        return True
    return any(PRETRAINED.search(key) for key in _keys(facts.run.config))


def _keys(config: Mapping[str, object]) -> Iterator[str]:
    """The keys of a configuration whose value is not empty, nested ones too."""
    for key, value in config.items():
        if value not in (None, False, "", 0):
            yield str(key)
        if isinstance(value, Mapping):
            yield from _keys(value)
