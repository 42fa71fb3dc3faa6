"""``stepwell import``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stepwell.cli.output import print_json
from stepwell.cli.waiting import Bar
from stepwell.importing import Imported, import_files


def import_run(
    files: Sequence[Path], dir: Path | None, name: str | None, kind: str | None, as_json: bool
) -> None:
    """Import files as one run, with a progress bar, and say what was taken."""
    with Bar("reading") as bar:

        def progress(what: str, done: int, total: int) -> None:
            bar.update(done, total, what)

        done = import_files(files, dir, name, kind=kind, progress=progress)
    if as_json:
        print_json({"run": done.path.name, **vars(done)})
    else:
        _say(done)


def _say(done: Imported) -> None:
    taken = ", ".join(f"{number:,} {what}" for what, number in done.taken.items())
    print(f"{' and '.join(done.kinds)}: took {taken}")
    left_out = sorted(done.left_out.items(), key=lambda item: -item[1])
    if left_out:
        print(f"left out {sum(done.left_out.values()):,} records:")
        for reason, number in left_out[:20]:
            print(f"  {number:,}: {reason}")
        if len(left_out) > 20:
            print(f"  and for {len(left_out) - 20} more reasons, see imported_from in run.json")
    for note in done.notes[:20]:
        print(note)
    print(f"run {done.path.name} in {done.path}")
