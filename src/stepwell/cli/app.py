"""The commands and their options. Each command imports its own module when it runs."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from stepwell._core.errors import StepwellError
from stepwell.cli.arguments import (
    INSPECT,
    MAINTAIN,
    TRANSFER,
    DirOption,
    FolderArgument,
    JsonOption,
    RunArgument,
    RunsArgument,
    choose_folder,
    choose_run,
    choose_runs,
    complete_folder,
    complete_run,
    folder_of_runs,
    is_run_folder,
    named_folder,
)
from stepwell.cli.output import complain, print_now

app = typer.Typer(
    help="Inspect and manage training runs recorded by stepwell.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

FORWARD_TO = (
    "Spans: otlp, file. Logged values: mlflow, wandb, tensorboard, prov, console. Or a dotted class "
    "name. With an address: mlflow=http://host:5000"
)


def main() -> None:
    """Run the command line. Mistakes of the user are printed as one line, with exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        # An ASCII-only terminal gets question marks instead of a traceback.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app()
    except StepwellError as error:
        complain(error)
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        complain(error)
        sys.exit(1)


def _print_version(wanted: bool) -> None:
    if wanted:
        from stepwell import __version__

        print(f"stepwell {__version__}")
        raise typer.Exit


def _exit(code: int) -> None:
    if code:
        raise typer.Exit(code)


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Inspect and manage training runs recorded by stepwell."""


@app.command("ls", rich_help_panel=INSPECT)
def list_command(
    folder: FolderArgument = None,
    most: Annotated[int | None, typer.Option("-n", help="Number of runs. Default: all.")] = None,
    status: Annotated[
        list[str],
        typer.Option("--status", help="Status, such as running or failed; repeatable."),
    ] = [],  # noqa: B006
    tag: Annotated[
        list[str], typer.Option("--tag", help="Tag that a run must have; repeatable.")
    ] = [],  # noqa: B006
    name: Annotated[
        str | None, typer.Option("--name", help="Name, or a pattern such as 'bert*'.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", help="Earliest start: an age (12h, 2d) or a date.")
    ] = None,
    findings: Annotated[
        bool,
        typer.Option(
            "--findings",
            help="A column with the number of findings. Reads every run, so it takes longer.",
        ),
    ] = False,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """List runs, newest first."""
    from stepwell.cli.ls import show_list, wanted_runs

    wanted = wanted_runs(status, tag, name, since, most)
    show_list(choose_folder(folder, dir), wanted, findings, json)


@app.command(rich_help_panel=INSPECT)
def show(run: RunArgument = None, dir: DirOption = None, json: JsonOption = False) -> None:
    """Summarize a run: status, spans and metrics."""
    from stepwell.analysis.overview import overview
    from stepwell.cli.progress import waiting
    from stepwell.cli.show import show_overview

    chosen = choose_run(run, dir)
    with waiting(f"reading {chosen.id}"):
        summary = overview(chosen)
    show_overview(summary, json)


@app.command("report", rich_help_panel=INSPECT)
def report_command(
    run: RunArgument = None,
    fail_on: Annotated[
        str | None,
        typer.Option(
            "--fail-on",
            help="Lowest severity that causes exit code 1: critical, warning or note.",
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option("--engine", help="Where to read the run: local, or dask (a cluster).")
    ] = "local",
    scheduler: Annotated[
        str | None,
        typer.Option(
            "--scheduler",
            metavar="ADDRESS",
            help="Dask scheduler for --engine dask, such as tcp://10.0.0.1:8786. Default: a new local "
            "cluster.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="HTML file to write: charts and findings in one file, to open or share.",
        ),
    ] = None,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Explain a run: problems found, where the time went, values reached."""
    if fail_on not in (None, "critical", "warning", "note"):
        raise StepwellError(f"--fail-on must be critical, warning or note, got {fail_on!r}")
    from stepwell.cli.report import show_report, write_report

    if output is not None:
        if json or fail_on is not None:
            raise StepwellError("-o writes an HTML file: it does not go with --json or --fail-on")
        write_report(choose_run(run, dir), output)
        return
    _exit(show_report(choose_run(run, dir), json, fail_on, engine=engine, scheduler=scheduler))


@app.command("ui", rich_help_panel=INSPECT)
def ui_command(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="DIR",
            help="Folder of runs, or one run folder. Default: STEPWELL_DIR, or ./runs.",
            autocompletion=complete_folder,
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            "--host", help="Address to listen on. With 0.0.0.0, other machines can connect."
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option("--port", help="Port. Default: 7837, or a free one.")
    ] = None,
    name: Annotated[
        list[str],
        typer.Option("--allow-host", help="Host name of a proxy in front of it; repeatable."),
    ] = [],  # noqa: B006
    browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    dir: DirOption = None,
) -> None:
    """Show runs in the browser: charts, timeline, ranks, problems. Read-only, on this machine."""
    from stepwell.dashboard.server import serve

    given = Path(run) if run is not None else None
    folder = given if given is not None and is_run_folder(given) else choose_folder(given, dir)
    serve(folder, host=host, port=port, names=tuple(name), browser=browser, say=print_now)


@app.command("watch", rich_help_panel=INSPECT)
def watch_command(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="Run folder, id or name, or a folder of runs. Default: the newest running job, else the "
            "newest run.",
            autocompletion=complete_run,
        ),
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option("--interval", help="Seconds between updates. Default: 1, or 10 when piped."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="A single update, without waiting.")] = False,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Follow a running job: progress, values, time, ranks and findings.

    Only reads files. Ends with the run: exit code 0 if it finished, else 1.
    If the output is piped, prints one line per update.
    """
    # Before Polars is imported: one thread is enough here, and training needs the others.
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    from stepwell.cli.watch import run_to_watch, watch_run

    _exit(watch_run(run_to_watch(run, dir), interval, once, json))


@app.command("alert", rich_help_panel=INSPECT)
def alert_command(
    run: RunArgument = None,
    command: Annotated[
        str | None,
        typer.Option("--command", help="Program to run for each finding; gets JSON on stdin."),
    ] = None,
    webhook: Annotated[
        str | None, typer.Option("--webhook", help="URL that receives each finding as JSON.")
    ] = None,
    every: Annotated[float, typer.Option("--every", help="Seconds between checks.")] = 30,
    least: Annotated[
        str, typer.Option("--least", help="Lowest severity: critical, warning or note.")
    ] = "warning",
    once: Annotated[bool, typer.Option("--once", help="A single check, without waiting.")] = False,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Follow a running job and report each new finding once."""
    from stepwell.cli.report import follow_run

    _exit(follow_run(choose_run(run, dir), command, webhook, every, least, once, json))


@app.command("stacks", rich_help_panel=INSPECT)
def stacks_command(
    run: RunArgument = None,
    after: Annotated[
        float, typer.Option("--after", help="Seconds after which a waiting rank may be hanging.")
    ] = 10.0,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Show the open spans of every rank and thread, now or at the end, and hanging ranks."""
    from stepwell.cli.stacks import show_stacks

    show_stacks(choose_run(run, dir), after, json)


@app.command(rich_help_panel=INSPECT)
def plot(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="Run folder, id or name, a folder of runs, or a folder with a telemetry.jsonl. "
            "Default: the newest run.",
            autocompletion=complete_run,
        ),
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="METRIC",
            help="Names or patterns ('val/*'), one panel each. Default: loss, accuracy, gradient norm, "
            "weight delta, learning rates and holdout logits, if recorded.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="A .png or .html file. Default: the terminal."),
    ] = None,
    x: Annotated[str, typer.Option("--x", help="Horizontal axis: step, epoch or time.")] = "step",
    smooth: Annotated[
        float | None,
        typer.Option("--smooth", help="Smoothing from 0 (none) to below 1. Default: by the curve."),
    ] = None,
    rank: Annotated[
        int | None,
        typer.Option("--rank", help="A single rank. Default: mean and range of all ranks."),
    ] = None,
    by_rank: Annotated[bool, typer.Option("--by-rank", help="One curve per rank.")] = False,
    log: Annotated[
        bool | None,
        typer.Option("--log/--linear", help="Scale of the y axis. Default: by the values."),
    ] = None,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Plot the metrics of a run in the terminal, as an image or as a web page."""
    from stepwell.analysis.diagnostics import find_diagnostics
    from stepwell.analysis.plots import Options, panels
    from stepwell.cli.plot import save_panels, show_panels
    from stepwell.cli.progress import waiting

    chosen = find_diagnostics(run) or choose_run(run, dir)
    with waiting(f"reading {chosen.id}"):
        drawn = panels([chosen], metrics or (), Options(x, smooth, rank, by_rank, log))
    if output is not None:
        save_panels(drawn, output, chosen.name)
    else:
        show_panels(drawn, json)


@app.command(rich_help_panel=INSPECT)
def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN",
            help="Run folders, ids or names; at least two.",
            autocompletion=complete_run,
        ),
    ],
    metric: Annotated[
        list[str], typer.Option("--metric", help="Metric name or pattern; repeatable.")
    ] = [],  # noqa: B006
    by: Annotated[
        str, typer.Option("--by", help="Alignment of the curves: step, samples, tokens or time.")
    ] = "step",
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            help="Config key whose value defines a variant, or name (without a trailing number). "
            "Default: the whole config except seeds.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="A .png or .html file for a plot of the curves."),
    ] = None,
    weights: Annotated[
        bool, typer.Option("--weights/--no-weights", help="Comparison of weight snapshots.")
    ] = True,
    time: Annotated[
        bool, typer.Option("--time/--no-time", help="Comparison of step times and goodput.")
    ] = True,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Compare runs: which is better, since when, and how they differ."""
    from stepwell.analysis.compare import compare as compare_runs
    from stepwell.cli.compare import show_comparison
    from stepwell.cli.progress import waiting

    chosen = [choose_run(text, dir) for text in runs]
    with waiting("comparing"):
        comparison = compare_runs(chosen, metric, by=by, group=group, time=time, weights=weights)
    if output is not None:
        from stepwell.analysis.plots import Options, panels, save

        drawn = panels(chosen, metric, Options("time" if by == "time" else "step"))
        save(drawn, output, " and ".join(run.name for run in chosen))
    show_comparison(comparison, json)


@app.command("query", rich_help_panel=INSPECT)
def query_command(
    sql: Annotated[
        str,
        typer.Argument(
            metavar="SQL",
            help='Such as "SELECT … FROM spans". Tables: spans, metrics, events, steps, ledger, runs, '
            "processes, open_spans, artifacts. attributes->>'key' is an attribute.",
        ),
    ],
    runs: RunsArgument = None,
    last: Annotated[
        int | None, typer.Option("--last", metavar="N", help="The N newest runs.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All runs in the folder of runs.")
    ] = False,
    rows: Annotated[int, typer.Option("--rows", help="Largest number of printed rows.")] = 50,
    csv: Annotated[bool, typer.Option("--csv", help="CSV output with all rows.")] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A .parquet, .csv or .jsonl file.")
    ] = None,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Query the tables of one or more runs with SQL."""
    from stepwell.cli.query import check_output, show_query

    check_output(output, json, csv)
    show_query(sql, choose_runs(runs or (), dir, last, everything), rows, json, csv, output)


@app.command(rich_help_panel=TRANSFER)
def export(
    run: RunArgument = None,
    to: Annotated[
        str,
        typer.Option(
            "--to", help="Format: chrome (for Perfetto), dftracer, otlp, parquet, csv or jsonl."
        ),
    ] = "parquet",
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="A file such as trace.json.gz for a trace, a folder for tables. Default: named after "
            "the run, in the working directory.",
        ),
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option(help="Steps of a trace: 1000:1010 (ten steps) or 1000 (one step)."),
    ] = None,
    ranks: Annotated[str | None, typer.Option(help="Ranks of a trace, such as 0-7,16.")] = None,
    dialect: Annotated[
        str | None,
        typer.Option(help="dftracer format: new (2.2), or old with brackets, p_idx and level."),
    ] = None,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Write a run as a trace for a viewer, or as tables partitioned by run and rank."""
    from stepwell.cli.export import ExportOptions, check_options, export_run

    options = ExportOptions(to, output, steps, ranks, dialect)
    check_options(options)
    export_run(choose_run(run, dir), options, json)


@app.command(rich_help_panel=TRANSFER)
def forward(
    run: RunArgument = None,
    to: Annotated[str, typer.Option("--to", help=FORWARD_TO)] = "otlp",
    option: Annotated[
        list[str],
        typer.Option(
            "--option",
            help="Option of the receiver, such as endpoint=http://localhost:4318; repeatable. "
            "Set secrets in OTEL_EXPORTER_OTLP_HEADERS, where `ps` does not show them.",
        ),
    ] = [],  # noqa: B006
    all_spans: Annotated[
        bool, typer.Option("--all", help="All spans, including the short ones of each iteration.")
    ] = False,
    only: Annotated[
        list[str], typer.Option("--only", help="Name of spans to send; repeatable.")
    ] = [],  # noqa: B006
    skip: Annotated[
        list[str], typer.Option("--skip", help="Name of spans not to send; repeatable.")
    ] = [],  # noqa: B006
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Send a run to an exporter or tracker. Trackers only get values they do not have yet."""
    from stepwell.cli.forward import forward_run, parse_filter, parse_options, parse_receiver

    chosen = parse_filter(all_spans, only, skip)
    name, options = parse_receiver(to, parse_options(option))
    forward_run(choose_run(run, dir), name, options, chosen, json)


@app.command("import", rich_help_panel=TRANSFER)
def import_command(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help="Traces of dftracer (.pfw, .pfw.gz), the torch profiler or Chrome (.json, .json.gz), or "
            "files of nv-one-logger. Folders and patterns are allowed.",
        ),
    ],
    dir: DirOption = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the run. Default: the file name.")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind", help="Format: dftracer, chrome or nv-one-logger. Default: detected."
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Convert a trace of another tool into a run."""
    from stepwell.cli.export import import_run

    import_run(files, dir, name, kind, json)


@app.command("gc", rich_help_panel=MAINTAIN)
def gc_command(
    folder: FolderArgument = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", help="Time since the last activity: 30d, 12h, 2w."),
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option(
            "--keep",
            metavar="N",
            help="Number of newest runs to keep, among those matching --name.",
        ),
    ] = None,
    status: Annotated[
        list[str],
        typer.Option("--status", help="Status: finished, failed, interrupted, killed, empty."),
    ] = [],  # noqa: B006
    larger_than: Annotated[
        str | None, typer.Option("--larger-than", help="Size on disk: 500M, 10G.")
    ] = None,
    name: Annotated[
        list[str], typer.Option("--name", help="Name, id, or a pattern such as 'try-*'.")
    ] = [],  # noqa: B006
    only: Annotated[
        str | None,
        typer.Option("--only", help="Part to remove: artifacts or spans. Default: whole runs."),
    ] = None,
    undelivered: Annotated[
        bool,
        typer.Option(
            "--undelivered", help="Include runs that a tracker has not received completely."
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Remove the runs instead of listing them.")
    ] = False,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """List the runs that match all given filters; --yes removes them.

    Never removed: running runs, links, and folders that are not runs.
    Runs that a tracker has not received completely are kept, unless you use
    --undelivered.
    """
    from stepwell.cli.maintenance import GcOptions, clean_up

    options = GcOptions(older_than, keep, status, larger_than, name, only, undelivered)
    _exit(clean_up(choose_folder(folder, dir), options, yes, json))


@app.command(rich_help_panel=MAINTAIN)
def recover(run: RunArgument = None, dir: DirOption = None, json: JsonOption = False) -> None:
    """Seal the files that killed processes left in a run, or in a spool on this machine."""
    from stepwell.cli.maintenance import recover_run

    recover_run(choose_run(run, dir), json)


@app.command("doctor", rich_help_panel=MAINTAIN)
def doctor_command(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="Run folder, id or name, or a folder of runs. Default: the installation.",
            autocompletion=complete_run,
        ),
    ] = None,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Check the installation or a run, and suggest fixes. Exit code 1 if there is a problem."""
    from stepwell.cli.doctor import examine, show_checks
    from stepwell.reading.run import runs_dir

    folder = folder_of_runs(run)
    chosen = None if run is None or folder is not None else choose_run(run, dir)
    _exit(int(not show_checks(examine(folder or runs_dir(dir), chosen, os.environ), json)))


@app.command("simulate", rich_help_panel=MAINTAIN)
def simulate_command(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Run folder to create; must not exist.")
    ],
    ranks: Annotated[int, typer.Option("--ranks", help="Number of ranks.")] = 8,
    steps: Annotated[int, typer.Option("--steps", help="Number of steps.")] = 1000,
    plant: Annotated[
        list[str],
        typer.Option(
            "--plant",
            help="Fault: straggler, stall, data or restart; repeatable. Default: all; nothing: none.",
        ),
    ] = [],  # noqa: B006
    seed: Annotated[int, typer.Option("--seed", help="Random seed.")] = 0,
    json: JsonOption = False,
) -> None:
    """Write a synthetic run with planted faults, for benchmarks and tests."""
    from stepwell.cli.simulate import simulate_run

    simulate_run(ranks, steps, output, plant, seed, json)


@app.command(rich_help_panel=MAINTAIN)
def demo(
    folder: FolderArgument = None,
    dir: DirOption = None,
    seconds: Annotated[float, typer.Option(help="Approximate training time in seconds.")] = 30.0,
) -> None:
    """Train a small model for half a minute, record it, and report on the run."""
    from stepwell.cli.demo import run_demo

    run_demo(named_folder(folder, dir), seconds)
