"""Panels as a file: a picture, or a page that needs nothing else."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from stepwell.analysis.plots.curves import Panel
from stepwell.journal.errors import StepwellError


def save(panels: Sequence[Panel], path: str | os.PathLike[str], title: str = "") -> Path:
    """Write panels to ``path``, a PNG (needs matplotlib) or an HTML file by its ending."""
    target = Path(path)
    ending = target.suffix.lower()
    if ending not in (".png", ".html", ".htm"):
        raise StepwellError(f"{str(target)!r}: write a name that ends in .png or .html")
    if ending == ".png":
        from stepwell.analysis.plots.png import png

        data = png(panels, title)
    else:
        from stepwell.analysis.plots.html import html

        data = html(panels, title).encode()
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        beside.write_bytes(data)
        return beside.replace(target)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise StepwellError(f"cannot write {str(target)!r}: {error.strerror}") from None
