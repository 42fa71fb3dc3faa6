"""Commands and their options."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from stepwell.journal.errors import StepwellError

app = typer.Typer(
    help="Look at what stepwell recorded of your training runs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

RunArgument = Annotated[
    Optional[str],  # noqa: UP045 - typer reads this at run time on Python 3.10 too
    typer.Argument(metavar="[RUN]", help="A run folder or run id; the newest run if left out."),
]
DirOption = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--dir", help="Where run folders are; else STEPWELL_DIR, else ./runs."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


def main() -> None:
    """Run the command line; what a person did wrong is said in one line, with exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that knows only ASCII gets question marks, not a traceback.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app()
    except StepwellError as error:
        print(f"stepwell: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        print(f"stepwell: {error}", file=sys.stderr)
        sys.exit(1)


@app.command("ls")
def list_command(dir: DirOption = None, json: JsonOption = False) -> None:
    """List runs, newest first."""
    from stepwell.cli.listing import show_list
    from stepwell.reading.run import runs_dir

    show_list(runs_dir(dir), json)


@app.command()
def show(run: RunArgument = None, dir: DirOption = None, json: JsonOption = False) -> None:
    """Sum up one run: how it ended, where the time went, what was logged."""
    from stepwell.analysis.overview import overview
    from stepwell.cli.summary import show_overview
    from stepwell.reading.find import find_run

    show_overview(overview(find_run(run, dir)), json)


@app.command()
def export(
    run: RunArgument = None,
    to: Annotated[str, typer.Option("--to", help="parquet")] = "parquet",
    output: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("-o", "--output", help="Folder to write to; else ./<run id>-parquet."),
    ] = None,
    dir: DirOption = None,
) -> None:
    """Write a run's tables as Parquet files, partitioned by run and rank."""
    from stepwell.analysis.export import EXPORTS
    from stepwell.reading.find import find_run

    if to not in EXPORTS:
        raise StepwellError(f"--to is {to!r}: write one of {', '.join(EXPORTS)}")
    found = find_run(run, dir)
    target = output or Path(f"{found.id}-{to}")
    files = EXPORTS[to](found, target)
    print(f"{len(files)} files in {target}")


@app.command()
def forward(
    run: RunArgument = None,
    to: Annotated[str, typer.Option("--to", help="otlp, file, or package.module.Class")] = "otlp",
    option: Annotated[
        list[str],
        typer.Option(
            "--option",
            help="An option of the exporter, such as endpoint=http://localhost:4318; repeatable. "
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
) -> None:
    """Send a recorded run to an exporter: for the first time, or again."""
    from stepwell.cli.forwarding import forward_run, parse_filter, parse_options
    from stepwell.reading.find import find_run

    chosen = parse_filter(all_spans, only, skip)
    forward_run(find_run(run, dir), to, parse_options(option), chosen)


@app.command()
def recover(run: RunArgument = None, dir: DirOption = None) -> None:
    """Collect what killed processes left in live files or in a spool of this machine."""
    from stepwell.cli.recovery import recover_run
    from stepwell.reading.find import find_run

    recover_run(find_run(run, dir))


@app.command()
def demo(
    dir: DirOption = None,
    seconds: Annotated[float, typer.Option(help="About how long to train.")] = 30.0,
) -> None:
    """Train a small model for half a minute, recorded, and sum the run up."""
    from stepwell.cli.demo import run_demo
    from stepwell.reading.run import runs_dir

    run_demo(runs_dir(dir), seconds)
