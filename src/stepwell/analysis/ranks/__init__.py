"""Ranks against each other, from their spans alone: who is slow, who waits for whom, who never came.

Nothing here needs a collective, neither when recording nor now: the ranks of a run share one clock.
Imports reading and the vocabulary.
"""

from stepwell.analysis.ranks.arrivals import Waits, waits_by_step
from stepwell.analysis.ranks.grid import Grid, read_grids
from stepwell.analysis.ranks.hang import Hang, hang
from stepwell.analysis.ranks.skew import skew, waits
from stepwell.analysis.ranks.stacks import Frame, Stack, stacks
from stepwell.analysis.ranks.stragglers import Straggler, stragglers

__all__ = [
    "Frame",
    "Grid",
    "Hang",
    "Stack",
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
