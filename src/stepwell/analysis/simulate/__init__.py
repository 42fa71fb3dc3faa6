"""Synthetic runs with planted faults, written in the journal's format, for benchmarks and tests.

``truth.json`` in the run folder describes the planted faults; readers of runs ignore it. Imports the write
side of the journal and numpy.
"""

from stepwell.analysis.simulate.plan import (
    DataBound,
    HangFault,
    PlannedDurations,
    Restart,
    RunPlan,
    Stall,
    StragglerFault,
    make_plan,
)
from stepwell.analysis.simulate.run import simulate

__all__ = [
    "DataBound",
    "HangFault",
    "PlannedDurations",
    "Restart",
    "RunPlan",
    "Stall",
    "StragglerFault",
    "make_plan",
    "simulate",
]
