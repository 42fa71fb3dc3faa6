"""Live: the current state of a run, updated with what is new in its files.

``LiveRun(run).look()`` returns a ``Snapshot``. Imports the followers, timeline and findings. Only reads
files, and draws nothing.
"""

from stepwell.analysis.live.curves import MetricNow
from stepwell.analysis.live.rank import RankNow
from stepwell.analysis.live.run import LiveRun, Snapshot

__all__ = ["LiveRun", "MetricNow", "RankNow", "Snapshot"]
