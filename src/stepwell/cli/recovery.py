"""``stepwell recover``."""

from __future__ import annotations

from stepwell.cli.output import print_json
from stepwell.cli.waiting import Bar
from stepwell.journal.recover import Recovery, recover_process
from stepwell.reading import RecordedRun
from stepwell.reading.process import process_folders


def recover_run(run: RecordedRun, as_json: bool = False) -> None:
    """Recover each process of a run, and say what was done."""
    folders = process_folders(run.path)
    done = []
    with Bar(f"recovering {run.id}") as bar:
        for number, folder in enumerate(folders):
            bar.update(number, len(folders))
            done.append(recover_process(folder))
    if as_json:
        print_json({"run": run.id, "processes": done})
        return
    for result in done:
        _say(run, result)
    if not any(result.outcome == "recovered" for result in done):
        print("nothing to recover")


def _say(run: RecordedRun, result: Recovery) -> None:
    if result.outcome == "recovered":
        print(f"{result.process}: sealed {result.segments} live segments")
    elif result.outcome == "alive":
        print(f"{result.process}: still running, left alone")
    elif result.outcome == "elsewhere":
        print(
            f"{result.process}: its spool is on {result.host}; "
            f"run `stepwell recover {run.path}` there"
        )
