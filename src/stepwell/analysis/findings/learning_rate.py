"""Learning rates that are zero or differ from the configuration.

The rules read these keys of the run's configuration: ``learning_rate`` or ``lr`` (one number, or one for each
group), ``lr_ratio`` (``{"backbone": 1, "head": 10}``) and ``scheduler``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from stepwell._core.text import number
from stepwell.analysis.findings.curves import LOSS, MetricCurve, as_number, at_common_steps
from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding, first_of

RATE = r"(^|[/_.-])(lr|learning_?rates?)([/_.-]|$)"
PREFIX = "learning_rate/"
NUMBERED = re.compile(r"(?<=[/_.-])(pg|group|param_group)[/_.-]?\d+$")
"""The end of group names from other libraries: ``lr-Adam/pg1``."""
WRONG = 0.05
FEWEST = 5
FEWEST_ZERO = 10
"""Least number of steps with a learning rate of 0 …"""
ZERO_AT_END = 0.1
"""… and their least share of all steps, at the end of a run."""
NEGLIGIBLE = 1e-6
"""Share of the highest learning rate: with less, weights hardly change."""
SCHEDULER_STEPS = "scheduler_steps"
"""Number of steps of the attached schedulers; recorded only if it is 0."""
ALWAYS_CHANGING = ("cosine", "linear", "onecycle", "one_cycle", "polynomial", "exponential")
KEYS = ("learning_rate", "learning_rates", "lr", "lrs", "base_lr")
RATIOS = ("lr_ratio", "lr_ratios", "learning_rate_ratio", "learning_rate_ratios")
CHECK_GROUPS = (
    "Check the parameter groups of the optimizer, and the code that sets their learning rates."
)
SCHEDULERS = ("scheduler", "lr_scheduler", "lr_scheduler_type", "schedule")
Rates = dict[str, MetricCurve]
"""Learning rates by group."""


def find_wrong_learning_rate(facts: Facts) -> Iterator[Finding]:
    """Yield at most one finding, the first of: zero, ratio, value, group without schedule, schedule."""
    rates = _rates(facts)
    looks = (_zero, _ratio, _value, _left_behind, _schedule) if rates else ()
    return first_of(look(facts, rates) for look in looks)


def _rates(facts: Facts) -> Rates:
    return {c.name.removeprefix(PREFIX): c for c in facts.curves.matching(RATE) if len(c) >= 2}


def _wrong(
    curve: MetricCurve,
    text: str,
    since: int | None = None,
    advice: str = CHECK_GROUPS,
    **evidence: Any,
) -> Finding:
    """Return a finding about the learning rate of a group, from this step or from its first one on."""
    first, last = curve.span
    steps = first if since is None else since, last
    evidence = {"metric": curve.name, **evidence}
    return Finding("learning-rate", "warning", text, evidence, steps, advice=advice)


def is_warming_up(facts: Facts) -> bool:
    """Return whether the learning rate has only risen so far and still rises."""
    for curve in _rates(facts).values():
        values, last = curve.values, float(curve.values[-1])
        before = values[max(0, int(np.searchsorted(curve.steps, 0.8 * curve.steps[-1])) - 1)]
        if last > 1.5 * values[0] and last >= values.max() and last > 1.05 * before:
            return True
    return False


def _zero(facts: Facts, rates: Rates) -> Finding | None:
    """Return a finding if all groups are at 0 or negligible, in the whole run or at its end."""
    curve = max(rates.values(), key=len)
    first = int(curve.steps[0])
    last = max(int(curve.steps[-1]), *(int(loss.steps[-1]) for loss in facts.curves.losses), 0)
    moving = [
        int(c.steps[np.flatnonzero(c.values > NEGLIGIBLE * c.values.max())[-1]])
        for c in rates.values()
        if np.any(c.values > 0)
    ]
    at_end = np.flatnonzero(curve.steps > max(moving, default=-1))
    since = int(curve.steps[at_end[0]]) if len(at_end) else last
    is_whole = not moving and last - first >= FEWEST_ZERO
    # Fewer values, far apart, may just be the end of a schedule.
    is_end = len(at_end) >= 3 and last - since >= max(FEWEST_ZERO, ZERO_AT_END * (last - first))
    if not is_whole and not is_end:
        return None
    final = float(curve.values[-1])
    if is_whole:
        text = f"The learning rate is 0 in all steps from {first} to {last}: the weights do not change."
    elif not np.any(curve.values[at_end]):
        text = f"The learning rate is 0 from step {since} to {last}: the weights do not change."
    else:
        highest = int(curve.values.argmax())
        text = (
            f"The learning rate falls from {number(float(curve.values[highest]))} at step "
            f"{curve.steps[highest]} to {number(float(curve.values[at_end[0]]))} at step {since}"
            f"{_lower(curve, since)}: the weights hardly change{_still(facts, since)}."
        )
    return Finding(
        "zero-learning-rate",
        "critical" if is_whole or last - since >= (last - first) / 2 else "warning",
        text,
        {"metric": curve.name, "since": since, "last": final},
        (since, last),
        advice="Set the learning rate of the optimizer above 0, and check for a scheduler that sets it to 0."
        if is_whole
        else "The schedule is shorter than the run: give the scheduler the actual number of steps. If it "
        "counts epochs, call scheduler.step() once per epoch.",
    )


def _lower(curve: MetricCurve, since: int) -> str:
    """Return the last learning rate as a continuation, if it is lower than at that step, else ""."""
    final, step = float(curve.values[-1]), int(curve.steps[-1])
    is_lower = final < curve.values[np.searchsorted(curve.steps, since)]
    return f" and {number(final)} at step {step}" if is_lower else ""


def _still(facts: Facts, since: int) -> str:
    """Return a clause that names the losses without a change since that step, apart from noise."""
    names = []
    for curve in facts.curves.matching(LOSS):
        values = curve.values[curve.steps >= since]
        if len(values) < 3:
            continue
        half = len(values) // 2
        error = curve.noise * (2 / half) ** 0.5 if half > 1 else curve.noise
        moved = abs(float(np.median(values[half:])) - float(np.median(values[:half])))
        if moved <= max(3 * error, 1e-3 * abs(float(np.median(values)))):
            names.append(curve.name)
    if not names:
        return ""
    verb = "has" if len(names) == 1 else "have"
    return f", and {' and '.join(names[:2])} {verb} not changed since"


def _ratio(facts: Facts, rates: Rates) -> Finding | None:
    """Return a finding if the ratio of two groups differs from the configured one."""
    wanted = _numbers(_first(facts, RATIOS), rates)
    if len(wanted) < 2:
        return None
    base, *others = wanted
    for group in others:
        common, (ours, theirs) = at_common_steps((rates[group], rates[base]))
        if not len(common):
            continue
        is_positive = theirs > 0
        asked = wanted[group] / wanted[base]
        actual = ours[is_positive] / theirs[is_positive]
        off = np.abs(actual / asked - 1) > WRONG
        if off.mean() > 0.5:
            step = int(common[is_positive][np.argmax(off)])
            median = float(np.median(actual[off]))
            text = (
                f"The ratio of the learning rates of {base} and {group} is 1 : {number(median)} from step "
                f"{step} on, not 1 : {number(asked)} as configured."
            )
            return _wrong(rates[group], text, step, ratio=median, asked=asked)
    return None


def _value(facts: Facts, rates: Rates) -> Finding | None:
    """Return a finding if a group exceeds its configured rate, or is constant at a lower one."""
    asked = _first(facts, KEYS)
    wanted = _numbers(asked, rates)
    single = as_number(asked)
    if single is not None and len(_groups(rates)) == 1:
        wanted = {next(iter(rates)): single}
    for group, value in wanted.items():
        curve = rates[group]
        highest = float(curve.values.max())
        is_constant = len(curve) >= FEWEST and _is_constant(curve)
        if highest > (1 + WRONG) * value or (is_constant and highest < (1 - WRONG) * value):
            step = int(curve.steps[curve.values.argmax()])
            text = (
                f"The learning rate of {group} is {number(highest)} at step {step}, "
                f"not {number(value)} as configured."
            )
            return _wrong(curve, text, step, value=highest, asked=value)
    return None


def _left_behind(facts: Facts, rates: Rates) -> Finding | None:
    """Return a finding for a group that does not follow the schedule of the others."""
    groups = {name: c for name, c in _of_one_optimizer(rates).items() if len(c) >= FEWEST}
    moving = [name for name, c in groups.items() if not _is_constant(c)]
    still = [name for name, c in groups.items() if _is_constant(c) and c.values.max() > 0]
    if not still or not moving:
        return None
    group, curve, other = still[0], groups[still[0]], groups[moving[0]]
    text = (
        f"The learning rate of {group} stays at {number(float(curve.values[0]))} while that of "
        f"{moving[0]} goes from {number(float(other.values[0]))} to "
        f"{number(float(other.values[-1]))}: the schedule does not apply to it."
    )
    return _wrong(curve, text, moving=moving)


def _schedule(facts: Facts, rates: Rates) -> Finding | None:
    """Return a finding if a schedule is configured and the rates never change."""
    name = str(_first(facts, SCHEDULERS) or "").lower()
    curve = max(rates.values(), key=len)
    steps = facts.curves.matching(f"^{SCHEDULER_STEPS}$")
    is_idle = bool(steps) and not np.any(steps[0].values)
    is_meant = any(word in name for word in ALWAYS_CHANGING) and len(curve) >= FEWEST
    if not (is_idle or is_meant) or not all(map(_is_constant, rates.values())):
        return None
    why = "a scheduler is attached to the optimizer" if is_idle else f"the schedule is {name}"
    text = (
        f"The learning rate stays at {number(float(curve.values[0]))} from step {curve.steps[0]} to "
        f"{curve.steps[-1]}, although {why}: scheduler.step() is not called."
    )
    advice = "Call scheduler.step() after optimizer.step(), or once per epoch."
    return _wrong(curve, text, advice=advice, scheduler=name)


def _is_constant(curve: MetricCurve) -> bool:
    return float(np.ptp(curve.values)) <= 1e-9 * float(curve.values.max())


def _groups(rates: Rates) -> Rates:
    """Return one curve for each group of the optimizer; the numbered ones if groups also have names."""
    numbered = {name: c for name, c in rates.items() if name.startswith("group_")}
    return numbered or rates


def _of_one_optimizer(rates: Rates) -> Rates:
    """Return the groups of one optimizer. Another optimizer may have another schedule, or none."""
    ours = {name: c for name, c in rates.items() if c.name.startswith(PREFIX)}
    if ours:
        return _groups(ours)
    numbered = {name: c for name, c in rates.items() if NUMBERED.search(name)}
    first = next((NUMBERED.sub("", name) for name in numbered), None)
    return {name: c for name, c in numbered.items() if NUMBERED.sub("", name) == first}


def _first(facts: Facts, keys: tuple[str, ...]) -> Any:
    config = facts.run.config
    parts = [config.get(part) for part in ("optimizer", "optim", "training", "train")]
    # Settings with a class were read from the optimizer when the loop started; a schedule changes them.
    given = [part for part in parts if isinstance(part, Mapping) and "class" not in part]
    values = (part.get(key) for part in (config, *given) for key in keys)
    return next((value for value in values if value is not None), None)


def _numbers(asked: Any, rates: Rates) -> dict[str, float]:
    """Return the configured number of each group that has a curve. A list is in the order of groups."""
    if isinstance(asked, list | tuple):
        asked = {f"group_{i}": value for i, value in enumerate(asked)}
    if not isinstance(asked, Mapping):
        return {}
    numbers = {str(name): as_number(value) for name, value in asked.items()}
    return {name: value for name, value in numbers.items() if value and name in rates}
