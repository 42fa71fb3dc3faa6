"""The documents of the analysis: what they name exists, and their examples run."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

import pytest

from stepwell.analysis import findings
from stepwell.analysis.goodput import PARTS
from tests.analysis.findings.training import train

DOCS = Path(__file__).parents[2] / "docs"
SOURCE = Path(findings.__file__).parent


def told() -> set[str]:
    """The names that rules give to their findings."""
    found = set()
    for path in SOURCE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                is_finding = node.func.id == "Finding"
                kinds = node.args[:1] if is_finding else node.args[1:2]
                texts = [a.value for a in kinds if isinstance(a, ast.Constant)]
                if is_finding or node.func.id == "_finding":
                    found |= {text for text in texts if isinstance(text, str)}
    return found - {"rule-failed"}


def test_every_rule_is_in_the_document() -> None:
    rows = re.findall(r"^\| (`.*?`) \|", (DOCS / "findings.md").read_text(), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([a-z-]+)`", row)}
    assert named == told()
    assert len(named) > 25


def test_every_part_of_goodput_is_in_the_document() -> None:
    text = (DOCS / "goodput.md").read_text()
    rows = re.findall(r"^\| (`.*?`) \|", text.partition("## Runs that")[0], re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([a-z ]+)`", row)} == set(PARTS)


@pytest.mark.parametrize("name", ["compare", "findings", "goodput"])
def test_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """On runs that have what they ask for."""
    config = {"global_batch_size": 8, "seq_length": 16}
    for run in ("a", "b", "my-run"):
        lr = {"optimizer": {"lr": 0.1 if run == "a" else 0.2}}
        made = train(tmp_path / "made" / run, config={**config, **lr})
        (tmp_path / "runs").mkdir(exist_ok=True)
        os.rename(made.path, tmp_path / "runs" / run)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / f"{name}.md").read_text(), re.DOTALL)
    assert blocks
    if name == "goodput":
        # The others need runs of a session, and start one.
        blocks = blocks[:1]
    for block in blocks:
        exec(block, {})
