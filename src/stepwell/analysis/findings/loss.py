"""The training loss: diverged, rising, flat, or at chance level.

Levels are medians over parts of the curve, so single values do not matter. A difference counts only if it is
larger than the noise of these medians, and a loss is called flat only if the noise is small enough to rule
out that it fell. Losses that need not fall (with several optimizers, in reinforcement learning) are only
checked for divergence.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from stepwell._core.text import number
from stepwell.analysis.findings.curves import MetricCurve, spread
from stepwell.analysis.findings.facts import Facts, class_count
from stepwell.analysis.findings.finding import Finding, first_of
from stepwell.analysis.findings.learning_rate import is_warming_up
from stepwell.analysis.timeline import ledger

FEWEST = 30
"""Least number of values to judge a loss, except for certain divergence."""
FEWEST_CERTAIN = 8
DIVERGED = 10.0
"""A diverged loss ends at this many times its initial level …"""
DIVERGED_NOISES = 10.0
"""… and exceeds it by this many times the initial noise."""
DIVERGED_CERTAIN = 100.0
"""If the last three values exceed the initial level by this factor, a short run is enough."""
SMALL = 0.1
"""Losses below this have converged, so changes do not matter."""
RISES = 0.2
"""A rising loss ends higher by this share of its initial level."""
BACK = 0.5
"""A loss that rises again has lost this share of its decrease."""
BLOCKS = 20
SIGNIFICANT = 5.0
"""A rise must be larger than this many standard errors."""
FELL = 0.05
"""A loss that fell by this share, or may have done so within the noise, is not flat."""
SWING = 0.03
"""The parts of a flat loss differ by at most this share of its level, apart from noise."""
FEWEST_FLAT = 100
MOST_APART = 10
"""Most steps between two values. If they are further apart, the first one may miss the initial decrease."""
NEAR_CHANCE = 0.01
NEAR_KNOWN_CHANCE = 0.03
CLASS_COUNTS = (*range(2, 11), 100, 1000)
"""Numbers of classes to try if none is configured."""
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
"""Keys of a configuration that show that training starts from trained weights."""


@dataclass(frozen=True)
class Shape:
    """Robust statistics of a loss curve.

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


def find_loss_problems(facts: Facts) -> Iterator[Finding]:
    """Yield at most one finding: diverged, rising, at chance or flat."""
    return first_of(_problems(facts))


def _problems(facts: Facts) -> Iterator[Finding | None]:
    yield from (_diverged(facts, curve) for curve in judged_losses(facts))
    main = main_loss(facts)
    if main is None or len(main) < FEWEST or is_not_meant_to_fall(facts):
        return
    shape = shape_of(main)
    yield from (look(facts, main, shape) for look in (_rises, _rises_again, _at_chance, _flat))


def main_loss(facts: Facts) -> MetricCurve | None:
    """Return the total training loss; of several, the one with the most values."""
    named = [curve for curve in facts.curves.losses if facts.curves.is_whole_loss(curve.name)]
    return max(named, key=len, default=None)


def judged_losses(facts: Facts) -> list[MetricCurve]:
    """Return the total training loss, or else its terms, without those that may rise in a healthy run."""
    main = main_loss(facts)
    if main is not None and len(main) >= FEWEST_CERTAIN:
        return [main]
    return [curve for curve in facts.curves.losses if not TERM.search(curve.name)]


def shape_of(curve: MetricCurve) -> Shape:
    """Return the medians and the noise of a curve."""
    values = curve.values
    tenth = max(3, len(values) // 10)
    edges = np.linspace(0, len(values), min(BLOCKS, len(values) // 3) + 1).astype(int)
    parts = [values[low:high] for low, high in pairwise(edges)]
    blocks = np.array([np.median(part) for part in parts])
    # Within one part the trend is small compared to the noise.
    noise = max(float(np.median([spread(part) for part in parts])), curve.noise)
    wander = 1.4826 * float(np.median(np.abs(np.diff(blocks)))) / math.sqrt(2)
    error = max(1.2533 * noise / math.sqrt(tenth), wander)
    return Shape(
        float(np.median(values[:tenth])), float(np.median(values[-tenth:])), blocks, error, noise
    )


def _diverged(facts: Facts, curve: MetricCurve) -> Finding | None:
    values = curve.values
    if len(values) < FEWEST_CERTAIN:
        return None
    start = values[: max(3, len(values) // 20)]
    base = abs(float(np.median(start)))
    last = float(values[-3:].min())
    end = float(np.median(values[-max(3, len(values) // 20) :]))
    noise = spread(start)
    least = max(base, 1e-12)
    is_certain = last > DIVERGED_CERTAIN * least and last > DIVERGED_NOISES * noise
    is_judged = len(values) >= FEWEST and not is_not_meant_to_fall(facts)
    first = abs(float(values[0]))
    if is_judged and not is_certain and last > DIVERGED_CERTAIN * first:
        # Diverged after the first step: no later value is close to the first one.
        is_certain = float(np.quantile(values[1:], 0.05)) > DIVERGED * first > 0
        base = first if is_certain else base
    is_likely = (
        is_judged and end > DIVERGED * least and end - base > DIVERGED_NOISES * max(noise, 1e-12)
    )
    final = float(values[-1])
    if not (is_certain or is_likely) or max(end, last) < SMALL:
        return None
    low = curve.smooth <= 3 * base
    since = int(np.flatnonzero(low)[-1]) + 1 if low.any() else 0
    step = int(curve.steps[min(since, len(values) - 1)])
    more = _gradient_growth(facts)
    return Finding(
        "diverged",
        "critical",
        f"The loss diverges from step {step} on: {curve.name} rises from {number(base)} to "
        f"{number(final)} at step {curve.steps[-1]}{more}.",
        {"metric": curve.name, "first": base, "last": final, "since": step},
        (step, curve.span[1]),
        advice="Check that zero_grad() is called in every step. Then try a lower learning rate, a warm-up or "
        "gradient clipping.",
    )


def _gradient_growth(facts: Facts) -> str:
    from stepwell.analysis.findings.gradients import overall_norm

    curve = overall_norm(facts)
    if curve is None or len(curve) < 2:
        return ""
    first, last = float(np.median(curve.values[:3])), float(curve.values[-1])
    if not last > DIVERGED * first:
        return ""
    return f", and the gradient norm from {number(first)} to {number(last)}"


def _rises(facts: Facts, curve: MetricCurve, shape: Shape) -> Finding | None:
    """Return a finding if the loss is higher at the end than at the start."""
    rise = shape.last - shape.first
    scale = max(abs(shape.first), shape.noise)
    margin = max(RISES * scale, SIGNIFICANT * shape.error)
    late = shape.blocks[-max(2, len(shape.blocks) // 5) :]
    if rise < margin or shape.last < SMALL or late.min() < shape.first + margin / 2:
        return None
    # A loss that falls within the first tenth started higher than that tenth's median.
    if float(np.median(curve.values[:3])) > shape.last:
        return None
    return Finding(
        "rising-loss",
        "critical" if shape.last > 2 * abs(shape.first) else "warning",
        f"The loss rises: {curve.name} is {number(shape.first)} in the first tenth of the steps and "
        f"{number(shape.last)} in the last tenth (steps {curve.steps[0]} to {curve.steps[-1]}).",
        {"metric": curve.name, "first": shape.first, "last": shape.last},
        curve.span,
        advice="Lower the learning rate. Check the sign of the loss, and that data and labels do not change "
        "during the run.",
    )


def _rises_again(facts: Facts, curve: MetricCurve, shape: Shape) -> Finding | None:
    """Return a finding if the loss fell and then rose again until the end."""
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
        f"{number(low)}, then rises to {number(end)}.",
        {"metric": curve.name, "first": top, "lowest": low, "last": end, "since": step},
        (step, curve.span[1]),
        advice="Lower the learning rate or let it decay, and check that the data do not change during the "
        "run.",
    )


def _goes_up(blocks: NDArray[np.float64], low: float) -> bool:
    """Return whether the second half is higher than the first half and never near the minimum again."""
    half = len(blocks) // 2
    first, second = np.median(blocks[: half or 1]), np.median(blocks[half:])
    return bool(second >= first and blocks[half:].min() > low + 0.5 * (second - low))


def _at_chance(facts: Facts, curve: MetricCurve, shape: Shape) -> Finding | None:
    """Return a finding if the loss stays at ln(classes), as when all examples get the same prediction."""
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
        f"({curve.name}, steps {curve.steps[half]} to {curve.steps[-1]}).",
        {"metric": curve.name, "level": level, "classes": classes},
        curve.span,
        advice="Check that the labels match the inputs, that the loss is computed from the model's output, "
        "and the learning rate.",
    )


def _most_swing(curve: MetricCurve, shape: Shape, level: float) -> float:
    """Return the largest difference between medians of parts that have the same level."""
    error = 1.2533 * shape.noise / math.sqrt(len(curve) / len(shape.blocks))
    return min(max(SWING * level, 5 * error), 0.1 * level)


def _chance_of(level: float, classes: int | None, curve: MetricCurve, shape: Shape) -> int | None:
    """Return the number of classes that has this chance level; ``classes`` is the configured number."""
    if classes is not None:
        is_near = abs(level / math.log(classes) - 1) < NEAR_KNOWN_CHANCE
        return classes if is_near and shape.noise < 0.2 * level else None
    # A healthy loss may end near such a level by accident, but not without noise.
    if shape.noise > (0.1 if _is_flat(curve, shape) else 0.015) * level:
        return None
    error = 1.2533 * shape.noise / math.sqrt(len(curve) / 2)
    near = min(NEAR_CHANCE, max(NEAR_CHANCE / 2, 3 * error / level))
    nearest = min(CLASS_COUNTS, key=lambda count: abs(level - math.log(count)))
    return nearest if abs(level / math.log(nearest) - 1) < near else None


def _flat(facts: Facts, curve: MetricCurve, shape: Shape) -> Finding | None:
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
        f"and {number(shape.last)} in the last tenth (steps {curve.steps[0]} to {curve.steps[-1]}).",
        {"metric": curve.name, "first": shape.first, "last": shape.last},
        curve.span,
        advice="Try a larger learning rate. Check that the labels match the inputs, and that the loss is "
        "computed from the model's output without detach() or no_grad().",
    )


def _is_flat(curve: MetricCurve, shape: Shape) -> bool:
    """Return whether the noise rules out that the loss fell, in the first steps or over the whole run."""
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
    """Return whether metrics and configuration suggest reinforcement or adversarial learning."""
    if sum(curve.name.startswith("loss/") for curve in facts.curves.losses) > 1:
        # Several optimizers, with a loss each.
        return True
    names = [*facts.curves.names, *_keys(facts.run.config)]
    return any(REINFORCEMENT.search(name) for name in names) or any(
        ADVERSARIAL.search(name)
        for name in names
        if "loss" in name.lower() or "gan" in name.lower()
    )


def _starts_trained(facts: Facts, curve: MetricCurve) -> bool:
    """Return whether training continues from trained weights, as far as that was recorded."""
    if int(curve.steps[0]) > MOST_APART or facts.attempts > 1:
        return True
    if "restore" in ledger(facts.timelines, by=())["phase"].to_list():
        return True
    return any(PRETRAINED.search(key) for key in _keys(facts.run.config))


def _keys(config: Mapping[str, object]) -> Iterator[str]:
    """Yield the keys of a configuration with a value that is not empty, including nested keys."""
    for key, value in config.items():
        if value not in (None, False, "", 0):
            yield str(key)
        if isinstance(value, Mapping):
            yield from _keys(value)
