"""What the environment says about the runtime watch. A mistake there is a warning, not an end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from stepwell.journal.pump import SMALL_SHARE
from stepwell.journal.settings import warn_setting

EVERY = 5.0
SHORTEST = 0.1
PAUSE_MS = 1.0
ASKED_SHARE = 0.05


@dataclass(frozen=True)
class Settings:
    """None stands for "not at all".

    ``seconds`` lie between two readings, ``pause_ms`` is the shortest garbage collection that is
    recorded, ``tdp_watts`` what all cores together use under load, for estimating energy. ``share``
    of a core is what the readings may cost: little, unless their interval was asked for.
    """

    seconds: float | None = EVERY
    pause_ms: float | None = PAUSE_MS
    tdp_watts: float | None = None
    share: float = SMALL_SHARE

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Settings:
        """From ``STEPWELL_RUNTIME``, ``STEPWELL_GC_PAUSES`` and ``STEPWELL_TDP_WATTS``."""
        seconds = _number(environ, "STEPWELL_RUNTIME", EVERY, SHORTEST)
        # One word switches all of it off, unless pauses are asked for by name.
        pause = None if seconds is None else PAUSE_MS
        return cls(
            seconds,
            _number(environ, "STEPWELL_GC_PAUSES", pause, 0.0),
            _number(environ, "STEPWELL_TDP_WATTS", None, 0.1),
            SMALL_SHARE if seconds == EVERY else ASKED_SHARE,
        )


def _number(
    environ: Mapping[str, str], name: str, default: float | None, least: float
) -> float | None:
    text = environ.get(name, "").strip().lower()
    if text in ("", "on"):
        return default
    if text == "off":
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isfinite(value) and value >= least:
        return value
    warn_setting(name, text, f"off, or a number from {least:g} on")
    return default
