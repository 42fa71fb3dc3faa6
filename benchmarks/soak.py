"""``python -m benchmarks.soak``: one process that records at full speed for a long time.

Prints what it holds (memory, descriptors, threads, files) while it runs, and counts at the end what can be
read back. Give fewer ``--spans`` for a quick look: a million take about 5 MB of disk.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

LINES = 10
"""Lines that are printed."""
EVERY = 10
"""Spans for each scalar."""
BLOCK = 100_000

READ = """
import sys, polars as pl, stepwell

def count(frames, names):
    return sum(frame.filter(pl.col("name").is_in(names)).height for frame in frames)

run = stepwell.open_run(sys.argv[1])
spans = sum(count(tables.spans({"name"}), ["step", "forward"]) for tables in run.by_process())
scalars = sum(count(tables.metrics({"name"}), ["loss"]) for tables in run.by_process())
dropped = run.processes().collect()["dropped"].sum()
print(f"read back: {spans:,} spans, {scalars:,} scalars; {dropped} counted as dropped")
"""


def main() -> None:
    """Record, and print a line now and then."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--spans", type=int, default=200_000_000)
    parser.add_argument("--dir", type=Path, help="where the run is made; removed at the end")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.dir) as folder:
        _record(Path(folder), asked.spans)


def _record(folder: Path, spans: int) -> None:
    import stepwell

    run = stepwell.init("soak", dir=folder)
    blocks = max(LINES, spans // BLOCK)
    print(
        f"{'spans':>12}{'RSS':>9}{'descriptors':>13}{'threads':>9}{'files':>7}{'disk':>10}{'a span':>10}"
    )
    _show(run.path, 0, 0.0)
    began, last = time.thread_time(), 0
    for number in range(1, blocks + 1):
        _block(number)
        if number * LINES // blocks > last:
            last = number * LINES // blocks
            now = time.thread_time()
            _show(run.path, number * BLOCK, (now - began) / (blocks // LINES * BLOCK))
            began = now
    path = run.path
    run.finish()
    print(f"recorded: {blocks * BLOCK:,} spans, {blocks * BLOCK // EVERY:,} scalars")
    subprocess.run([sys.executable, "-c", READ, path], check=True)


def _block(number: int) -> None:
    import stepwell

    span, log, loss = stepwell.span, stepwell.log, {"loss": float(number)}
    stepwell.set_step(number)
    for _ in range(BLOCK // EVERY):
        with span("step"):
            for _ in range(EVERY - 1):
                with span("forward"):
                    pass
            log(loss)


def _show(path: Path, spans: int, seconds: float) -> None:
    gc.collect()
    rss = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    files = [file.stat().st_size for file in path.rglob("*") if file.is_file()]
    print(
        f"{spans:12,}{rss:6.0f} MB{len(os.listdir('/proc/self/fd')):13}{threading.active_count():9}"
        f"{len(files):7}{sum(files) / 1e6:7.0f} MB{seconds * 1e9:7.0f} ns",
        flush=True,
    )


if __name__ == "__main__":
    main()
