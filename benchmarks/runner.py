"""Runs a row in a separate process, in a temporary folder: ``python -m benchmarks.runner ROW``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.floor import Measured
from benchmarks.row import Effort, Row, Skipped

TIMEOUT = 120.0
"""Seconds for a row; ten times as long with ten million spans."""

QUIET = {
    "DO_NOT_TRACK": "1",
    "GRADIO_ANALYTICS_ENABLED": "False",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
}
"""Settings that keep other tools from using the network and from printing."""


@dataclass(frozen=True)
class Outcome:
    """A result, or why there is none."""

    row: Row
    measured: Measured | None
    why: str = ""


def run(row: Row, effort: Effort) -> Outcome:
    """Measure a row in a fresh process."""
    with tempfile.TemporaryDirectory(prefix="stepwell-bench-", ignore_cleanup_errors=True) as place:
        result, log = Path(place, "result.json"), Path(place, "log.txt")
        command = [sys.executable, "-m", "benchmarks.runner", row.name, str(result)]
        with log.open("w") as output:
            try:
                subprocess.run(
                    [*command, json.dumps(asdict(effort))],
                    cwd=place,
                    env=_environment(row, place),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    timeout=TIMEOUT * max(1, effort.long_spans // 1_000_000),
                    check=False,
                )
            except subprocess.TimeoutExpired as error:
                return Outcome(row, None, f"timed out after {error.timeout:.0f} s")
        if not result.exists():
            last = log.read_text(errors="replace").strip().splitlines()[-1:]
            return Outcome(row, None, "failed: " + "".join(last))
        answer = json.loads(result.read_text())
    if "skipped" in answer:
        return Outcome(row, None, answer["skipped"])
    return Outcome(row, Measured(**answer))


def _environment(row: Row, place: str) -> dict[str, str]:
    ours = {k: v for k, v in os.environ.items() if not k.startswith(("STEPWELL_", "OTEL_"))}
    root = str(Path(__file__).parents[1])
    paths = [root, *filter(None, [ours.get("PYTHONPATH")])]
    return {
        **ours,
        **QUIET,
        **dict(row.environment),
        "HOME": place,
        "TRACKIO_DIR": str(Path(place, "trackio")),
        "PYTHONPATH": os.pathsep.join(paths),
    }


def main(name: str, result: str, effort: str) -> None:
    """Measure a row, in the fresh process."""
    from benchmarks.registry import EVERYTHING

    try:
        answer = asdict(EVERYTHING[name].measure(Effort(**json.loads(effort))))
    except ModuleNotFoundError as error:
        answer = {"skipped": f"skipped: {error.name} is not installed"}
    except Skipped as why:
        answer = {"skipped": f"skipped: {why}"}
    Path(result).write_text(json.dumps(answer))
    # Some tools leave threads and servers running that would keep the process alive.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
