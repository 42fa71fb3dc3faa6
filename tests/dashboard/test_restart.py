"""A run that is restarted while somebody looks at it is live again."""

from __future__ import annotations

from pathlib import Path
from subprocess import PIPE

from tests.dashboard.serving import served
from tests.dashboard.test_answers import TRAINING, Viewer
from tests.harness import start_script, wait_until


def test_a_restarted_run_is_followed_again(tmp_path: Path) -> None:
    """The stream of a run that has ended goes on when the run does."""
    with served(tmp_path) as server:
        with start_script(TRAINING, tmp_path, stdin=PIPE, stdout=PIPE, text=True) as program:
            program.communicate("4.0\n")
        viewer = Viewer(server)
        wait_until(lambda: viewer.events)
        assert viewer.events[-1]["status"] == "finished"
        with start_script(TRAINING, tmp_path, stdin=PIPE, stdout=PIPE, text=True) as program:
            program.stdin.write("3.0\n")
            program.stdin.flush()
            wait_until(lambda: viewer.has(0, 3.0))
            assert viewer.events[-1]["status"] == "running"
            program.stdin.close()
            program.wait()
        wait_until(lambda: viewer.events[-1]["status"] == "finished")
        listed = server.get("/api/runs")["runs"]
        assert [(run["status"], run["attempts"]) for run in listed] == [("finished", 2)]
        viewer.close()
