"""What a rule says: a diagnosis in one sentence, with its evidence and what to do next."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SEVERITIES = ("critical", "warning", "note")
"""From what spoils a run to what is merely good to know."""


@dataclass(frozen=True)
class Finding:
    """One diagnosis.

    Attributes:
        rule: which rule says so, such as ``overfitting``.
        severity: one of ``SEVERITIES``.
        sentence: what is wrong, with the numbers that show it.
        evidence: these and more numbers by name, for scripts.
        steps: the steps in which it shows, or the first and the last of them.
        ranks: the ranks that it is about; empty for the run as a whole.
        advice: what to try next.
        link: the command that shows it.
        cost_ns: how much time it took, where it is about time.
        lines: lines of Python code that it is about, with their places.
    """

    rule: str
    severity: str
    sentence: str
    evidence: dict[str, Any] = field(default_factory=dict)
    steps: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    advice: str = ""
    link: str = ""
    cost_ns: int = 0
    lines: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[Any, ...]:
        """The same for a finding that is made again later, when there is more to see of it."""
        about = self.evidence.get("metric") or self.evidence.get("phase") or ""
        return self.rule, self.ranks, str(about)


def by_weight(finding: Finding) -> tuple[int, int]:
    """For sorting: what matters most comes first."""
    return SEVERITIES.index(finding.severity), -finding.cost_ns
