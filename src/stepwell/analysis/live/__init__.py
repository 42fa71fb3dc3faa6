"""Live: how a run is at this moment, from what is new in its files since the last look.

``LiveRun(run).look()`` gives a ``Snapshot``. Imports the journal's followers, time and findings; only reads
files, and knows nothing of terminals.
"""

from stepwell.analysis.live.run import LiveRun
from stepwell.analysis.live.snapshot import MetricNow, RankNow, Snapshot

__all__ = ["LiveRun", "MetricNow", "RankNow", "Snapshot"]
