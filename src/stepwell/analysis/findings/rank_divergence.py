"""Replicas that are not identical, or a rank that learns worse than the others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stepwell._core.text import capital, number, ranks_listed
from stepwell.analysis.findings.curves import Floats, Ints, at_common_steps
from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding, first_of

SAME = (
    r"^(learning_rate/|gradient_norm/overall|weight_(norm|delta|stats)/.*)|"
    r"(^|[/_.-])(weight|param|parameter)s?[/_.-]*(norm|checksum|hash)"
)
"""Metrics that are the same on all replicas of a model."""
DIFFERENT = 0.01
CHECKSUM = "weight_checksum"
DIFFERENT_WEIGHTS = 1e-3
IN_A_ROW = 3
FEWEST = 20
WORSE = 0.3
ERRORS = 6.0


def find_rank_divergence(facts: Facts) -> Iterator[Finding]:
    """Yield at most one finding: replicas that differ, or else a rank with a higher loss."""
    if facts.ranks < 2:
        return
    apart = [_apart(facts, curve.name) for curve in facts.curves.matching(SAME)]
    first = min((f for f in apart if f is not None), key=lambda f: f.steps[0], default=None)
    if first is not None:
        yield first
        return
    yield from first_of(_worse(facts, curve.name) for curve in facts.curves.losses)


def _by_rank(facts: Facts, name: str) -> tuple[list[int], Ints, Floats]:
    """Return the ranks, the steps that all of them have, and a row of values for each rank."""
    curves = facts.curves.by_rank(name)
    steps, rows = at_common_steps(curves.values())
    return list(curves), steps, np.array(rows)


def _apart(facts: Facts, name: str) -> Finding | None:
    everyone, steps, values = _by_rank(facts, name)
    if len(everyone) < 2 or len(steps) < IN_A_ROW:
        return None
    middle = np.sort(values, axis=0)[(len(values) - 1) // 2]
    is_checksum = name.startswith(CHECKSUM)
    # A checksum is relative to the norm of the weights, and may be 0.
    least, share = (1.0, DIFFERENT_WEIGHTS) if is_checksum else (1e-30, DIFFERENT)
    off = np.abs(values - middle) > share * np.maximum(np.abs(middle), least)
    some = off.any(axis=0)
    # The first step after which the ranks never agree again.
    since = len(some) - int(np.argmax(~some[::-1])) if not some.all() else 0
    if len(some) - since < IN_A_ROW:
        return None
    ranks = [r for r, row in zip(everyone, off[:, since:], strict=True) if row.mean() > 0.5]
    if len(everyone) == 2:
        # Of two ranks it is unknown which one is right.
        ranks = everyone
    if not ranks:
        return None
    return Finding(
        "rank-divergence",
        "critical",
        _sentence(
            "the checksum of the weights" if is_checksum else name,
            int(steps[since]),
            ranks,
            dict(zip(everyone, values[:, since].tolist(), strict=True)),
        ),
        {"metric": name, "since": int(steps[since]), "ranks": ranks},
        (int(steps[since]), int(steps[-1])),
        tuple(ranks),
        "Copy the weights of rank 0 to all ranks before the first step, as DistributedDataParallel does, and "
        "load checkpoints on all ranks."
        if is_checksum
        else "Check for a missing all-reduce, a different seed, or a step that one rank skipped.",
        facts.command("plot", name, "--by-rank"),
    )


def _sentence(name: str, step: int, ranks: list[int], values: dict[int, float]) -> str:
    first, *more = ranks
    if len(values) == 2:
        a, b = (number(values[rank]) for rank in ranks)
        return (
            f"Ranks {first} and {more[0]} differ from step {step} on: {name} is {a} and {b} there."
        )
    rest = [value for rank, value in values.items() if rank not in ranks]
    others = float(np.median(rest or list(values.values())))
    which = f"Rank {first} differs" if not more else f"{capital(ranks_listed(ranks))} differ"
    where = f" of rank {first}" if more else ""
    return (
        f"{which} from the others from step {step} on: {name}{where} is "
        f"{number(values[first])} there, {number(others)} on the others."
    )


def _worse(facts: Facts, name: str) -> Finding | None:
    everyone, steps, values = _by_rank(facts, name)
    third = len(steps) // 3
    if len(everyone) < 2 or len(steps) < FEWEST:
        return None
    begin, end = values[:, :third], values[:, -third:]
    levels = end.mean(axis=1)
    place = int(levels.argmax())
    others = np.delete(end, place, axis=0).mean(axis=0)
    gap = end[place] - others
    was = begin[place] - np.delete(begin, place, axis=0).mean(axis=0)
    error = max(float(gap.std()) / np.sqrt(third), 1e-12)
    usual = abs(float(others.mean()))
    is_new = abs(float(was.mean())) < 0.5 * float(gap.mean())
    if gap.mean() < max(WORSE * usual, ERRORS * error) or not is_new:
        return None
    rank = everyone[place]
    return Finding(
        "rank-divergence",
        "warning",
        f"Rank {rank} learns worse than the others: its {name} is {number(float(levels[place]))} in the last "
        f"third of the steps, {number(float(others.mean()))} on the others.",
        {"metric": name, "level": float(levels[place]), "others": float(others.mean())},
        (int(steps[-third]), int(steps[-1])),
        (rank,),
        "Check whether it gets different data, and whether its gradients are synchronised.",
        facts.command("plot", name, "--by-rank"),
    )
