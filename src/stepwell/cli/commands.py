"""The commands ``query``, ``watch``, ``gc`` and ``doctor``, and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from stepwell.cli.choosing import complete_run
from stepwell.cli.options import KEEP, LOOK, DirOption, JsonOption, RunArgument, RunsArgument


def register(app: typer.Typer) -> None:
    """Add them to the application."""
    app.command("query", rich_help_panel=LOOK)(query_command)
    app.command("watch", rich_help_panel=LOOK)(watch_command)
    app.command("gc", rich_help_panel=KEEP)(gc_command)
    app.command("doctor", rich_help_panel=KEEP)(doctor_command)


def query_command(
    sql: Annotated[
        str,
        typer.Argument(
            metavar="SQL",
            help='"SELECT … FROM spans": or metrics, events, steps, ledger, runs, processes, '
            "open_spans, artifacts. attributes->>'key' is an attribute.",
        ),
    ],
    runs: RunsArgument = None,
    last: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--last", help="Ask so many of the newest runs."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Ask all runs below the folder of runs.")
    ] = False,
    rows: Annotated[int, typer.Option("--rows", help="Show so many rows at most.")] = 50,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV, all of it.")] = False,
    output: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("-o", "--output", help="Write a .parquet, .csv or .jsonl file."),
    ] = None,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Ask the tables of one or several runs a question in SQL."""
    from stepwell.cli.choosing import choose_runs
    from stepwell.cli.querying import check_output, show_query

    check_output(output, json, csv)
    show_query(sql, choose_runs(runs or (), dir, last, everything), rows, json, csv, output)


def doctor_command(
    run: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(
            metavar="[RUN]",
            help="Check this run folder, run id or name; the installation if left out.",
            autocompletion=complete_run,
        ),
    ] = None,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Check an installation or a run, and say what to mend. Ends with 1 where there is a problem."""
    import os

    from stepwell.cli.choosing import choose_run
    from stepwell.cli.doctor import examine, show_checks
    from stepwell.reading.run import runs_dir

    found = None if run is None else choose_run(run, dir)
    if not show_checks(examine(runs_dir(dir), found, os.environ), json):
        raise typer.Exit(1)


def watch_command(
    run: RunArgument = None,
    interval: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option("--interval", help="Seconds from one look to the next; else 1, piped 10."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Look once, and do not wait.")] = False,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Look on while a run trains: progress, values, time, ranks, findings. It only reads files.

    It ends with the run, with 0 if that finished, else with 1. Piped it prints a line now and then.
    """
    import os

    # One thread of Polars will do, before it is imported: the training needs the others.
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    from stepwell.cli.watching import run_to_watch, watch_run

    code = watch_run(run_to_watch(run, dir), interval, once, json)
    if code:
        raise typer.Exit(code)


def gc_command(
    older_than: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--older-than", help="Last seen longer ago than this: 30d, 12h, 2w."),
    ] = None,
    keep: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--keep", help="The so many newest stay (of those with that --name)."),
    ] = None,
    status: Annotated[
        list[str],
        typer.Option("--status", help="Status: finished, failed, interrupted, killed, empty."),
    ] = [],  # noqa: B006
    larger_than: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--larger-than", help="That take more than this: 500M, 10G."),
    ] = None,
    name: Annotated[
        list[str], typer.Option("--name", help="Of this name or id, or pattern: 'try-*'.")
    ] = [],  # noqa: B006
    only: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--only", help="artifacts or spans: only these go, the rest stays."),
    ] = None,
    undelivered: Annotated[
        bool,
        typer.Option("--undelivered", help="Also what a tracker never got (stepwell forward)."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove them, in place of a list.")] = False,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """List the runs that all of this is true of, and remove them with --yes.

    A run that is running never goes, nor what is no run, and no link is followed. One that has
    something for a tracker or a collector that never got it stays, unless --undelivered is said.
    """
    from stepwell.cli.removing import Wish, clean_up
    from stepwell.reading.run import runs_dir

    wish = Wish(older_than, keep, status, larger_than, name, only, undelivered)
    code = clean_up(runs_dir(dir), wish, yes, json)
    if code:
        raise typer.Exit(code)
