"""Findings: rules that read the tables of a run, each of which reports one kind of problem in a sentence.

A rule is a function of ``Facts`` that yields findings; ``rules.py`` lists them. ``Facts`` reads the run
once for all rules. A healthy run has no findings. Imports the other analyses and reading.
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
