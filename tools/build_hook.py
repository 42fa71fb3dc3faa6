"""Builds the page when a wheel is built from a clone, unless it is built already."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import (  # type: ignore[import-not-found]
    BuildHookInterface,
)

PROGRAM = Path(__file__).parent / "build_page.py"


class BuildPage(BuildHookInterface):  # type: ignore[misc]
    """Without the page, everything works but ``stepwell ui`` and reports as HTML."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the page, except for an editable installation, for which `make ui` does."""
        if version == "editable" or not (PROGRAM.parent.parent / "ui").is_dir():
            return
        done = subprocess.run([sys.executable, str(PROGRAM)], capture_output=True, text=True)
        if done.returncode:
            self.app.display_warning(f"The web page is not included: {done.stderr.strip()[-300:]}")
