"""docs/commands.md describes every command, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import typer.main

from stepwell.cli.app import app

ROOT = Path(__file__).parent.parent.parent


def test_every_command_has_its_paragraph() -> None:
    """With an example of its use; README leads there."""
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    commands = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    assert set(re.findall(r"^## (.+)$", text, re.MULTILINE)) == commands
    used = set(re.findall(r"(?:^\$ |`)stepwell ([a-z]+)", text, re.MULTILINE))
    assert commands - used == set()
    assert "(docs/commands.md)" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_what_it_shows_fits_a_terminal() -> None:
    """80 columns, but for what is printed for logs and mistakes, which are broken in a terminal."""
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    wide = [line for block in blocks for line in block.splitlines()[1:] if len(line) > 80]
    assert all(re.match(r"\d\d:\d\d:\d\d · |spans: |    FROM", line) for line in wide)
