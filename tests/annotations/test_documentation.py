"""The examples in docs/annotations.md run, and its statements about the tree are true."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell import ai
from stepwell.annotations.tree import walk

PAGE = Path(__file__).parents[2] / "docs" / "annotations.md"


@pytest.mark.torch
def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, one after the other, with a small model for what they leave out."""
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("STEPWELL_DIR", str(tmp_path))
    monkeypatch.setenv("STEPWELL_STRICT", "1")
    model = torch.nn.Linear(4, 1)
    names: dict[str, Any] = {
        "model": lambda batch: None,
        "loader": [1, 2, 3],
    }
    first, *rest = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(rest) == 3
    exec(first, names)
    names |= {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loader": torch.utils.data.DataLoader([(torch.ones(4), torch.ones(1))] * 4, batch_size=2),
        "loss_of": torch.nn.functional.mse_loss,
    }
    for text in rest:
        exec(text, names)
    names["Images"]()[0]
    stepwell.finish()
    spans = stepwell.open_run(names["run"].path).spans().collect()
    found = dict(spans.group_by("name").len().iter_rows())
    assert found == {
        "epoch.iter": 2,
        "epoch.block": 2,
        "fetch.iter": 6,
        "fetch.block": 6,
        "forward": 6 + 2,
        "fetch": 2,
        "backward": 2,
        "step": 2,
        "item": 1,
    }


def test_the_table_has_the_whole_tree() -> None:
    """Each node is in its parent's row."""
    rows = re.findall(r"^\| `(ai[\w.]*)` \| ([^|]*) \|", PAGE.read_text(encoding="utf-8"), re.M)
    said = {path: re.findall(r"`(\w+)`", children) for path, children in rows}
    assert said.pop("ai") == []
    there = {
        f"ai.{name}": list(vars(node)) for name, node in vars(ai).items() if node in list(walk())
    }
    assert {path: sorted(names) for path, names in said.items()} == {
        path: sorted(names) for path, names in there.items()
    }
