"""``stepwell gc``: which runs may go, and removing them."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from stepwell.analysis.retention import Candidate, Selection, choose, remove
from stepwell.cli.drawing import console, plain, size, wrapped
from stepwell.cli.output import complain, print_json
from stepwell.cli.waiting import Bar, waiting
from stepwell.journal.errors import StepwellError

UNITS_S = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
UNITS_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True)
class Wish:
    """Which runs shall go, as it was typed."""

    older_than: str | None
    keep: int | None
    status: list[str]
    larger_than: str | None
    name: list[str]
    only: str | None
    undelivered: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing says which runs."""
        said = (self.older_than, self.larger_than, self.keep)
        return all(word is None for word in said) and not self.status and not self.name


def clean_up(root: Path, wish: Wish, yes: bool, as_json: bool) -> int:
    """List what would go, and remove it if that is meant; returns the exit code."""
    if wish.is_empty:
        raise StepwellError(
            "say which runs: --older-than 30d, --keep 20, --status killed, --larger-than 10G or "
            "--name 'try-*'; what all of them are true of is listed, and removed with --yes"
        )
    with waiting("measuring runs"):
        found = choose(
            root,
            older_than_s=parse_age(wish.older_than),
            keep=wish.keep,
            statuses=[s for text in wish.status for s in text.split(",")],
            larger_than=parse_size(wish.larger_than),
            names=wish.name,
            only=wish.only,
            undelivered=wish.undelivered,
        )
    failed = _remove_all(found, wish.only) if yes else {}
    if as_json:
        print_json(_as_json(root, found, yes, failed))
    else:
        _print(root, found, wish.only, yes, failed)
    for text in failed.values():
        complain(text)
    return int(bool(failed))


def _remove_all(found: Selection, only: str | None) -> dict[str, str]:
    """Remove them; what could not be removed, and why."""
    failed = {}
    with Bar("removing") as bar:
        for number, candidate in enumerate(found.goes):
            bar.update(number, len(found.goes), candidate.id)
            try:
                remove(candidate, only)
            except (StepwellError, OSError) as error:
                failed[candidate.id] = str(error)
    return failed


def _print(
    root: Path, found: Selection, only: str | None, yes: bool, failed: dict[str, str]
) -> None:
    out = console()
    goes = [candidate for candidate in found.goes if candidate.id not in failed]
    if goes:
        out.print(_table(goes, out.width))
        out.print()
    what = "1 run" if len(goes) == 1 else f"{len(goes)} runs"
    if only is not None and goes:
        what = f"the {only} of {what}"
    freed = size(sum(candidate.bytes for candidate in goes))
    if not goes:
        text = f"nothing to remove in {root}"
    else:
        text = f"removed {what}, {freed}" if yes else f"{what} would go, {freed}"
    stays = found.stays + len(failed)
    out.print(plain(f"{text}; {stays} {'stays' if stays == 1 else 'stay'}"))
    if goes and not yes:
        out.print("Nothing was removed: --yes does that.")
    for identity, why in found.spared.items():
        out.print(Text(wrapped(f"{identity} stays: {why}", out.width, indent="  ")))


def _table(goes: list[Candidate], width: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("last seen", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("run", no_wrap=True, overflow="ellipsis", max_width=max(20, width - 38))
    for run in goes:
        age = age_of((time.time_ns() - run.ended_ns) / 1e9)
        table.add_row(f"{age} ago", plain(run.status), size(run.bytes), plain(run.id))
    return table


def age_of(seconds: float) -> str:
    """About how long ago something was: 3 days, 5 h, 12 min."""
    for unit, word in (("d", "days"), ("h", "h"), ("min", "min")):
        if seconds >= 2 * UNITS_S[unit]:
            return f"{seconds / UNITS_S[unit]:.0f} {word}"
    return f"{max(0, seconds):.0f} s"


def _as_json(root: Path, found: Selection, yes: bool, failed: dict[str, str]) -> dict[str, Any]:
    return {
        "dir": root,
        "removed": yes,
        "bytes": sum(run.bytes for run in found.goes if run.id not in failed),
        "runs": [run for run in found.goes if run.id not in failed],
        "stays": found.stays + len(failed),
        "spared": found.spared,
        "failed": failed,
    }


def parse_age(text: str | None) -> float | None:
    """Seconds, from ``30d``, ``12h``, ``90min`` or ``2w``."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|h|d|w)", text.strip())
    if match is None:
        raise StepwellError(f"--older-than {text}: write a time such as 30d, 12h, 90min or 2w")
    return float(match[1]) * UNITS_S[match[2]]


def parse_size(text: str | None) -> int | None:
    """Bytes, from ``500M``, ``10G`` or a plain number."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise StepwellError(f"--larger-than {text}: write a size such as 500M or 10G")
    return int(float(match[1]) * UNITS_BYTES[match[2].upper()])
