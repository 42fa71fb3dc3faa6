"""What the goodput of a run is worked out from, read in one pass."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepwell.analysis.goodput.rates import Joules, joules_of
from stepwell.analysis.ranks.grid import Grid, GridRow, make_grids, make_row
from stepwell.analysis.ranks.stretches import read_stretches
from stepwell.reading import RecordedRun


@dataclass
class Evidence:
    """The attempts of a run, and the energy that each of its processes tells of."""

    grids: list[Grid]
    joules: list[Joules] = field(default_factory=list)


def read_evidence(run: RecordedRun) -> Evidence:
    """Read a run once."""
    rows: list[GridRow | None] = []
    joules = []
    for tables in run.by_process():
        joules.append(joules_of(tables))
        if tables.process.about["role"] != "worker":
            stretches = read_stretches(tables)
            rows.append(None if stretches is None else make_row(stretches))
    return Evidence(make_grids(rows), joules)
