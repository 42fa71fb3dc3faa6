"""Time: every nanosecond of a rank's wall time has one owner, and so is in one phase of one step.

``account`` reads the spans of a run once; the ledger, the table of steps and what stands out in it come from
that. Imports reading and the vocabulary; knows nothing of goodput, other ranks or what to advise.
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
from stepwell.analysis.time.steps import percentiles, phase_columns, steps
from stepwell.analysis.time.words import PHASES, phase_of_span

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
