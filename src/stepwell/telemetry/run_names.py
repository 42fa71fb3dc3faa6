"""Names of runs: ids, which are safe as folder names, and the default name, that of the script."""

from __future__ import annotations

import builtins
import os
import re
import sys
import unicodedata
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import PurePath

_LONGEST_ID = 128
_LONGEST_SLUG = 48
_LETTERS = "bcdfghjkmnpqrstvwxz23456789"
"""No vowels, so that ids do not spell words, and no letters that look alike."""


def check_run_id(run_id: str) -> str:
    """Return the id if it is safe as a folder name; otherwise raise ValueError with a suggestion.

    Allowed are up to 128 letters, digits and `. _ + = @ -`; the first may not be a dot or a dash.
    """
    if not isinstance(run_id, str):
        raise ValueError(f"{run_id!r} cannot be a run id: it is not a string")
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
    advice = f", such as {suggestion!r}" if suggestion else ""
    raise ValueError(
        f"{_shorten(run_id)} cannot be a run id: {problem}. "
        f"Use letters, digits and . _ + = @ - (the run's folder has this name){advice}"
    )


def make_run_id(prefix: str = "") -> str:
    """Return a new id: `[prefix-]YYYYMMDD-HHMMSS-xxxxxx`, in UTC so that ids sort by time."""
    stamp = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
    # Six characters, because a sweep may start hundreds of runs in one second.
    random = "".join(_LETTERS[byte % len(_LETTERS)] for byte in os.urandom(6))
    return "-".join(part for part in (prefix, stamp, random) if part)


def make_slug(name: str | None) -> str:
    """Return the name as a readable part of an id, "" if nothing is left of it."""
    letters = unicodedata.normalize("NFKD", (name or "").casefold())
    plain = "".join(letter for letter in letters if not unicodedata.combining(letter))
    return re.sub(r"[^a-z0-9._]+", "-", plain)[:_LONGEST_SLUG].strip("-._")


def _shorten(text: str) -> str:
    return ascii(text if len(text) <= 60 else text[:60] + "...")


def script_name(
    argv: list[str] | None = None,
    environ: Mapping[str, str] = os.environ,
    otherwise: str = "run",
) -> str:
    """Return the name of the script, module or notebook that this process runs.

    ``train.py`` and ``python -m package.train`` are "train", ``python -m package`` is "package". A
    notebook has its own name if Jupyter provides it, otherwise it is "notebook". Code without a file
    (``python -c``, an interactive interpreter) is ``otherwise``.
    """
    shell = _ipython_shell()
    if shell is not None:
        if "ZMQ" not in shell:
            return "ipython"
        return PurePath(environ.get("JPY_SESSION_NAME", "")).stem or "notebook"
    started = ((sys.argv if argv is None else argv) or [""])[0]
    path = PurePath(started if isinstance(started, str) else "")
    # ``python -m package`` runs this file of the package.
    stem = path.parent.name if path.name == "__main__.py" else path.stem
    return stem if stem and not stem.startswith("-") else otherwise


def _ipython_shell() -> str | None:
    """Return the class name of the IPython shell that runs the code, None without one."""
    get_ipython = getattr(builtins, "get_ipython", None)
    if get_ipython is None:
        ipython = sys.modules.get("IPython")
        get_ipython = getattr(ipython, "get_ipython", None)
    try:
        shell = None if get_ipython is None else get_ipython()
    except Exception:  # another function of that name
        return None
    return None if shell is None else type(shell).__name__
