"""Exporters from names, files, the environment and entry points, and what is said when that fails."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

import stepwell
from stepwell import StepwellError
from stepwell.exporters import (
    ConsoleExporter,
    ExportCustomizationMode,
    Exporter,
    ExportFilter,
    FileExporter,
    LoggingExporter,
    Record,
)
from stepwell.telemetry import exporter_config
from stepwell.telemetry.exporter_config import load_exporters, make_exporter

HERE = __name__


class Mine(Exporter):
    """An exporter of a user."""

    def __init__(self, target: str, times: int = 1) -> None:
        if times < 1:
            raise ValueError("times is to be 1 or more")
        self.target = target
        self.times = times

    def export(self, records: Sequence[Record]) -> None:
        pass


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """This module can be found by its name, as one of a user's could."""
    monkeypatch.setitem(sys.modules, "users_module", sys.modules[HERE])


def made(config: Any) -> list[Any]:
    return [found.exporter for found in load_exporters(config)]


YAML = """
exporters:
  - name: file
    options: {file_path: out/telemetry.json}
  - class_name: users_module.Mine
    config:
      target: there
      times: 3
    export_customization_mode: whitelist_spans
    span_name_filter: [training_loop]
  - name: console
    enabled: false
  - logging
"""


@pytest.mark.parametrize("suffix", ["yaml", "yml", "json"])
def test_from_a_file(tmp_path: Path, suffix: str) -> None:
    """Each entry becomes an exporter with its options and its filter; disabled ones do not."""
    path = tmp_path / f"exporters.{suffix}"
    path.write_text(json.dumps(yaml.safe_load(YAML)) if suffix == "json" else YAML)
    file, mine, log = load_exporters(path)
    assert file.exporter == FileExporter("out/telemetry.json")
    assert (mine.exporter.target, mine.exporter.times) == ("there", 3)
    only = ExportCustomizationMode.WHITELIST_SPANS
    assert mine.filter == ExportFilter(only, ["training_loop"])
    assert log.exporter == LoggingExporter()
    assert (file.filter, log.filter) == (None, None)


def test_from_a_list() -> None:
    """Names, mappings and exporters can be mixed; two of one class are two."""
    ready = Mine("here")
    config = ["console", {"name": "file", "options": {"file_path": "a"}}, ready]
    console, file, same = made([*config])
    assert isinstance(console, ConsoleExporter)
    assert isinstance(file, FileExporter)
    assert same is ready
    files = [{"name": "file", "options": {"file_path": name}} for name in "ab"]
    assert made({"exporters": files}) == [FileExporter("a"), FileExporter("b")]


def test_by_class_and_by_name() -> None:
    """Both ways to write a class path work."""
    assert make_exporter("users_module.Mine", {"target": "x"}).target == "x"
    assert make_exporter("users_module:Mine", {"target": "x"}).target == "x"
    assert make_exporter("logging", {"logger": "l", "level": "debug"}).level == logging.DEBUG


def test_from_an_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exporters that an installed package registers are found by name."""
    folder = tmp_path / "theirs-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[stepwell.exporters]\ntheirs = users_module:Mine\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert isinstance(make_exporter("theirs", {"target": "x"}), Mine)
    with pytest.raises(StepwellError, match=r"did you mean 'theirs'\?.*console.*theirs"):
        make_exporter("thiers")


def test_built_in_names_are_entry_points_too() -> None:
    """The entry points in the package metadata are those built in."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    section = text.partition('[project.entry-points."stepwell.exporters"]\n')[2].partition("\n\n")[
        0
    ]
    found = dict(re.findall(r'(\w+) = "(.*)"', section))
    assert found == {k: ":".join(v.rsplit(".", 1)) for k, v in exporter_config.BUILT_IN.items()}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (["fille"], "entry 1: no exporter named 'fille' (did you mean 'file'?). Use one of"),
        (["file", "consol"], "entry 2: no exporter named 'consol' (did you mean 'console'?)"),
        ([{"nam": "file"}], "entry 1: unknown key 'nam' (did you mean 'name'?)"),
        ([{"options": {}}], "entry 1 must have either a name (such as file) or a class_name"),
        ([{"name": "file", "class_name": "a.B"}], "must have either a name"),
        ([{"name": 3}], "must have either a name"),
        ([3], "entry 1 must be a name or a mapping such as {name: file}, got 3"),
        ([{"name": "file", "enabled": "yes"}], "enabled must be true or false, got 'yes'"),
        (
            [{"name": "file", "options": [1]}],
            "(file): options must be a mapping of names to values, got [1]",
        ),
        (
            [{"name": "file", "options": {}, "config": {}}],
            "both options and config, which mean the same",
        ),
        (
            [{"name": "file", "options": {"path": "x"}}],
            "(file): unknown option 'path' (did you mean 'file_path'?). Its options are file_path",
        ),
        ([{"name": "file", "options": {"file_path": 3}}], "(file): file_path must be a path"),
        (
            [{"name": "logging", "options": {"level": "INF"}}],
            "level must be a level of logging, such as 'INFO', got 'INF'",
        ),
        (["users_module.Min"], "users_module has no class Min (did you mean 'Mine'?)"),
        (["nowhere.Mine"], "nowhere cannot be imported: No module named 'nowhere'"),
        (["users_module.Mine"], "missing 1 required positional argument: 'target'"),
        (
            [{"class_name": "users_module.Mine", "options": {"target": "x", "times": 0}}],
            "(users_module.Mine): times is to be 1 or more",
        ),
        (["users_module.made"], "missing 1 required"),
        (["pathlib.Path"], "an exporter must have a method export(records)"),
        (
            [{"name": "file", "export_customization_mode": "whitelist_spans"}],
            "entry 1: span_name_filter must be a list of span names with ALLOW_LIST",
        ),
        ({"exporter": []}, "no list of exporters"),
        (None, "no list of exporters"),
    ],
)
def test_what_is_wrong_is_said(config: Any, said: str) -> None:
    """The entry, the mistake, and what to write instead."""
    with pytest.raises(StepwellError) as refused:
        load_exporters(config)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("missing.yaml", None, "missing.yaml cannot be read: No such file or directory"),
        ("a.yaml", "exporters: [", "a.yaml cannot be parsed: while parsing"),
        ("a.json", "{", "a.json cannot be parsed: Expecting property name"),
        ("a.yaml", "- fille", "a.yaml, entry 1: no exporter named 'fille'"),
        ("a.yaml", "3", "a.yaml, no list of exporters"),
        ("a.yaml", "!!python/object/apply:os.getcwd []", "cannot be parsed"),
    ],
)
def test_a_wrong_file(tmp_path: Path, name: str, text: str | None, said: str) -> None:
    """The file is named too."""
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(StepwellError) as refused:
        load_exporters(tmp_path / name)
    assert said in str(refused.value)


def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str) -> list[str]:
    """The exporters of a run that is started with this in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPWELL_EXPORTERS", setting)
    with stepwell.init("test", dir=tmp_path / "runs") as run:
        return [found.name for found in run.exporters]


def test_names_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is started gets the exporters that are named there."""
    names = started(tmp_path, monkeypatch, " logging, file ,")
    assert names == ["logging", "file training_telemetry.json"]
    assert (tmp_path / "training_telemetry.json").exists()


def test_a_file_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or those of a configuration file."""
    (tmp_path / "e.yaml").write_text("exporters: [{name: file, options: {file_path: x.json}}]")
    assert started(tmp_path, monkeypatch, "e.yaml") == ["file x.json"]


@pytest.mark.parametrize(
    ("setting", "names", "said"),
    [
        (
            "fille,logging",
            ["logging"],
            "entry 1: no exporter named 'fille' (did you mean 'file'?)",
        ),
        ("nowhere.yaml", [], "nowhere.yaml cannot be read"),
        ("users_module.Mine", [], "missing 1 required"),
    ],
)
def test_a_mistake_in_the_environment_breaks_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    setting: str,
    names: list[str],
    said: str,
) -> None:
    """It is a warning, and what is right is used."""
    monkeypatch.setenv("STEPWELL_STRICT", "1")
    assert started(tmp_path, monkeypatch, setting) == names
    (warning,) = caplog.messages
    assert warning.startswith("STEPWELL_EXPORTERS: ")
    assert said in warning
    assert warning.endswith("Training continues without this exporter.")


def test_nothing_is_exported_when_recording_is_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """STEPWELL_MODE=off switches exporters off too."""
    monkeypatch.setenv("STEPWELL_MODE", "off")
    assert started(tmp_path, monkeypatch, "file") == []
    assert not (tmp_path / "training_telemetry.json").exists()
