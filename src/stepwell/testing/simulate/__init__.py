"""Synthetic runs with planted faults, for benchmarks and tests of readers.

``truth.json`` in the run folder describes the planted faults; readers of runs ignore it. Imports the write
side of the journal and numpy.
"""

from stepwell.testing.simulate.plan import (
    DataBound,
    HangFault,
    PlannedDurations,
    Restart,
    RunPlan,
    Stall,
    StragglerFault,
    make_plan,
)
from stepwell.testing.simulate.run import simulate

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
