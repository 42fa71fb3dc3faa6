"""Commands and their options."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from stepwell.cli.choosing import choose_run, complete_run
from stepwell.cli.commands import register
from stepwell.cli.options import CARRY, KEEP, LOOK, DirOption, JsonOption, RunArgument
from stepwell.cli.output import complain
from stepwell.journal.errors import StepwellError

app = typer.Typer(
    help="Look at what stepwell recorded of your training runs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

FORWARD_TO = (
    "otlp, file; of what was logged mlflow, wandb, tensorboard, prov, console; or module.Class. With an "
    "address: mlflow=http://host:5000"
)


def main() -> None:
    """Run the command line; what a person did wrong is said in one line, with exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that knows only ASCII gets question marks, not a traceback.
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


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Look at what stepwell recorded of your training runs."""


@app.command("ls", rich_help_panel=LOOK)
def list_command(
    most: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("-n", help="Number of runs, the newest ones. Default: all."),
    ] = None,
    status: Annotated[
        list[str],
        typer.Option(
            "--status", help="Only runs with this status, such as running or failed; repeatable."
        ),
    ] = [],  # noqa: B006
    tag: Annotated[
        list[str], typer.Option("--tag", help="Only runs with this tag; repeatable.")
    ] = [],  # noqa: B006
    name: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--name", help="Only runs with this name, or a pattern such as 'bert*'."),
    ] = None,
    since: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--since", help="Only runs started since: an age (12h, 2d) or a date."),
    ] = None,
    findings: Annotated[
        bool,
        typer.Option("--findings", help="Count findings too: as slow as a report of each run."),
    ] = False,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """List runs, newest first."""
    from stepwell.cli.listing import show_list, wanted_runs
    from stepwell.reading.run import runs_dir

    show_list(runs_dir(dir), wanted_runs(status, tag, name, since, most), findings, json)


@app.command(rich_help_panel=LOOK)
def show(run: RunArgument = None, dir: DirOption = None, json: JsonOption = False) -> None:
    """Sum up one run: how it ended, where the time went, what was logged."""
    from stepwell.analysis.overview import overview
    from stepwell.cli.summary import show_overview
    from stepwell.cli.waiting import waiting

    found = choose_run(run, dir)
    with waiting(f"reading {found.id}"):
        made = overview(found)
    show_overview(made, json)


@app.command(rich_help_panel=CARRY)
def export(
    run: RunArgument = None,
    to: Annotated[
        str,
        typer.Option(
            "--to", help="chrome (Perfetto opens it), dftracer, otlp, parquet, csv or jsonl"
        ),
    ] = "parquet",
    output: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "-o",
            "--output",
            help="Where to write: a file such as trace.json.gz for a trace, a folder for tables; else "
            "./<run id> and an ending.",
        ),
    ] = None,
    steps: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Only these steps of a trace: 1000:1010 are ten, 1000 is one."),
    ] = None,
    ranks: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Only these ranks in a trace, such as 0-7,16."),
    ] = None,
    dialect: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Of a dftracer trace: new (2.2), or old with brackets, p_idx and level."),
    ] = None,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Write a run as a trace for a viewer, or its tables as files, by run and rank."""
    from stepwell.cli.exporting import Choice, check_choice, export_run

    choice = Choice(to, output, steps, ranks, dialect)
    check_choice(choice)
    export_run(choose_run(run, dir), choice, json)


@app.command(rich_help_panel=CARRY)
def forward(
    run: RunArgument = None,
    to: Annotated[str, typer.Option("--to", help=FORWARD_TO)] = "otlp",
    option: Annotated[
        list[str],
        typer.Option(
            "--option",
            help="An option of the receiver, such as endpoint=http://localhost:4318; repeatable. "
            "Secrets are better set in OTEL_EXPORTER_OTLP_HEADERS, where `ps` does not show them.",
        ),
    ] = [],  # noqa: B006
    all_spans: Annotated[
        bool, typer.Option("--all", help="Send the short spans of every iteration too.")
    ] = False,
    only: Annotated[
        list[str], typer.Option("--only", help="Send only spans of this name; repeatable.")
    ] = [],  # noqa: B006
    skip: Annotated[
        list[str], typer.Option("--skip", help="Send all spans but those of this name; repeatable.")
    ] = [],  # noqa: B006
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Send a recorded run to an exporter, or to a logger's backend what that has not got yet."""
    from stepwell.cli.forwarding import forward_run, parse_filter, parse_options, parse_receiver

    chosen = parse_filter(all_spans, only, skip)
    name, options = parse_receiver(to, parse_options(option))
    forward_run(choose_run(run, dir), name, options, chosen, json)


@app.command("import", rich_help_panel=CARRY)
def import_command(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="A trace of dftracer (.pfw, .pfw.gz), of the torch profiler or any Chrome trace "
            "(.json, .json.gz), or a file of nv-one-logger; a folder or a pattern of them too.",
        ),
    ],
    dir: DirOption = None,
    name: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--name", help="What to call the run; else it has the name of the file."),
    ] = None,
    kind: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--kind", help="dftracer, chrome or nv-one-logger; else told from the file."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Turn a trace that another tool recorded into a run."""
    from stepwell.cli.importing import import_run

    import_run(files, dir, name, kind, json)


@app.command(rich_help_panel=LOOK)
def plot(
    run: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(
            metavar="[RUN]",
            help="A run folder, run id or name, or a folder with a telemetry.jsonl; the newest run if "
            "left out.",
            autocompletion=complete_run,
        ),
    ] = None,
    metrics: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(
            metavar="[METRIC]...",
            help="Names or patterns ('val/*'), a panel each; else loss, accuracy, gradient norm, "
            "weight delta, learning rates and holdout logits, whatever is there.",
        ),
    ] = None,
    output: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("-o", "--output", help="A .png or an .html file; else it is drawn here."),
    ] = None,
    x: Annotated[str, typer.Option("--x", help="step, epoch or time")] = "step",
    smooth: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option("--smooth", help="From 0 (none) to below 1; else as suits the curve."),
    ] = None,
    rank: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--rank", help="Only this rank; else the mean of all and their range."),
    ] = None,
    by_rank: Annotated[bool, typer.Option("--by-rank", help="A curve for each rank.")] = False,
    log: Annotated[
        Optional[bool],  # noqa: UP045
        typer.Option("--log/--linear", help="Scale of the y axis; else as suits the values."),
    ] = None,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Draw the curves of a run: in the terminal, as a picture or as a page."""
    from stepwell.analysis.diagnostics import find_diagnostics
    from stepwell.analysis.plots import Options, panels
    from stepwell.cli.plotting import save_panels, show_panels
    from stepwell.cli.waiting import waiting

    found = find_diagnostics(run) or choose_run(run, dir)
    with waiting(f"reading {found.id}"):
        made = panels([found], metrics or (), Options(x, smooth, rank, by_rank, log))
    if output is not None:
        save_panels(made, output, found.name)
    else:
        show_panels(made, json)


@app.command(rich_help_panel=LOOK)
def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN RUN...", help="Run folders or run ids.", autocompletion=complete_run
        ),
    ],
    metric: Annotated[
        list[str], typer.Option("--metric", help="Only these: a name or a pattern; repeatable.")
    ] = [],  # noqa: B006
    by: Annotated[
        str, typer.Option("--by", help="Align curves by step, samples, tokens or time.")
    ] = "step",
    group: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--group",
            help="What makes a variant: a key of the config, or name (a number at its end left out); "
            "else all of the config but seeds.",
        ),
    ] = None,
    output: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("-o", "--output", help="Also draw their curves: a .png or an .html file."),
    ] = None,
    weights: Annotated[
        bool, typer.Option("--weights/--no-weights", help="Compare snapshots of the weights.")
    ] = True,
    time: Annotated[
        bool, typer.Option("--time/--no-time", help="Compare how long steps took, and goodput.")
    ] = True,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Say which of several runs was better at what, since when, and what was different."""
    from stepwell.analysis import compare as comparing
    from stepwell.cli.comparing import show_comparison
    from stepwell.cli.waiting import waiting

    found = [choose_run(text, dir) for text in runs]
    with waiting("comparing"):
        made = comparing.compare(found, metric, by=by, group=group, time=time, weights=weights)
    if output is not None:
        from stepwell.analysis.plots import Options, panels, save

        drawn = panels(found, metric, Options("time" if by == "time" else "step"))
        save(drawn, output, " and ".join(run.name for run in found))
    show_comparison(made, json)


@app.command("stacks", rich_help_panel=LOOK)
def stacks_command(
    run: RunArgument = None,
    after: Annotated[
        float, typer.Option("--after", help="Seconds after which a rank may be said to hang.")
    ] = 10.0,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Say what every rank and thread is inside of now, or was when it died, and who hangs."""
    from stepwell.cli.stacks import show_stacks

    show_stacks(choose_run(run, dir), after, json)


@app.command("report", rich_help_panel=LOOK)
def report_command(
    run: RunArgument = None,
    fail_on: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--fail-on",
            help="Exit with 1 when there is a finding of at least this weight: critical, warning or note.",
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option("--engine", help="Who reads the run: local, or dask for a cluster.")
    ] = "local",
    scheduler: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--scheduler",
            metavar="ADDRESS",
            help="With --engine dask: where its scheduler is, such as tcp://10.0.0.1:8786; else a "
            "cluster is started here.",
        ),
    ] = None,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Say how a run is, what is wrong with it, where its time went and what it reached."""
    if fail_on not in (None, "critical", "warning", "note"):
        raise StepwellError(f"--fail-on {fail_on}: write critical, warning or note")
    from stepwell.cli.reporting import show_report

    code = show_report(choose_run(run, dir), json, fail_on, engine=engine, scheduler=scheduler)
    if code:
        raise typer.Exit(code)


@app.command("alert", rich_help_panel=LOOK)
def alert_command(
    run: RunArgument = None,
    command: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--command", help="A program to run for each finding, which it gets as JSON."),
    ] = None,
    webhook: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--webhook", help="An address to post each finding to, as JSON."),
    ] = None,
    every: Annotated[
        float, typer.Option("--every", help="Seconds from one look to the next.")
    ] = 30,
    least: Annotated[
        str, typer.Option("--least", help="Tell from this weight on: critical, warning or note.")
    ] = "warning",
    once: Annotated[bool, typer.Option("--once", help="Look once, and do not wait.")] = False,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Look at a run while it goes on, and tell of each new finding once."""
    from stepwell.cli.alerting import follow_run

    code = follow_run(choose_run(run, dir), command, webhook, every, least, once, json)
    if code:
        raise typer.Exit(code)


@app.command("simulate", rich_help_panel=KEEP)
def simulate_command(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The run folder to write; it must not exist.")
    ],
    ranks: Annotated[int, typer.Option("--ranks", help="How many ranks.")] = 8,
    steps: Annotated[int, typer.Option("--steps", help="How many steps.")] = 1000,
    plant: Annotated[
        list[str],
        typer.Option(
            "--plant",
            help="straggler, stall, data or restart; repeatable. All of them if left out, "
            "or nothing.",
        ),
    ] = [],  # noqa: B006
    seed: Annotated[int, typer.Option("--seed", help="Another one gives another run.")] = 0,
    json: JsonOption = False,
) -> None:
    """Write a synthetic run with planted faults, for benchmarks and tests."""
    from stepwell.cli.simulating import simulate_run

    simulate_run(ranks, steps, output, plant, seed, json)


@app.command(rich_help_panel=KEEP)
def recover(run: RunArgument = None, dir: DirOption = None, json: JsonOption = False) -> None:
    """Collect what killed processes left in live files or in a spool of this machine."""
    from stepwell.cli.recovery import recover_run

    recover_run(choose_run(run, dir), json)


@app.command(rich_help_panel=KEEP)
def demo(
    dir: DirOption = None,
    seconds: Annotated[float, typer.Option(help="About how long to train.")] = 30.0,
) -> None:
    """Train a small model for half a minute, recorded, and sum the run up."""
    from stepwell.cli.demo import run_demo
    from stepwell.reading.run import runs_dir

    run_demo(runs_dir(dir), seconds)


register(app)
