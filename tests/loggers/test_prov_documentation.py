"""The examples in docs/provenance.md work."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell.loggers.prov import document_of
from tests.loggers.prov_checking import check, pairs, things

PAGE = (Path(__file__).parents[2] / "docs" / "provenance.md").read_text()


def block(containing: str) -> str:
    """The code block of the page that has this in it."""
    (found,) = [b for b in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if containing in b]
    return str(found)


def test_a_document_without_a_logger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with stepwell.init("x", run_id="my-run"):
        stepwell.log({"loss": 1.0})
    exec(block("document_of"), {})
    document = json.loads(capsys.readouterr().out)
    check(document)
    assert document["prefix"]["run"] == "http://lab.example.com/digits/my-run/"


def test_a_document_with_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for name in ("train", "val"):
        (tmp_path / "data" / f"{name}.csv").write_text(name)
    space: dict[str, Any] = {"model": {"w": 1}}
    exec(block("Prov4ML"), space)
    (run,) = (tmp_path / "runs").iterdir()
    document = document_of(run)
    check(document)
    (model,) = things(document, "stepwell:Model")
    derived = {earlier for later, earlier in pairs(document, "wasDerivedFrom") if later == model}
    assert {document["entity"][id]["prov:label"] for id in derived} == {"train"}
