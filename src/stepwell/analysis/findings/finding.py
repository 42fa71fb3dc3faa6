"""The result of a rule: one diagnosis with evidence and advice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

SEVERITIES = ("critical", "warning", "note")
"""The most severe first. A critical finding spoils the run; a note is for information."""


@dataclass(frozen=True)
class Finding:
    """One diagnosis.

    Attributes:
        rule: the kind of problem, such as ``overfitting``.
        severity: one of ``SEVERITIES``.
        sentence: the symptom with its numbers, and the cause if it is known.
        evidence: these and more numbers by name, for scripts.
        steps: the affected steps, or the first and the last of them.
        ranks: the affected ranks; empty if it concerns the whole run.
        advice: what to try next.
        link: a command that shows more. ``findings`` adds it if the evidence names a metric or a phase.
        cost_ns: the lost time, if the problem costs time.
        lines: the lines of Python code concerned, with file and line number.
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
        """Identifies the problem: stays the same when the rule reports it again with newer numbers."""
        subject = self.evidence.get("metric") or self.evidence.get("phase") or ""
        return self.rule, self.ranks, str(subject)


def first_of(candidates: Iterable[Finding | None]) -> Iterator[Finding]:
    """Yield the first of the candidates that is a finding. Later candidates are not computed."""
    return islice(filter(None, candidates), 1)


def by_weight(finding: Finding) -> tuple[int, int]:
    """Return the sort key of a finding: by severity, then the costliest first."""
    return SEVERITIES.index(finding.severity), -finding.cost_ns
