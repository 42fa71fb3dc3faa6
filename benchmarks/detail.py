"""``python -m benchmarks.detail``: times and memory of the level of detail on a large run.

Makes a run of 10 million spans and 5 million metric values on 8 ranks, and prints for each function the first
call (cold: the cache is built), the best of the later ones (warm), and the memory of the process.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from stepwell._core.files import write_json
from stepwell.journal.process_writer import ProcessWriter
from stepwell.reading.remote import CACHE

RANKS = 8
METRICS = 16
BEGAN = 1_767_225_600_000_000_000
CLOCK = 10**12
STEP_NS = 50_000_000
PARTS = (("data", 0.1), ("forward", 0.35), ("backward", 0.4), ("optimizer", 0.1))
ROUNDS = 5
LAYERS = 11
"""Spans of layers in a forward pass: a step has 4 + 2 × LAYERS + 1 spans."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.detail", description=__doc__)
    parser.add_argument("--spans", type=int, default=10_000_000, help="number of spans")
    parser.add_argument("--values", type=int, default=5_000_000, help="number of metric values")
    parser.add_argument("--runs", type=int, default=1000, help="number of runs to list")
    parser.add_argument("--dir", type=Path, help="folder to keep the run in, and to find it again")
    asked = parser.parse_args()
    with TemporaryDirectory() as place:
        folder = asked.dir or Path(place)
        os.environ[CACHE] = str(Path(place, "cache"))
        run = folder / "large" / "run"
        if not run.exists():
            _alone(_write_run, run, asked.spans, asked.values)
        if not (folder / "many").exists():
            _alone(_write_many, folder / "many", asked.runs)
        # Each in a process of its own: memory is that of one function.
        for measure in (_timeline, _search, _series, _grid):
            _alone(measure, run)
        _alone(_list, folder / "many")
        size = sum(
            file.stat().st_size for file in Path(place, "cache").rglob("*") if file.is_file()
        )
        print(f"cache folder: {size / 1e6:.0f} MB")


def _alone(work: Callable[..., None], *arguments: Any) -> None:
    child = get_context("spawn").Process(target=work, args=arguments)
    child.start()
    child.join()
    if child.exitcode:
        raise SystemExit(child.exitcode)


# What is measured


def _timeline(path: Path) -> None:
    import stepwell
    from stepwell.analysis.detail import timeline_at

    run = stepwell.open_run(path)
    _row("timeline, whole run", lambda: timeline_at(run, width=1500))
    first, last = timeline_at(run, width=1500).full
    random = np.random.default_rng(0)
    for parts in (4, 16, 64, 256, 1024, 16_384, 262_144):
        length = (last - first) // parts
        starts = (first + random.random(ROUNDS) * (last - first - length)).astype(int).tolist()
        places = iter([starts[0], *starts])

        def zoom(places: Any = places, length: int = length) -> None:
            start = next(places)
            timeline_at(run, start, start + length, 1500)

        _row(f"timeline, 1/{parts} of it, elsewhere each time", zoom, best=max)
    _row("timeline, one rank", lambda: timeline_at(run, width=1500, ranks=[3]))
    _memory("timeline")


def _search(path: Path) -> None:
    import stepwell
    from stepwell.analysis.detail import search_spans, span_detail

    run = stepwell.open_run(path)
    hit = search_spans(run, "layer 3", 200).hits[100]
    _row("search_spans", lambda: search_spans(run, "layer 3", 200))
    _row("span_detail", lambda: span_detail(run, hit.id, hit.start))
    _memory("spans")


def _series(path: Path) -> None:
    import stepwell
    from stepwell.analysis.detail import metric_list, series_at

    run = stepwell.open_run(path)
    _row("metric_list", lambda: metric_list(run))
    for by in ("mean", "rank", "spread"):
        _row(f"series_at, by {by}", lambda by=by: series_at(run, ["train/loss"], by=by))
    names = iter([f"metric {i}" for i in range(1, METRICS)])
    _row("series_at, another one each time", lambda: series_at(run, [next(names)]), best=max)
    for x in ("time", "epoch"):
        _row(f"series_at, over {x}", lambda x=x: series_at(run, ["metric 1"], x=x))
    _row("series_at, a part", lambda: series_at(run, ["metric 1"], start=1000, end=2000))
    _memory("series")


def _grid(path: Path) -> None:
    import stepwell
    from stepwell.analysis.detail import grid_at

    run = stepwell.open_run(path)
    _row("grid_at", lambda: grid_at(run, "forward"))
    _row("grid_at, another phase", lambda: grid_at(run, "backward"))
    _memory("grid")


def _list(folder: Path) -> None:
    from stepwell.analysis.run_list import summaries_of
    from stepwell.reading import list_runs

    def summaries(budget_s: float = 0.5) -> None:
        summaries_of(((run.id, run) for run in list_runs(folder)), budget_s=budget_s)

    _row("summaries_of, budget 0.5 s", summaries, rounds=1)
    start = time.perf_counter()
    summaries(3600)
    print(f"  all of them: {time.perf_counter() - start:.1f} s", flush=True)
    _row("summaries_of, all cached", summaries)
    _memory("list")


def _row(
    title: str,
    work: Callable[[], Any],
    rounds: int = ROUNDS,
    best: Callable[[list[float]], float] = min,
) -> None:
    times, cpu = [], []
    for _ in range(1 + rounds):
        start, before = time.perf_counter(), time.process_time()
        work()
        times.append(1e3 * (time.perf_counter() - start))
        cpu.append(1e3 * (time.process_time() - before))
    word = "worst" if best is max else "best"
    print(
        f"{title:46} first {times[0]:8.1f} ms (CPU {cpu[0]:8.1f})   "
        f"later, {word} of {rounds}: {best(times[1:]):7.1f} ms (CPU {best(cpu[1:]):7.1f})",
        flush=True,
    )


def _memory(title: str) -> None:
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{title + ', peak memory':48} {peak:15.0f} MB", flush=True)


# The runs


def _write_run(folder: Path, spans: int, values: int) -> None:
    steps = max(1, spans // (RANKS * (5 + 2 * LAYERS)))
    each = max(1, values // (RANKS * METRICS))
    for rank in range(RANKS):
        _write_rank(folder, rank, steps, each)
    _write_json(folder, "large")


def _write_rank(folder: Path, rank: int, steps: int, each: int) -> None:
    name = f"rank-{rank:05d}.attempt-0.pid-{1000 + rank}"
    writer = ProcessWriter(folder / name, name)
    writer.begin_lane("MainThread", 1)
    random = np.random.default_rng(rank)
    noise = random.random((steps, 4)) * 0.2 + 0.9
    values = random.random(METRICS).tolist()
    names = ["train/loss", *(f"metric {i}" for i in range(1, METRICS))]
    loop = writer.span("training_loop", "", CLOCK, CLOCK + steps * STEP_NS)
    every = max(1, steps // each)
    for step in range(steps):
        begin = CLOCK + step * STEP_NS
        writer.context(begin, step, step // 1000)
        iteration = writer.span("train step", "", begin, begin + STEP_NS - 10_000, loop)
        at = begin + 1000
        for (part, share), factor in zip(PARTS, noise[step].tolist(), strict=True):
            length = int(STEP_NS * share * factor * 0.9)
            parent = writer.span(part, "", at, at + length, iteration)
            if part in ("forward", "backward"):
                layer = length // LAYERS
                for number in range(LAYERS):
                    here = at + number * layer
                    writer.span(f"layer {number}", "", here, here + layer - 100, parent)
            at += length
        if step % every == 0:
            for metric, value in zip(names, values, strict=True):
                writer.metric(metric, at, value / (1 + step), step)
    writer.close(_document(name, folder.name, rank, steps * STEP_NS))


def _write_many(folder: Path, runs: int) -> None:
    for number in range(runs):
        run = folder / f"run-{number:04d}"
        name = "rank-00000.attempt-0.pid-1"
        writer = ProcessWriter(run / name, name)
        writer.begin_lane("MainThread", 1)
        for step in range(50):
            begin = CLOCK + step * STEP_NS
            writer.context(begin, step, 0)
            parent = writer.span("train step", "", begin, begin + STEP_NS - 1000)
            writer.span("forward", "", begin, begin + STEP_NS // 2, parent)
            writer.metric("train/loss", begin, 1 / (1 + step), step)
            writer.metric("val/accuracy", begin, step / (1 + step), step)
        writer.close(_document(name, run.name, 0, 50 * STEP_NS))
        _write_json(run, run.name)


def _document(name: str, run: str, rank: int, length: int) -> dict[str, Any]:
    return {
        "process": name,
        "role": "main",
        "run": run,
        "attempt": 0,
        "rank": rank,
        "world_size": RANKS,
        "host": "node",
        "boot": "boot",
        "pid": 1000 + rank,
        "start": 0,
        "started": BEGAN,
        "status": "finished",
        "error": None,
        "heartbeat": BEGAN + length,
        "interval": 5.0,
        "anchors": [[CLOCK, BEGAN]],
        "drops": {},
    }


def _write_json(folder: Path, name: str) -> None:
    config = {"model": {"layers": LAYERS, "width": 512}, "lr": 0.001, "seed": 1}
    attempts = [{"attempt": 0, "started": BEGAN, "world_size": RANKS}]
    document = {"stepwell": 1, "id": folder.name, "name": name, "config": config, "tags": ["large"]}
    write_json(folder / "run.json", {**document, "created": BEGAN, "attempts": attempts})


if __name__ == "__main__":
    main()
