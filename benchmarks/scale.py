"""``python -m benchmarks.scale``: reports of very large runs, in this process and on a Dask cluster.

Three parts, each on a simulated run: many spans in one process (time and memory), a thousand ranks with Dask
and without (CPU time of all processes, and whether the reports are equal), and ten thousand ranks on Dask
(time, memory and the number of files opened). Takes about ten minutes and 3 GB of disk; give smaller numbers
for a quick look.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

WORKERS = 2
PARTS = ("spans", "dask", "ranks")
SPANS_PER_STEP = 7
SPAN_RANKS = 64
"""Ranks of the run with very many spans."""
DASK_RANKS = (1024, 1120)
"""Ranks and steps of the run that is reported with Dask and without."""
WIDE_RANKS = (10_000, 200)
"""Ranks and steps of the widest run."""

opened = 0
"""Files that Python code of this process opened; see `prepare`."""


def main() -> None:
    """Measure the parts, and print a line for each figure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--only", choices=PARTS, action="append", help="this part; repeatable")
    parser.add_argument("--spans", type=int, default=100_000_000, help="spans of the first part")
    parser.add_argument("--rounds", type=int, default=3, help="reports of each kind in the second")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="factor for the ranks of the others"
    )
    parser.add_argument("--dir", type=Path, help="folder for the runs; they are removed at the end")
    asked = parser.parse_args()
    for part in asked.only or PARTS:
        with TemporaryDirectory(dir=asked.dir) as place:
            run = Path(place, "run")
            if part == "spans":
                _many_spans(run, asked.spans)
            elif part == "dask":
                _beside_dask(run, _ranks(DASK_RANKS[0], asked.scale), asked.rounds)
            else:
                _many_ranks(run, _ranks(WIDE_RANKS[0], asked.scale))


def _ranks(ranks: int, scale: float) -> int:
    return max(2, round(ranks * scale))


def _many_spans(run: Path, spans: int) -> None:
    _alone(_simulate, run, SPAN_RANKS, spans // (SPAN_RANKS * SPANS_PER_STEP))
    figures = _alone(_report_here, run)
    print(f"{spans:,} spans on {SPAN_RANKS} ranks: {_text(figures)}", flush=True)


def _beside_dask(run: Path, ranks: int, rounds: int) -> None:
    _alone(_simulate, run, ranks, DASK_RANKS[1])
    with _cluster() as address:
        for _ in range(rounds):
            here, there = _alone(_report_here, run), _alone(_report_on_dask, run, address)
            ratio = there["cpu"] / here["cpu"]
            same = "the same report" if here["report"] == there["report"] else "ANOTHER report"
            print(f"{ranks:,} ranks, local: {_text(here)}")
            print(f"{ranks:,} ranks, Dask: {_text(there)}")
            print(f"Dask : local = {ratio:.2f} in CPU time, {same}", flush=True)


def _many_ranks(run: Path, ranks: int) -> None:
    _alone(_simulate, run, ranks, WIDE_RANKS[1])
    with _cluster() as address:
        figures = _alone(_report_on_dask, run, address)
    print(f"{ranks:,} ranks × {WIDE_RANKS[1]} steps on Dask: {_text(figures)}", flush=True)


def _text(figures: dict[str, Any]) -> str:
    parts = [
        f"{figures['cpu']:.1f} s of CPU time",
        f"{figures['wall']:.1f} s",
        f"{figures['rss'] / 1e9:.2f} GB",
    ]
    if "worker_rss" in figures:
        parts.append(f"workers {figures['worker_rss'] / 1e9:.2f} GB each at most")
    parts.append(f"{figures['files']:,} files opened")
    return ", ".join(parts)


# In processes of their own: memory and CPU time are those of one report.


def _alone(work: Callable[..., Any], *arguments: Any) -> Any:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, arguments)


def _simulate(path: Path, ranks: int, steps: int) -> None:
    from stepwell.testing.simulate import make_plan, simulate

    simulate(path, make_plan(ranks, max(steps, 10), ("straggler", "stall", "data", "restart")))


def _report_here(path: Path) -> dict[str, Any]:
    return _measured(path)


def _report_on_dask(path: Path, address: str) -> dict[str, Any]:
    import distributed

    with distributed.Client(address, set_as_default=False) as client:
        client.wait_for_workers(WORKERS, timeout=60)
        client.run(prepare)
        before = client.run(_usage)
        figures = _measured(path, engine="dask", scheduler=address)
        after = client.run(_usage)
    for worker, (cpu, files, rss) in after.items():
        figures["cpu"] += cpu - before[worker][0]
        figures["files"] += files - before[worker][1]
        figures["worker_rss"] = max(figures.get("worker_rss", 0), rss)
    return figures


def _measured(path: Path, **options: Any) -> dict[str, Any]:
    import stepwell
    from stepwell.analysis.report import report

    prepare()
    cpu, files, _ = _usage()
    began = time.perf_counter()
    result = report(stepwell.open_run(path), **options)
    wall = time.perf_counter() - began
    used, now_opened, rss = _usage()
    # The cost of recording is an estimate that is measured anew for each report.
    document = dataclasses.asdict(dataclasses.replace(result, cost=None))
    text = json.dumps(document, sort_keys=True, default=str)
    return {
        "cpu": used - cpu,
        "wall": wall,
        "files": now_opened - files,
        "rss": rss,
        "report": text,
    }


def prepare() -> None:
    """Import what a report needs, and count from now on the files that Python code opens, in `opened`."""
    import stepwell.analysis.report  # noqa: F401

    if not getattr(sys, "_stepwell_counts_files", False):
        sys._stepwell_counts_files = True  # type: ignore[attr-defined]
        sys.addaudithook(_count)


def _count(event: str, arguments: tuple[Any, ...]) -> None:
    global opened
    if event == "open":
        opened += 1


def _usage() -> tuple[float, int, int]:
    """CPU seconds, opened files and peak resident bytes of this process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return time.process_time(), opened, peak


@contextmanager
def _cluster() -> Iterator[str]:
    """Run a scheduler and its workers, as processes of their own, and yield the address."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,))
    process.start()
    try:
        if not ours.poll(60):
            raise RuntimeError("the Dask cluster did not start within 60 s")
        yield ours.recv()
    finally:
        ours.send("end")
        process.join(30)
        process.kill()


def _serve(pipe: Any) -> None:
    import distributed

    with distributed.LocalCluster(
        n_workers=WORKERS, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0"
    ) as cluster:
        pipe.send(cluster.scheduler_address)
        pipe.recv()


if __name__ == "__main__":
    main()
