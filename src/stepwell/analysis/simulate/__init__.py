"""Synthetic runs with planted faults, written in the journal's own format: for benchmarks and tests.

Imports the journal's writing and numpy. What was planted where, and how much, stands in ``truth.json``
in the run folder; readers of runs do not look at it.
"""

from stepwell.analysis.simulate.plan import (
    DataBound,
    Hang,
    Pace,
    Plan,
    Restart,
    Stall,
    Straggler,
    make_plan,
)
from stepwell.analysis.simulate.run import simulate

__all__ = [
    "DataBound",
    "Hang",
    "Pace",
    "Plan",
    "Restart",
    "Stall",
    "Straggler",
    "make_plan",
    "simulate",
]
