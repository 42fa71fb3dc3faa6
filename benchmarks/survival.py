"""``python -m benchmarks.survival``: how many of 2,000 records survive ``kill -9`` and a full disk.

Each tool runs in a process of its own, and is read back by its own reader; as root, for the small disk.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

COUNT = 2000
"""Records before the kill."""
MANY = 200_000
"""More than a disk of ``DISK_MB`` has room for."""
DISK_MB = 4
SETTLE = 5.0
"""Seconds that a process of the tool's own has to write what it got."""
LONGEST = 120.0

PROGRAM = """
import os, signal, sys, time
{setup}
book = os.open("../book", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
raised = 0
for i in range({count}):
    try:
        {call}
    except Exception as error:
        raised += 1
        if raised == 1:
            os.write(book, repr(error)[:200].encode() + b"\\n")
os.write(book, f"{{i + 1 - raised}} returned, {{raised}} raised\\n".encode())
if {kill}:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@dataclass(frozen=True)
class Tool:
    """How a tool records a number or a span, and how many of them its reader finds."""

    setup: str
    call: str
    read: Callable[[Path], int]
    count_dropped: Callable[[Path], int] | None = None
    """Records that the tool itself counts as dropped."""


def _stepwell_values(folder: Path) -> int:
    import polars as pl

    import stepwell

    return sum(
        run.metrics().filter(pl.col("name") == "loss").collect().height
        for run in stepwell.list_runs(folder / "runs")
    )


def _stepwell_spans(folder: Path) -> int:
    import polars as pl

    import stepwell

    return sum(
        run.spans().filter(pl.col("name") == "forward").collect().height
        for run in stepwell.list_runs(folder / "runs")
    )


def _stepwell_dropped(folder: Path) -> int:
    import stepwell

    runs = stepwell.list_runs(folder / "runs")
    return sum(int(run.processes().collect()["dropped"].sum()) for run in runs)


def _wandb(folder: Path) -> int:
    from wandb.util import get_core_path

    found = 0
    for file in folder.rglob("*.wandb"):
        command = [get_core_path(), "leet", "inspect", "--no-observability", "--json"]
        done = subprocess.run(
            [*command, "--run-file", file, file.parents[1]],
            capture_output=True,
            text=True,
            check=False,
        )
        lines = [json.loads(line) for line in done.stdout.splitlines() if line[:1] == "{"]
        found += sum("history" in line for line in lines)
    return found


def _sqlite(pattern: str, query: str) -> Callable[[Path], int]:
    def read(folder: Path) -> int:
        found = 0
        for path in folder.rglob(pattern):
            with closing(sqlite3.connect(path)) as database:
                found += int(database.execute(query).fetchone()[0])
        return found

    return read


def _tensorboard(folder: Path) -> int:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    events = [e for f in folder.rglob("*tfevents*") for e in EventFileLoader(str(f)).Load()]
    return sum(len(event.summary.value) for event in events)


def _lines(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("spans.txt"))


TOOLS = {
    "stepwell, values": Tool(
        "import stepwell\nrun = stepwell.init('x', dir='runs')",
        "stepwell.log({'loss': i / 3}, step=i)",
        _stepwell_values,
        _stepwell_dropped,
    ),
    "stepwell, spans": Tool(
        "import stepwell\nrun = stepwell.init('x', dir='runs')",
        "with stepwell.span('forward'): pass",
        _stepwell_spans,
        _stepwell_dropped,
    ),
    "W&B, offline": Tool(
        "import wandb\nrun = wandb.init(project='x', mode='offline', dir='.')",
        "run.log({'loss': i / 3}, step=i)",
        _wandb,
    ),
    "trackio": Tool(
        "os.environ['TRACKIO_DIR'] = os.getcwd()\nimport trackio\n"
        "trackio.init(project='x', auto_log_gpu=False, auto_log_cpu=False, embed=False)",
        "trackio.log({'loss': i / 3}, step=i)",
        _sqlite("x.db", "select count(*) from metrics"),
    ),
    "MLflow, asynchronous": Tool(
        "import mlflow\nmlflow.set_tracking_uri('sqlite:///mlflow.db')\nmlflow.start_run()",
        "mlflow.log_metric('loss', i / 3, step=i, synchronous=False)",
        _sqlite("mlflow.db", "select count(*) from metrics"),
    ),
    "TensorBoard of PyTorch": Tool(
        "from torch.utils.tensorboard import SummaryWriter\nwriter = SummaryWriter('events')",
        "writer.add_scalar('loss', i / 3, i)",
        _tensorboard,
    ),
    "OpenTelemetry, batches": Tool(
        "from opentelemetry.sdk.trace import TracerProvider\n"
        "from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter\n"
        "provider = TracerProvider()\n"
        "out = open('spans.txt', 'w', buffering=1)\n"
        "exporter = ConsoleSpanExporter(out=out, formatter=lambda span: span.name + '\\n')\n"
        "provider.add_span_processor(BatchSpanProcessor(exporter))\n"
        "tracer = provider.get_tracer('x')",
        "with tracer.start_as_current_span('forward'): pass",
        _lines,
    ),
}


def attempt(tool: Tool, folder: Path, count: int, kill: bool) -> tuple[str, str]:
    """Run a tool once; what its calls did, and how many records are found afterwards."""
    place = folder / "place"
    place.mkdir(exist_ok=True)
    code = PROGRAM.format(setup=tool.setup, call=tool.call, count=count, kill=kill)
    env = {**os.environ, "HOME": str(folder), "WANDB_SILENT": "true", "STEPWELL_QUIET": "1"}
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", code], cwd=place, env=env, stdout=output, stderr=output
        )
        try:
            code_of_end = process.wait(LONGEST)
            end = "" if code_of_end in (0, -signal.SIGKILL) else f", exit code {code_of_end}"
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            end = f", still running after {LONGEST:.0f} s"
    time.sleep(SETTLE)
    book = folder / "book"
    returned = book.read_text().splitlines() if book.exists() else []
    calls = " ".join(returned[-1:]) or "no call returned"
    try:
        kept = f"{tool.read(place):,}"
        if tool.count_dropped is not None and (dropped := tool.count_dropped(place)):
            kept += f", {dropped:,} counted as dropped"
    except Exception as error:
        kept = f"not readable: {type(error).__name__}"
    return f"{calls}{end}", kept


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A folder whose ``place`` is on a disk of a few megabytes."""
    place = folder / "place"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", place], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def main() -> None:
    """Print a table of both."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.survival", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="kills for each tool")
    parser.add_argument("-k", default="", help="only tools with this in their name")
    asked = parser.parse_args()
    table = Table(
        "tool", f"kept of {COUNT:,} after kill -9", f"disk of {DISK_MB} MB: calls", "kept"
    )
    for name, tool in TOOLS.items():
        if asked.k not in name:
            continue
        kept = []
        for _ in range(asked.rounds):
            with tempfile.TemporaryDirectory() as folder:
                kept.append(attempt(tool, Path(folder), COUNT, kill=True)[1])
        full = ("needs root", "")
        if os.geteuid() == 0:
            with (
                tempfile.TemporaryDirectory() as folder,
                small_disk(Path(folder)) as disk,
            ):
                full = attempt(tool, disk, MANY, kill=False)
        table.add_row(name, ", ".join(kept), *full)
        print(name, kept, full, flush=True)
    # Piped, nothing may be cut.
    Console(width=None if sys.stdout.isatty() else 10_000).print(table)


if __name__ == "__main__":
    main()
