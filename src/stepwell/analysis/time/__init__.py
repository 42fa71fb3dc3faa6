"""Time: every nanosecond of a rank's wall time belongs to one phase of one step.

``account`` reads the spans of a run once. The ledger, the table of steps and the patterns in it are computed
from its result. Imports reading and the vocabulary, but neither goodput nor findings.
"""

from stepwell.analysis.time.account import Accounts, RankTime, account
from stepwell.analysis.time.ledger import background, ledger, time_table
from stepwell.analysis.time.patterns import (
    Burst,
    Drift,
    Outlier,
    Patterns,
    bursts,
    drift,
    outliers,
    patterns,
)
from stepwell.analysis.time.phases import PHASES, phase_of_span
from stepwell.analysis.time.steps import percentiles, phase_columns, steps

__all__ = [
    "PHASES",
    "Accounts",
    "Burst",
    "Drift",
    "Outlier",
    "Patterns",
    "RankTime",
    "account",
    "background",
    "bursts",
    "drift",
    "ledger",
    "outliers",
    "patterns",
    "percentiles",
    "phase_columns",
    "phase_of_span",
    "steps",
    "time_table",
]
