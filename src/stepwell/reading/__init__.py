"""Reading: runs and their tables as Polars frames, during recording and after any crash.

Imports the formats of the journal, numpy and Polars. Never writes to a run folder. A run folder is untrusted
input: sizes are limited, and no path leads out of it.
"""

from stepwell.reading.run import RecordedRun, list_runs, open_run

__all__ = ["RecordedRun", "list_runs", "open_run"]
