"""Findings: rules over the tables of a run, each of which says in one sentence what is wrong.

A rule is one small file with one function ``rule(facts)`` that yields findings; ``Facts`` reads what rules
share once. A healthy run yields none. Imports the other analyses and reading.
"""

from stepwell.analysis.findings.alerts import Alerts
from stepwell.analysis.findings.coverage import Unchecked, unchecked
from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import SEVERITIES, Finding
from stepwell.analysis.findings.rules import RULES, findings

__all__ = [
    "RULES",
    "SEVERITIES",
    "Alerts",
    "Facts",
    "Finding",
    "Unchecked",
    "findings",
    "unchecked",
]
