"""``stepwell recover``."""

from __future__ import annotations

from stepwell.journal.recover import recover_process
from stepwell.reading import RecordedRun
from stepwell.reading.process import process_folders


def recover_run(run: RecordedRun) -> None:
    """Recover each process of a run, and say what was done."""
    done = 0
    for folder in process_folders(run.path):
        result = recover_process(folder)
        if result.outcome == "recovered":
            done += 1
            print(f"{result.process}: sealed {result.segments} live segments")
        elif result.outcome == "alive":
            print(f"{result.process}: still running, left alone")
        elif result.outcome == "elsewhere":
            print(
                f"{result.process}: its spool is on {result.host}; "
                f"run `stepwell recover {run.path}` there"
            )
    if not done:
        print("nothing to recover")
