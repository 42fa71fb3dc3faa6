"""Run ids: how they look, and which ones are safe as the name of a folder."""

from __future__ import annotations

import os
import re
import unicodedata
from datetime import datetime, timezone

_LONGEST_ID = 128
_LONGEST_SLUG = 48
_LETTERS = "bcdfghjkmnpqrstvwxz23456789"
"""No vowels, so that ids do not spell words, and nothing that looks like something else."""


def check_run_id(run_id: str) -> str:
    """Return the id if it is safe as a folder name; else a ValueError says what to write instead.

    Allowed are up to 128 letters, digits and `. _ + = @ -`, not starting with a dot or a dash.
    """
    if not isinstance(run_id, str):
        raise ValueError(f"{run_id!r} cannot be a run id: it is no string")
    if re.fullmatch(r"[A-Za-z0-9_+=@][A-Za-z0-9._+=@-]{0,127}", run_id):
        return run_id
    if not run_id:
        problem = "it is empty"
    elif len(run_id) > _LONGEST_ID:
        problem = f"it has {len(run_id)} characters and at most {_LONGEST_ID} are allowed"
    elif run_id[0] in ".-":
        problem = f"it starts with {run_id[0]!r}"
    else:
        wrong = sorted(set(re.findall(r"[^A-Za-z0-9._+=@-]", run_id)))
        problem = f"it contains {', '.join(ascii(character) for character in wrong)}"
    suggestion = make_slug(run_id)
    advice = f"; {suggestion!r} would do" if suggestion else ""
    raise ValueError(
        f"{_shorten(run_id)} cannot be a run id: {problem}. "
        f"Use letters, digits and . _ + = @ - (the run's folder has this name){advice}"
    )


def make_run_id(prefix: str = "") -> str:
    """Return a new id: `[prefix-]YYYYMMDD-HHMMSS-xxxxxx`, in UTC so that ids sort by time."""
    stamp = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
    # Six characters, because a sweep may start hundreds of runs within the same second.
    random = "".join(_LETTERS[byte % len(_LETTERS)] for byte in os.urandom(6))
    return "-".join(part for part in (prefix, stamp, random) if part)


def make_slug(name: str | None) -> str:
    """Return the name as a readable part of an id, or "" if nothing of it is left."""
    letters = unicodedata.normalize("NFKD", (name or "").casefold())
    plain = "".join(letter for letter in letters if not unicodedata.combining(letter))
    return re.sub(r"[^a-z0-9._]+", "-", plain)[:_LONGEST_SLUG].strip("-._")


def _shorten(text: str) -> str:
    return ascii(text if len(text) <= 60 else text[:60] + "...")
