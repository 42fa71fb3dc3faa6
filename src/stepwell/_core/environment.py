"""Settings from the environment: their names, and warnings about wrong values.

A wrong value never raises: it gives one warning with the allowed values, and the default applies.
"""

from __future__ import annotations

from collections.abc import Mapping

from stepwell._core.errors import warn_once

PREFIX = "STEPWELL_"
SETTINGS = (
    "STEPWELL_CACHE",
    "STEPWELL_CARBON_INTENSITY",
    "STEPWELL_DIR",
    "STEPWELL_DROP",
    "STEPWELL_EXPORTERS",
    "STEPWELL_FINISH_TIMEOUT",
    "STEPWELL_GC_PAUSES",
    "STEPWELL_MAX_BYTES",
    "STEPWELL_MODE",
    "STEPWELL_PEAK_FLOPS",
    "STEPWELL_QUIET",
    "STEPWELL_RUNTIME",
    "STEPWELL_RUN_ID",
    "STEPWELL_SPOOL",
    "STEPWELL_STRICT",
    "STEPWELL_TDP_WATTS",
    "STEPWELL_UI_TOKEN",
)
OWN = (
    "STEPWELL_RULE",
    "STEPWELL_RUN",
    "STEPWELL_SEVERITY",
    "STEPWELL_STARTER",
    "STEPWELL_TEXT",
)
"""Variables that stepwell sets for programs that it starts."""
ON = ("1", "true", "yes", "on")
OFF = ("", "0", "false", "no", "off")


def warn_setting(name: str, value: str, instead: str) -> None:
    """Warn once about a wrong value of a setting; ``instead`` names the allowed values."""
    warn_once(f"setting {name}", "%s is %.100r: write %s. It is ignored.", name, value, instead)


def read_flag(environ: Mapping[str, str], name: str, default: bool = False) -> bool:
    """Return whether a setting is on; the default if it is unset, or (with a warning) not a flag."""
    if name not in environ:
        return default
    text = environ[name].strip().lower()
    if text not in (*ON, *OFF):
        warn_setting(name, text, f"{int(not default)}, or leave it unset")
        return default
    return text in ON


def warn_unknown_settings(environ: Mapping[str, str]) -> None:
    """Warn once about each unknown variable that begins with STEPWELL_; suggest the most similar setting."""
    for name in sorted(environ):
        hint = unknown_setting(name)
        if hint is not None:
            warn_once(f"setting {name}", "%s is not a setting of stepwell%s", name, hint)


def unknown_setting(name: str) -> str | None:
    """Return the end of a warning about an unknown variable that begins with STEPWELL_; else None."""
    if not name.startswith(PREFIX) or name in SETTINGS or name in OWN:
        return None
    from difflib import get_close_matches

    words = {setting.removeprefix(PREFIX): setting for setting in SETTINGS}
    near = get_close_matches(name.removeprefix(PREFIX), words, 1)
    return f": did you mean {words[near[0]]}?" if near else "."
