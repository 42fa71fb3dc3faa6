"""Arguments and options that several commands have, and under which headings commands are listed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from stepwell.cli.choosing import complete_run

LOOK = "Look at runs"
CARRY = "Carry them elsewhere, or here"
KEEP = "Keep house"

RunArgument = Annotated[
    Optional[str],  # noqa: UP045 - typer reads this at run time on Python 3.10 too
    typer.Argument(
        metavar="[RUN]",
        help="A run folder, run id or name (the newest of several); the newest run if left out.",
        autocompletion=complete_run,
    ),
]
RunsArgument = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Argument(
        metavar="[RUN]...",
        help="Run folders, run ids or names; the newest run if left out.",
        autocompletion=complete_run,
    ),
]
DirOption = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--dir", help="Where run folders are; else STEPWELL_DIR, else ./runs."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
