"""The default name of a run: that of the program that trains."""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Mapping
from pathlib import PurePath

FALLBACK = "run"


def script_name(argv: list[str] | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """Return the name of the script, module or notebook that this process runs.

    ``train.py`` and ``python -m package.train`` are "train", ``python -m package`` is "package". A
    notebook has its own name where Jupyter passes it on, else it is "notebook". Code without a file
    (``python -c``, an interactive interpreter) is "run".
    """
    shell = _ipython_shell()
    if shell is not None:
        if "ZMQ" not in shell:
            return "ipython"
        return PurePath(environ.get("JPY_SESSION_NAME", "")).stem or "notebook"
    path = PurePath((sys.argv if argv is None else argv or [""])[0])
    # ``python -m package`` runs this file of the package.
    stem = path.parent.name if path.name == "__main__.py" else path.stem
    return stem if stem and not stem.startswith("-") else FALLBACK


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
