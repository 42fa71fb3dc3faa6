"""``stepwell doctor``: checks whether everything that stepwell needs works here, and says what to mend.

Each check tries the real thing: it writes a file, maps it, opens a connection. None changes a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from rich.table import Table
from rich.text import Text

from stepwell.cli.doctor.backends import check_backends
from stepwell.cli.doctor.check import Check, State
from stepwell.cli.doctor.folder import check_folder
from stepwell.cli.doctor.installation import check_installation
from stepwell.cli.doctor.machine import check_machine
from stepwell.cli.doctor.recorded import check_run
from stepwell.cli.drawing import console, plain
from stepwell.cli.output import print_json
from stepwell.reading import RecordedRun

SIGNS: dict[State, tuple[str, str]] = {
    "ok": ("✓", "green"),
    "note": ("!", "yellow"),
    "problem": ("✗", "red"),
}


def examine(runs: Path, run: RecordedRun | None, environ: Mapping[str, str]) -> Iterator[Check]:
    """Check the installation, or one run; ``runs`` is the folder that new runs go to."""
    if run is not None:
        yield from check_run(run)
        return
    yield from check_installation(environ)
    yield from check_machine()
    yield from check_folder(runs, environ)
    yield from check_backends(environ)


def show_checks(checks: Iterable[Check], as_json: bool = False) -> bool:
    """Print what was found; returns whether there is no problem."""
    found = list(checks)
    problems = sum(check.state == "problem" for check in found)
    if as_json:
        print_json({"problems": problems, "checks": found})
        return not problems
    out = console()
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in found:
        sign, colour = SIGNS[check.state]
        text = plain(check.text)
        if check.advice:
            text.append("\n")
            text.append_text(Text.assemble("→ ", plain(check.advice)))
        table.add_row(Text(sign, colour), plain(check.name), text)
    out.print(table)
    notes = sum(check.state == "note" for check in found)
    out.print(Text(_sum_up(problems, notes), "bold"))
    return not problems


def _sum_up(problems: int, notes: int) -> str:
    if not problems and not notes:
        return "Everything works."
    words = [
        f"{number} {name}{'s' if number > 1 else ''}"
        for number, name in ((problems, "problem"), (notes, "note"))
        if number
    ]
    return f"{' and '.join(words)}; what to do is behind the arrows."
