"""Variants: groups of repeated runs, and whether they differ by more than noise (Welch's t-test)."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from stepwell._core.errors import StepwellError
from stepwell.analysis.compare.differences import (
    arguments_of,
    code_facts,
    config_facts,
    has_config,
    program_of,
    shown,
    text_of,
)
from stepwell.analysis.compare.metrics import MetricComparison
from stepwell.reading import RecordedRun

NAME = "name"
CHANCE = re.compile(
    r"(^|[._])(rng_?)?seeds?$|(^|[._])(run|job|experiment)_?(name|id)$|(^|[._])application_name$"
    r"|(^|[._])name$|(^|[._])(gpu|device|port|master_port|(local_)?rank)s?$|(^|[._])(session_tag|output_dir|log(ging)?_?dir|save_dir|run_dir)$",
    re.IGNORECASE,
)
"""Keys of a configuration in which repeats may differ."""
NUMBERED = re.compile(
    r"([-_. ]+((seed|s|run|rep|repeat|try|trial|r)[-_. =]*)?|[-_. ]*seed)\d+$", re.IGNORECASE
)
"""The end of the names of repeats: adam-1, adam_seed2, adam rep 3."""
LONGEST = 40
TINY = 1e-300
ENOUGH = 1e-15
MOST_TERMS = 500
SIGNIFICANT = 0.05
"""A difference with a p-value below this is reported as more than noise."""


@dataclass(frozen=True)
class Variant:
    """Runs that differ only in the seed. ``runs`` are their indices among the compared runs."""

    label: str
    runs: tuple[int, ...]
    values: dict[str, Any] = field(default_factory=dict)
    """The settings in which it differs from other variants, by key of the configuration."""


@dataclass(frozen=True)
class Spread:
    """One metric of one variant at the last common position."""

    count: int
    mean: float | None
    deviation: float | None
    """Standard deviation; None for fewer than two runs."""
    low: float | None
    high: float | None


@dataclass(frozen=True)
class VariantComparison:
    """One metric over all variants.

    Attributes:
        best: the variant with the best mean; None if fewer than two variants have the metric.
        against: the variant with the next best mean.
        p: the p-values of the best against each other variant, by Welch's t-test with Holm's correction; None
            if there is no test.
        is_more_than_noise: whether the best differs significantly from the next; None if there is no test.
    """

    metric: str
    variants: list[Spread]
    best: int | None = None
    against: int | None = None
    p: list[float | None] = field(default_factory=list)
    is_more_than_noise: bool | None = None


def group_runs(
    runs: Sequence[RecordedRun], labels: Sequence[str], group: str | None = None
) -> list[Variant]:
    """Return the variants: by a key of config, code or labels, by ``name``, or by everything but the seed."""
    if group is None:
        facts = [_own(run) for run in runs]
    elif group == NAME:
        facts = [{NAME: NUMBERED.sub("", run.name) or run.name} for run in runs]
    else:
        facts = [_asked(run, group) for run in runs]
        if all(fact[group] is None for fact in facts):
            raise StepwellError(_unknown_key(runs, group))
    groups: dict[object, list[int]] = {}
    for i, fact in enumerate(facts):
        # Runs without a configuration may differ in anything, so each is a variant of its own.
        settings = frozenset((key, text_of(value)) for key, value in fact.items())
        groups.setdefault(settings or i, []).append(i)
    members = list(groups.values())
    apart = _apart([facts[group[0]] for group in members])
    return [
        Variant(_label(values, member, labels, group), tuple(member), values)
        for member, values in zip(members, apart, strict=True)
    ]


def compare_variants(
    variants: Sequence[Variant], metrics: Sequence[MetricComparison]
) -> list[VariantComparison]:
    """Compare each metric with a known goal; return an empty list if no run was repeated."""
    if not has_repeats(variants):
        return []
    judged = [m for m in metrics if m.goal is not None and m.common_at is not None]
    return [_compare(variants, metric) for metric in judged]


def has_repeats(variants: Sequence[Variant]) -> bool:
    """Return whether any variant has more than one run."""
    return any(len(variant.runs) > 1 for variant in variants)


def _own(run: RecordedRun) -> dict[str, Any]:
    """Return what identifies the variant of a run; empty if no configuration was recorded."""
    if not has_config(run):
        return {}
    facts = {k: v for k, v in config_facts(run).items() if not CHANCE.search(k)}
    commit = code_facts(run).get("code.commit")
    if commit:
        facts["code.commit"] = commit
    chosen = {text_of(v).strip('"') for k, v in config_facts(run).items() if CHANCE.search(k)}
    facts["script"] = program_of(run)
    facts["arguments"] = " ".join(a for a in _lasting(arguments_of(run)) if a not in chosen)
    return facts


def _lasting(arguments: list[str]) -> list[str]:
    """Return a command line without the options in which repeats may differ."""
    kept: list[str] = []
    is_chance = False
    for argument in arguments:
        if is_chance and not argument.startswith("-"):
            is_chance = False
            continue
        name, equals, _ = argument.partition("=")
        is_option = bool(equals) or argument.startswith("-")
        is_chance = is_option and bool(CHANCE.search(name.lstrip("-").replace("-", "_")))
        if not is_chance:
            kept.append(argument)
        is_chance = is_chance and not equals
    return kept


def _asked(run: RecordedRun, key: str) -> dict[str, Any]:
    for facts in (config_facts(run), code_facts(run), run.labels):
        if key in facts:
            return {key: facts[key]}
    return {key: None}


def _unknown_key(runs: Sequence[RecordedRun], key: str) -> str:
    keys = sorted({k for run in runs for k in config_facts(run)})
    shown = ", ".join(keys[:12]) + (f" and {len(keys) - 12} more" if len(keys) > 12 else "")
    return f"no run has {key!r} in its config: group by name" + (
        f", or by one of: {shown}" if shown else ""
    )


def _apart(facts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return for each the settings that are not the same in all."""
    keys = sorted({key for fact in facts for key in fact})
    differing = [k for k in keys if len({text_of(fact.get(k)) for fact in facts}) > 1]
    return [{key: fact.get(key) for key in differing} for fact in facts]


def _label(
    values: dict[str, Any], member: list[int], labels: Sequence[str], group: str | None
) -> str:
    if len(member) == 1 and group is None:
        return labels[member[0]]
    if group == NAME and values:
        return str(values[NAME])
    # Settings may occur twice, such as the learning rate in the hyperparameters and in the optimizer.
    settings = dict.fromkeys(f"{key.rpartition('.')[2]}={shown(v)}" for key, v in values.items())
    text = ", ".join(settings)
    return text if 0 < len(text) <= LONGEST else f"{labels[member[0]]} and its repeats"


def _compare(variants: Sequence[Variant], metric: MetricComparison) -> VariantComparison:
    common = [None if standing is None else standing.common for standing in metric.runs]
    logged = [[v for i in variant.runs if (v := common[i]) is not None] for variant in variants]
    spreads = [_spread(group) for group in logged]
    sign = -1.0 if metric.goal == "lower" else 1.0
    there = [i for i, group in enumerate(logged) if group]
    order = sorted(there, key=lambda i: sign * fmean(logged[i]), reverse=True)
    if len(order) < 2:
        return VariantComparison(metric.name, spreads)
    best, against = order[0], order[1]
    tests = {i: p for i in order[1:] if (p := welch(logged[best], logged[i])) is not None}
    corrected = dict(zip(tests, holm(list(tests.values())), strict=True))
    ps = [corrected.get(i) for i in range(len(variants))]
    is_significant = corrected[against] < SIGNIFICANT if against in corrected else None
    return VariantComparison(metric.name, spreads, best, against, ps, is_significant)


def _spread(values: list[float]) -> Spread:
    if not values:
        return Spread(0, None, None, None, None)
    deviation = math.sqrt(variance(values)) if len(values) > 1 else None
    return Spread(len(values), fmean(values), deviation, min(values), max(values))


def welch(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return the probability that two means differ at least this much by chance.

    This is the two-sided p-value of Welch's t-test, which allows different variances. None if a group has
    fewer than two numbers, or if nothing varies.
    """
    if len(a) < 2 or len(b) < 2:
        return None
    errors = [variance(group) / len(group) for group in (a, b)]
    total = sum(errors)
    if total <= 0:
        return None
    t = (fmean(a) - fmean(b)) / math.sqrt(total)
    parts = [e * e / (len(group) - 1) for e, group in zip(errors, (a, b), strict=True)]
    freedom = total * total / sum(parts)
    return student_tails(t, freedom)


def variance(values: Sequence[float]) -> float:
    """Return the sample variance."""
    centre = fmean(values)
    return math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1)


def holm(ps: Sequence[float]) -> list[float]:
    """Return p-values corrected for several tests: the lowest times their number, the next times one less."""
    corrected = [0.0] * len(ps)
    worst = 0.0
    for place, i in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        worst = max(worst, min(1.0, ps[i] * (len(ps) - place)))
        corrected[i] = worst
    return corrected


def student_tails(t: float, freedom: float) -> float:
    """Return the probability that Student's t is at least this far from 0, on either side."""
    return beta_share(freedom / (freedom + t * t), freedom / 2, 0.5)


def beta_share(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function, by its continued fraction."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        # The fraction converges faster for the complement.
        return 1 - beta_share(1 - x, b, a)
    log = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(log + a * math.log(x) + b * math.log1p(-x)) / a
    return front / _fraction(x, a, b)


def _fraction(x: float, a: float, b: float) -> float:
    """Return 1 + d1/(1 + d2/(1 + …)), by the modified method of Lentz."""
    value, c, d = 1.0, 1.0, 0.0
    for term in range(1, MOST_TERMS):
        m = term // 2
        if term % 2:
            factor = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            factor = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / _away_from_zero(1 + factor * d)
        c = _away_from_zero(1 + factor / c)
        value *= c * d
        if abs(c * d - 1) < ENOUGH:
            break
    return value


def _away_from_zero(value: float) -> float:
    return value if abs(value) > TINY else TINY
