"""The cost of reading a run for its report, compared with a manual analysis of the same events."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import stepwell
from benchmarks.floor import Measured, summarize
from benchmarks.row import Effort
from stepwell.reading import RecordedRun

RANKS = 8
SPANS_A_STEP = 7
EVENTS = 200_000
"""Of these pandas reads JSON lines, which it does at the same pace however many there are."""
DFTRACER_ANALYZER_S_PER_EVENT = 50 / 1368
"""Release 0.0.9 took 50 s for a trace of 1,368 events. It does not import with today's dftracer-utils."""


def against_group_by(effort: Effort) -> Measured:
    """Report : Polars' sum and count by rank, step and name over the same spans in Parquet, CPU time."""
    return _against(effort, ("rank", "step", "name"), quantiles=False)


def against_quantiles(effort: Effort) -> Measured:
    """The same with the quantiles of durations that a report has, too."""
    return _against(effort, ("rank", "step", "name"), quantiles=True)


def against_names(effort: Effort) -> Measured:
    """Report : sum and count by rank and name alone, which says nothing of steps."""
    return _against(effort, ("rank", "name"), quantiles=False)


def memory(effort: Effort) -> Measured:
    """Resident memory at its peak while a report is made, in GB."""
    import resource

    with TemporaryDirectory() as place:
        run = _simulated(Path(place), effort.long_spans)
        _report(run)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return summarize([peak / 1e9], note=_how_many(effort))


def against_pandas(effort: Effort) -> Measured:
    """Report, an event : pandas over JSON lines of the same events, read and grouped. CPU time."""
    import pandas

    with TemporaryDirectory() as place:
        run = _simulated(Path(place), effort.long_spans)
        ours = _cpu(lambda: _report(run)) / effort.long_spans
        lines = Path(place, "events.jsonl")
        # As `stepwell export --to jsonl` writes them, with all that is known of each.
        run.spans().head(EVENTS).collect().write_ndjson(lines)

        def theirs() -> None:
            table = pandas.read_json(lines, lines=True)
            table.groupby(["rank", "step", "name"])["duration_ns"].agg(["sum", "count"])

        return summarize([ours / (_cpu(theirs) / EVENTS)], note=_how_many(effort))


def against_dftracer_analyzer(effort: Effort) -> Measured:
    """Report : dftracer-analyzer 0.0.9, an event. Not run here: its figure is a known one."""
    with TemporaryDirectory() as place:
        run = _simulated(Path(place), effort.long_spans)
        ours = _cpu(lambda: _report(run)) / effort.long_spans
    return summarize([ours / DFTRACER_ANALYZER_S_PER_EVENT], note="from a known figure")


def _against(effort: Effort, by: tuple[str, ...], quantiles: bool) -> Measured:
    import polars as pl

    duration = pl.col("duration_ns")
    wanted = [duration.sum().alias("sum"), pl.len()]
    if quantiles:
        wanted += [duration.quantile(q).alias(f"p{q}") for q in (0.5, 0.95)]
    with TemporaryDirectory() as place:
        run = _simulated(Path(place), effort.long_spans)
        table = Path(place, "spans.parquet")
        run.spans().sink_parquet(table, compression="zstd")

        def theirs() -> None:
            pl.scan_parquet(table).group_by(by).agg(wanted).collect()

        _report(run)
        theirs()
        rounds = max(1, effort.rounds // 5)
        times = [(_times(lambda: _report(run)), _times(theirs)) for _ in range(rounds)]
    wall = median(ours[1] / theirs[1] for ours, theirs in times)
    ratios = [ours[0] / theirs[0] for ours, theirs in times]
    return summarize(ratios, note=f"{_how_many(effort)}, {wall:.2f} × in wall time")


def _simulated(place: Path, spans: int) -> RecordedRun:
    from stepwell.testing.simulate import make_plan, simulate

    steps = max(300, spans // (RANKS * SPANS_A_STEP))
    simulate(place / "run", make_plan(RANKS, steps, ("straggler", "stall", "data")))
    return stepwell.open_run(place / "run")


def _report(run: RecordedRun) -> None:
    from stepwell.analysis.report import report

    report(run)


def _cpu(work: Callable[[], None]) -> float:
    return _times(work)[0]


def _times(work: Callable[[], None]) -> tuple[float, float]:
    """Return seconds of CPU time of all threads, because both sides use all cores, and of wall time."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - wall


def _how_many(effort: Effort) -> str:
    return f"{effort.long_spans // 1_000_000} M"
