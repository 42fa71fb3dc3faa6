"""The timeline: every nanosecond of a rank's wall time belongs to one phase of one step.

``timelines`` reads the spans of a run once. The ledger, the table of steps and the patterns in it are
functions of its result. Imports reading and the vocabulary, but no other part of the analysis.
"""

from stepwell.analysis.timeline.patterns import (
    Burst,
    Drift,
    Outlier,
    Patterns,
    bursts,
    drift,
    outliers,
    patterns,
)
from stepwell.analysis.timeline.phases import PHASES, phase_of_span
from stepwell.analysis.timeline.tables import (
    background,
    ledger,
    percentiles,
    phase_columns,
    steps,
    time_table,
)
from stepwell.analysis.timeline.timeline import (
    IncompleteSteps,
    Timeline,
    Timelines,
    incomplete_steps,
    timelines,
)
from stepwell.analysis.timeline.wall import began_ns, lives_by_attempt, run_wall_ns, wall_ns

__all__ = [
    "PHASES",
    "Burst",
    "Drift",
    "IncompleteSteps",
    "Outlier",
    "Patterns",
    "Timeline",
    "Timelines",
    "background",
    "began_ns",
    "bursts",
    "drift",
    "incomplete_steps",
    "ledger",
    "lives_by_attempt",
    "outliers",
    "patterns",
    "percentiles",
    "phase_columns",
    "phase_of_span",
    "run_wall_ns",
    "steps",
    "time_table",
    "timelines",
    "wall_ns",
]
