"""Judge synthetic curves by the rules, as parts of one short recorded run that is read once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepwell.analysis.findings import Facts, Finding, findings
from stepwell.analysis.findings.curves import Curves
from tests.analysis.findings.training import train

Floats = NDArray[np.float64]
Curve = Floats | tuple[NDArray[np.int64], Floats]
"""Values of steps 0, 1, 2, …; or steps and values."""


@cache
def _recorded() -> Facts:
    with TemporaryDirectory() as folder:
        facts = Facts(train(Path(folder), steps=40, values=None))
        # Read now: the folder is removed.
        assert facts.summary.documents
        assert facts.status == "finished"
        return facts


def facts_of(curves: Mapping[str, Curve], config: Mapping[str, Any] | None = None) -> Facts:
    """Return what rules see of a run that logged these curves."""
    known = _recorded()
    made = Facts(known.run)
    made.__dict__.update(_read=known._read, steps=known.steps, patterns=known.patterns)
    made.run = SimpleNamespace(config=dict(config or {}), id="run")  # type: ignore[assignment]
    frames = []
    for name, curve in curves.items():
        steps, values = curve if isinstance(curve, tuple) else (np.arange(len(curve)), curve)
        columns = {"step": steps, "time_ns": steps * 10_000_000, "value": values}
        frame = pl.DataFrame(columns).cast({"step": pl.Int64, "time_ns": pl.Int64})
        place = {"name": name, "rank": 0, "attempt": 0}
        frames.append(frame.select(*(pl.lit(v).alias(k) for k, v in place.items()), pl.all()))
    made.__dict__["curves"] = Curves(pl.concat(frames))
    return made


def judge(curves: Mapping[str, Curve], config: Mapping[str, Any] | None = None) -> list[Finding]:
    """Return the findings of a run that logged these curves."""
    return findings(facts_of(curves, config))
