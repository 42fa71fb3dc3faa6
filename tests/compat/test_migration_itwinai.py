"""The names in docs/migrate/itwinai.md exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stepwell.compat import itwinai

PAGE = (Path(__file__).parents[2] / "docs" / "migrate" / "itwinai.md").read_text()


def test_every_name_is_on_the_page_and_there() -> None:
    """Those of the trainer too, which are imported when they are asked for."""
    pytest.importorskip("torch")
    pytest.importorskip("lightning")
    for name in itwinai.__all__:
        assert getattr(itwinai, name) is not None
        assert name in PAGE or name.startswith("Ray")


def test_what_it_says_of_other_pages() -> None:
    for target in re.findall(r"\]\(([^)#]+)", PAGE):
        assert (Path(__file__).parents[2] / "docs" / "migrate" / target).is_file(), target


def test_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user would type it, with less data."""
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(itwinai.MLFlowLogger, "backend_class", "")
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    code = code.replace("batch_size=64", "batch_size=4, num_workers_dataloader=0")
    data = torch.utils.data.TensorDataset(torch.rand(8, 3), torch.arange(8) % 3)
    space = {
        "model": torch.nn.Linear(3, 3),
        "metrics": {},
        "train_dataset": data,
        "validation_dataset": data,
    }
    exec(code, space)
    assert space["trained"] is space["model"]
    assert (tmp_path / "checkpoints" / "epoch_9" / "model.pt").is_file()
