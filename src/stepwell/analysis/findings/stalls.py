"""Single steps that took very long."""

from __future__ import annotations

from collections.abc import Iterator

from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.findings.wording import duration, percent, phase_word

LEAST_SHARE = 0.02
LEAST_NS = 1_000_000_000
TIMES = 10
MOST = 3


def rule(facts: Facts) -> Iterator[Finding]:
    """One finding for each of the longest few; where a rank is to blame, it is a straggler's."""
    blamed = {step for s in facts.stragglers for step in s.steps}
    told: set[int] = set()
    for one in facts.outliers:
        lost = one.ns - one.typical_ns
        whole = facts.loop_ns.get(one.rank, 0)
        is_long = lost >= max(LEAST_NS, LEAST_SHARE * whole, TIMES * one.typical_ns)
        if (
            one.phase == "ending"
            or not is_long
            or one.step in told
            or one.step in blamed
            or len(told) == MOST
        ):
            continue
        told.add(one.step)
        yield Finding(
            "stall",
            "warning",
            f"Step {one.step} took {duration(one.ns)}, others {duration(one.typical_ns)}: "
            f"{duration(one.phase_ns)} of it in {phase_word(one.phase)} "
            f"({percent(lost / whole)} of the time).",
            {"phase": one.phase, "ns": one.ns, "typical_ns": one.typical_ns},
            (one.step,),
            (one.rank,) if facts.ranks > 1 else (),
            "Look at what else the machine did then.",
            facts.command("export", "--to", "chrome", "--steps", f"{one.step}"),
            lost,
        )
