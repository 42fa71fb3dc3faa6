"""Reading: runs and their tables as Polars frames, while they are written and after any crash.

Imports the journal's formats, numpy and Polars. Never writes, and never needs the code that recorded
the run. A run folder is taken as hostile input: sizes are bounded, paths are not followed out of it.
"""

from stepwell.reading.run import RecordedRun, list_runs, open_run

__all__ = ["RecordedRun", "list_runs", "open_run"]
