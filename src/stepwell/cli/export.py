"""``stepwell export`` and ``stepwell import``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from stepwell._core.errors import StepwellError
from stepwell._core.files import replacing
from stepwell.cli.output import print_json
from stepwell.cli.progress import ProgressBar, waiting
from stepwell.cli.terminal import counted
from stepwell.exporters.chrome import export_chrome
from stepwell.exporters.dftracer import export_dftracer
from stepwell.exporters.otlp.file import export_otlp
from stepwell.exporters.trace.fields import parse_ranks, parse_steps
from stepwell.exporters.trace.run import Written
from stepwell.importing import Imported, import_files
from stepwell.reading import RecordedRun
from stepwell.reading.run import TABLES

TABLE_FILES: dict[str, Callable[[pl.LazyFrame, Path], object]] = {
    "parquet": lambda table, path: table.sink_parquet(path, compression="zstd"),
    "csv": lambda table, path: table.sink_csv(path),
    # NaN and infinity become null.
    "jsonl": lambda table, path: table.sink_ndjson(path),
}
"""How a table is written, by format."""
TRACES = {
    "chrome": (".json", ".json.gz"),
    "dftracer": (".pfw", ".pfw.gz"),
    "otlp": (".jsonl", ".jsonl.gz"),
}
"""Trace formats and their file suffixes; the last one is the default."""


@dataclass(frozen=True)
class ExportOptions:
    """The options of ``stepwell export`` as typed."""

    to: str
    output: Path | None
    steps: str | None
    ranks: str | None
    dialect: str | None


def check_options(options: ExportOptions) -> None:
    """Raise StepwellError for options that are unknown or do not fit together."""
    formats = (*TABLE_FILES, *TRACES)
    if options.to not in formats:
        raise StepwellError(f"--to must be one of {', '.join(formats)}, got {options.to!r}")
    if options.dialect is not None and options.to != "dftracer":
        raise StepwellError("--dialect needs --to dftracer")
    if options.steps and options.to not in ("chrome", "dftracer"):
        raise StepwellError("--steps needs --to chrome or dftracer")
    if options.ranks and options.to not in TRACES:
        raise StepwellError(f"--ranks needs a trace: --to {' or '.join(TRACES)}")


def export_run(run: RecordedRun, options: ExportOptions, as_json: bool = False) -> None:
    """Write a run in another format, and print what was written."""
    if options.to in TRACES:
        with waiting(f"writing {run.id} as {options.to}"):
            done = _trace(options)(run, _file(run, options))
        print_json(done) if as_json else _print_files(done)
        return
    target = options.output or Path(f"{run.id}-{options.to}")
    with ProgressBar(f"writing {run.id} as {options.to}") as bar:
        files = export_tables(run, target, options.to, bar.update)
    if as_json:
        print_json({"files": files})
    else:
        print(f"{counted(len(files), 'file')} in {target}")


def export_tables(
    run: RecordedRun, target: Path, kind: str, progress: Callable[[int, int], None]
) -> list[Path]:
    """Write ``<target>/<table>/run=…/rank=…/part.<kind>`` for every table. Return the paths.

    Writes one rank at a time, with bounded memory. Each file is replaced in one step.
    """
    files: list[Path] = []
    ranks = run.ranks()
    for table in TABLES:
        for rank in ranks:
            file = target / table / f"run={run.id}" / f"rank={rank}" / f"part.{kind}"
            file.parent.mkdir(parents=True, exist_ok=True)
            with replacing(file) as beside:
                TABLE_FILES[kind](run.table(table, rank).drop("run", "rank"), beside)
            files.append(file)
            progress(len(files), len(TABLES) * len(ranks))
    return files


def _trace(options: ExportOptions) -> Callable[[RecordedRun, Path], Written]:
    steps, ranks = parse_steps(options.steps), parse_ranks(options.ranks)
    if options.to == "chrome":
        return lambda run, path: export_chrome(run, path, steps, ranks)
    if options.to == "otlp":
        return lambda run, path: export_otlp(run, path, ranks)
    dialect = options.dialect or "new"
    return lambda run, path: export_dftracer(run, path, steps, ranks, dialect)


def _file(run: RecordedRun, options: ExportOptions) -> Path:
    endings = TRACES[options.to]
    if options.output is None:
        return Path(f"{run.id}{endings[-1]}")
    if options.output.is_dir():
        return options.output / f"{run.id}{endings[-1]}"
    if not options.output.name.endswith(endings):
        raise StepwellError(f"-o must end in {' or '.join(endings)}, got {str(options.output)!r}")
    return options.output


def _print_files(done: Written) -> None:
    counts = {"span": done.spans, "event": done.events, "value": done.metrics}
    text = ", ".join(counted(count, what) for what, count in counts.items())
    for path in done.files:
        print(path)
    print(f"{text} in {counted(len(done.files), 'file')}")


def import_run(
    files: Sequence[Path], dir: Path | None, name: str | None, kind: str | None, as_json: bool
) -> None:
    """Import files as one run, with a progress bar, and print what was imported."""
    with ProgressBar("reading") as bar:

        def progress(what: str, done: int, total: int) -> None:
            bar.update(done, total, what)

        done = import_files(files, dir, name, kind=kind, progress=progress)
    if as_json:
        print_json({"run": done.path.name, **vars(done)})
    else:
        _print_import(done)


def _print_import(done: Imported) -> None:
    taken = ", ".join(f"{number:,} {what}" for what, number in done.taken.items())
    print(f"{' and '.join(done.kinds)}: imported {taken}")
    left_out = sorted(done.left_out.items(), key=lambda item: -item[1])
    if left_out:
        print(f"left out {counted(sum(done.left_out.values()), 'record')}:")
        for reason, number in left_out[:20]:
            print(f"  {number:,}: {reason}")
        if len(left_out) > 20:
            print(f"  {len(left_out) - 20} more reasons: see imported_from in run.json")
    for note in done.notes[:20]:
        print(note)
    print(f"run {done.path.name} in {done.path}")
