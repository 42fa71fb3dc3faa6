"""Live: the current state of a run, updated with what is new in its files.

``LiveRun(run).look()`` returns a ``Snapshot``. Imports the followers, timeline and findings. Only reads
files, and draws nothing.
"""

from stepwell.analysis.live.run import LiveRun
from stepwell.analysis.live.snapshot import MetricNow, RankNow, Snapshot

__all__ = ["LiveRun", "MetricNow", "RankNow", "Snapshot"]
