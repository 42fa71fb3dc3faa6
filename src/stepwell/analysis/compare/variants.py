"""Runs that are the same thing done again, and how far such groups are apart."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from stepwell.analysis.compare.facts import (
    arguments_of,
    code_facts,
    config_facts,
    has_config,
    program_of,
    text_of,
)
from stepwell.analysis.compare.metrics import MetricComparison
from stepwell.analysis.compare.significance import SIGNIFICANT, Test, holm, mean, variance, welch
from stepwell.journal.errors import StepwellError
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


@dataclass(frozen=True)
class Variant:
    """Runs that differ in nothing but the seed. ``runs`` are their places among those compared."""

    label: str
    runs: tuple[int, ...]
    values: dict[str, Any] = field(default_factory=dict)
    """What it has that other variants have not, by key of the configuration."""


@dataclass(frozen=True)
class Spread:
    """One metric of one variant at the last common place."""

    count: int
    mean: float | None
    deviation: float | None
    """Standard deviation; None of fewer than two."""
    low: float | None
    high: float | None


@dataclass(frozen=True)
class VariantComparison:
    """One metric over all variants.

    Attributes:
        best: the variant with the best mean, ``against`` the next; None where fewer than two have it.
        p: of the best against each other variant, by Welch's t-test, corrected for how many they are (Holm);
            None where nothing can be said.
        is_more_than_noise: whether the best one is better than the next by more than chance brings about.
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
    """Sort runs into variants: by a key of config, code or labels, by ``name``, or by all but the seed."""
    if group is None:
        facts = [_own(run) for run in runs]
    elif group == NAME:
        facts = [{NAME: NUMBERED.sub("", run.name) or run.name} for run in runs]
    else:
        facts = [_asked(run, group) for run in runs]
        if all(fact[group] is None for fact in facts):
            raise StepwellError(_unknown_key(runs, group))
    groups: dict[str, list[int]] = {}
    for i, fact in enumerate(facts):
        # Nothing is known of runs without a configuration: neither that they are alike.
        key = (
            json.dumps({k: text_of(v) for k, v in fact.items()}, sort_keys=True) if fact else f"{i}"
        )
        groups.setdefault(key, []).append(i)
    members = list(groups.values())
    apart = _apart([facts[group[0]] for group in members])
    return [
        Variant(_label(values, member, labels, group), tuple(member), values)
        for member, values in zip(members, apart, strict=True)
    ]


def compare_variants(
    variants: Sequence[Variant], metrics: Sequence[MetricComparison]
) -> list[VariantComparison]:
    """Each metric that tells what is better, where there are repeats of something."""
    if not has_repeats(variants):
        return []
    judged = [m for m in metrics if m.goal is not None and m.common_at is not None]
    return [_compare(variants, metric) for metric in judged]


def has_repeats(variants: Sequence[Variant]) -> bool:
    """Whether anything was done more than once."""
    return any(len(variant.runs) > 1 for variant in variants)


def _own(run: RecordedRun) -> dict[str, Any]:
    """What makes a run a variant; empty where no configuration was recorded."""
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
    return (
        f"no run has {key!r} in its config: group by name, or by one of: {shown or 'nothing else'}"
    )


def _apart(facts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each, what is not the same in all."""
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
    # The learning rate is often in the hyperparameters and in the optimizer.
    settings = dict.fromkeys(f"{key.rpartition('.')[2]}={_short(v)}" for key, v in values.items())
    text = ", ".join(settings)
    return text if 0 < len(text) <= LONGEST else f"{labels[member[0]]} and its repeats"


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _compare(variants: Sequence[Variant], metric: MetricComparison) -> VariantComparison:
    values = [[_common(metric, i) for i in variant.runs] for variant in variants]
    known = [[v for v in group if v is not None] for group in values]
    spreads = [_spread(group) for group in known]
    sign = -1.0 if metric.goal == "lower" else 1.0
    there = [i for i, group in enumerate(known) if group]
    order = sorted(there, key=lambda i: sign * mean(known[i]), reverse=True)
    if len(order) < 2:
        return VariantComparison(metric.name, spreads)
    best, against = order[0], order[1]
    tests = {i: welch(known[best], known[i]) for i in order[1:]}
    p = _corrected(tests, len(variants))
    enough = None if (found := p[against]) is None else found < SIGNIFICANT
    return VariantComparison(metric.name, spreads, best, against, p, enough)


def _common(metric: MetricComparison, run: int) -> float | None:
    standing = metric.runs[run]
    return None if standing is None else standing.common


def _spread(values: list[float]) -> Spread:
    if not values:
        return Spread(0, None, None, None, None)
    deviation = math.sqrt(variance(values)) if len(values) > 1 else None
    return Spread(len(values), mean(values), deviation, min(values), max(values))


def _corrected(tests: dict[int, Test | None], count: int) -> list[float | None]:
    known = {i: test.p for i, test in tests.items() if test is not None}
    corrected = dict(zip(known, holm(list(known.values())), strict=True))
    return [corrected.get(i) for i in range(count)]
