"""Ranks compared with each other, from their spans alone: stragglers, waits and hangs.

Needs no collective, neither when recording nor when reading: the ranks of a run share one clock. Imports
reading, the vocabulary and ``analysis.timeline``.
"""

from stepwell.analysis.ranks.arrivals import Waits, waits_by_step
from stepwell.analysis.ranks.grid import Grid, read_grids
from stepwell.analysis.ranks.hang import Hang, hang
from stepwell.analysis.ranks.stacks import Stack, StackFrame, stacks
from stepwell.analysis.ranks.stragglers import Straggler, skew, stragglers, waits

__all__ = [
    "Grid",
    "Hang",
    "Stack",
    "StackFrame",
    "Straggler",
    "Waits",
    "hang",
    "read_grids",
    "skew",
    "stacks",
    "stragglers",
    "waits",
    "waits_by_step",
]
