"""Arguments and options that several commands share, the runs they select, and shell completion."""

from __future__ import annotations

import os
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stepwell._core.errors import StepwellError

if TYPE_CHECKING:
    from stepwell.reading import RecordedRun

INSPECT = "Inspect runs"
TRANSFER = "Export and import"
MAINTAIN = "Maintenance"


# Completion runs at a key press: it imports nothing that takes time.


def complete_run(context: typer.Context, incomplete: str) -> list[str]:
    """Return the ids of runs that begin with this text, newest first. Without any, the shell offers files."""
    dir = context.params.get("dir")
    root = Path(dir or os.environ.get("STEPWELL_DIR") or "runs").expanduser()
    try:
        folders = [path for path in root.iterdir() if is_run_folder(path)]
        folders.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        return []
    return [path.name for path in folders if path.name.startswith(incomplete)]


def complete_folder(incomplete: str) -> list[str]:
    """Return the folders that begin with this text, in alphabetical order, without run folders."""
    head, tail = os.path.split(incomplete)
    names = [path.name for path in _folders(Path(head).expanduser()) if not is_run_folder(path)]
    matches = [name for name in names if name.startswith(tail) and (tail or name[0] != ".")]
    return [os.path.join(head, name) for name in sorted(matches)]


def is_run_folder(path: Path) -> bool:
    """Return whether this is the folder of one run."""
    return (path / "run.json").is_file()


def _folders(parent: Path) -> list[Path]:
    try:
        return [path for path in parent.iterdir() if path.is_dir()]
    except OSError:
        return []


RunArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        help="Run folder, id or name, or a folder of runs. Default: the newest run. If several runs "
        "match, the newest of them.",
        autocompletion=complete_run,
    ),
]
RunsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RUN",
        help="Run folders, ids or names, or a folder of runs. Default: the newest run.",
        autocompletion=complete_run,
    ),
]
FolderArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="DIR", help="Folder of runs, same as --dir.", autocompletion=complete_folder
    ),
]
DirOption = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        help="Folder of runs. Default: STEPWELL_DIR, or ./runs.",
        autocompletion=complete_folder,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON output, for scripts.")]


def choose_run(text: str | None, dir: Path | None) -> RecordedRun:
    """Return the run with this path, id or name; of a folder of runs, or without a text, the newest run.

    If several runs match, print which one is used.
    """
    from stepwell.cli.output import complain
    from stepwell.reading.lookup import find_run

    folder = folder_of_runs(text)
    return find_run(text, dir, complain) if folder is None else find_run(None, folder)


def choose_runs(
    texts: Sequence[str], dir: Path | None, last: int | None, everything: bool
) -> list[RecordedRun]:
    """Return the named runs, the ``last`` newest runs, all runs, or by default the newest run."""
    from stepwell.reading.documents import newer_format
    from stepwell.reading.lookup import no_runs
    from stepwell.reading.run import list_runs, runs_dir

    if len(texts) == 1 and (folder := folder_of_runs(texts[0])) is not None:
        texts, dir = (), folder
    if sum(map(bool, (texts, last is not None, everything))) > 1:
        raise StepwellError("RUN, --last and --all exclude each other: use one of them")
    if last is not None and last < 1:
        raise StepwellError(f"--last must be at least 1, got {last}")
    if last is None and not everything:
        chosen = [choose_run(text, dir) for text in texts or (None,)]
        return list({run.path.resolve(): run for run in chosen}.values())
    runs = [run for run in list_runs(dir) if newer_format(run.document) is None]
    if not runs:
        raise StepwellError(no_runs(runs_dir(dir)))
    return runs[:last]


def run_argument(run: RecordedRun) -> str:
    """Return the RUN argument for this run: its id, or its path if it is not in the default folder."""
    import shlex

    from stepwell.reading.run import runs_dir

    path = Path(run.place)
    is_default = path.name == run.id and path.parent.absolute() == runs_dir().absolute()
    return shlex.quote(run.id if is_default else run.place)


def folder_of_runs(text: str | None) -> Path | None:
    """Return the path of a folder that contains runs; None for a run folder and anything else."""
    path = Path(text or "").expanduser()
    is_folder = (
        text is not None and not is_run_folder(path) and any(map(is_run_folder, _folders(path)))
    )
    return path if is_folder else None


def named_folder(folder: Path | None, dir: Path | None) -> Path:
    """Return the folder of runs that DIR or --dir names, or the default folder; it need not exist."""
    from stepwell.reading.run import runs_dir

    if folder is not None and dir is not None:
        raise StepwellError("DIR and --dir name the same thing: use one of them")
    return runs_dir(folder or dir)


def choose_folder(folder: Path | None, dir: Path | None) -> Path:
    """Return the folder of runs that DIR or --dir names, or the default folder.

    Raises StepwellError if a named folder does not exist, or is a run or a file.
    """
    from stepwell.reading.remote import address_of

    path = named_folder(folder, dir)
    if (folder is None and dir is None) or address_of(path) is not None:
        return path
    if not path.exists():
        raise StepwellError(f"No folder {path}. {_hint(path)}")
    if not path.is_dir():
        raise StepwellError(f"{path} is a file: give a folder of runs")
    if is_run_folder(path):
        raise StepwellError(
            f"{path} is a run, not a folder of runs. `stepwell show {path}` shows it; the folder of "
            f"runs is {path.parent}"
        )
    return path


def _hint(path: Path) -> str:
    from stepwell.reading.run import runs_dir

    if is_run_folder(runs_dir() / path):
        return f"`stepwell show {path}` shows the run of this name"
    names = [folder.name for folder in _folders(path.parent)]
    near = get_close_matches(path.name, names, 1)
    if near:
        return f"Did you mean {path.parent / near[0]}?"
    return "`stepwell.init(dir=…)` creates it when a run starts"
