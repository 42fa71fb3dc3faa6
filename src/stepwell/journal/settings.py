"""Settings from the environment: their names, and the warning about a mistake in one.

A mistake never ends training. It gives one warning with the allowed values, and the default applies.
"""

from __future__ import annotations

from collections.abc import Mapping

from stepwell.journal.errors import warn_once

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
)
OWN = (
    "STEPWELL_RULE",
    "STEPWELL_RUN",
    "STEPWELL_SEVERITY",
    "STEPWELL_STARTER",
    "STEPWELL_TEXT",
)
"""Variables that stepwell sets itself, for programs that it starts."""
ON = ("1", "true", "yes", "on")
OFF = ("", "0", "false", "no", "off")


def warn_setting(name: str, value: str, instead: str) -> None:
    """Warn once about a wrong value of a setting, with the values that are allowed."""
    warn_once(f"setting {name}", "%s is %.100r: write %s. It is ignored.", name, value, instead)


def read_flag(environ: Mapping[str, str], name: str, default: bool = False) -> bool:
    """Return whether a setting is on; unset, or neither on nor off (with a warning), the default holds."""
    if name not in environ:
        return default
    text = environ[name].strip().lower()
    if text not in (*ON, *OFF):
        warn_setting(name, text, f"{int(not default)}, or leave it unset")
        return default
    return text in ON


def warn_unknown_settings(environ: Mapping[str, str]) -> None:
    """Warn once about each unknown variable that begins with STEPWELL_, and suggest the most similar one."""
    for name in sorted(environ):
        hint = unknown_setting(name)
        if hint is not None:
            warn_once(f"setting {name}", "%s is not a setting of stepwell%s", name, hint)


def unknown_setting(name: str) -> str | None:
    """Return the end of a sentence about a variable that looks like a setting and is none; else None."""
    if not name.startswith(PREFIX) or name in SETTINGS or name in OWN:
        return None
    from difflib import get_close_matches

    words = {setting.removeprefix(PREFIX): setting for setting in SETTINGS}
    near = get_close_matches(name.removeprefix(PREFIX), words, 1)
    return f": did you mean {words[near[0]]}?" if near else "."
