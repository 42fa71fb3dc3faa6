"""Items of plain kinds: texts, dicts, parameters and files, and what every item has."""

from __future__ import annotations

import io
import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import Run
from stepwell.loggers.items.converters import file_name, flattened
from tests.loggers.items.reading import logged
from tests.loggers.items.things import Thing
from tests.loggers.logged import Own, content

torch = pytest.importorskip("torch")


def test_an_item_knows_its_place(recorded: Run, logger: Own) -> None:
    """Step and epoch of the run, or the given step; and the loggers that get it."""
    logger.log("a", "first", kind="text")
    recorded.set_step(4, epoch=2)
    logger.log("b", "second", kind="text")
    logger.log("c", "third", kind="text", step=9)
    found = [(i.name, i.step, i.epoch, i.audience) for i in logged(recorded)]
    assert found == [
        ("first", None, None, (1,)),
        ("second", 4, 2, (1,)),
        ("third", 9, 2, (1,)),
    ]


def test_items_are_no_events_and_files_are_artifacts(
    recorded: Run, logger: Own, tmp_path: Path
) -> None:
    """For readers of the run."""
    (tmp_path / "out" / "sub").mkdir(parents=True)
    (tmp_path / "out" / "sub" / "a.txt").write_text("a")
    logger.log(tmp_path / "out", "folder", kind="artifact")
    logger.log(b"data", "bytes.bin", kind="artifact")
    logger.log("words", "note", kind="text")
    recorded.finish()
    run = stepwell.open_run(recorded.path)
    assert run.events().collect().height == 0
    table = run.artifacts().collect()
    assert table["name"].to_list() == ["folder/sub/a.txt", "bytes.bin"]
    assert table["size"].to_list() == [1, 4]
    for sha256 in table["sha256"]:
        assert (recorded.path / "artifacts" / sha256).is_file()


def test_further_arguments_are_kept(recorded: Run, logger: Own) -> None:
    """Such as the context that a provenance document asks for; what is ours wins."""
    logger.log("x", "note", kind="text", context="validation", audience="all", content="spoon")
    (found,) = logged(recorded)
    assert found.attributes == {"context": "validation"}
    assert (found.kind, found.audience, found.content) == ("text", (1,), None)


# Plain kinds

DICTS: list[tuple[Any, Any]] = [
    ({"a": 1, "b": [1, 2]}, {"a": 1, "b": [1, 2]}),
    ({}, {}),
    ({"nan": math.nan}, {"nan": None}),
    ({"array": np.arange(3), "p": Path("x/y")}, {"array": [0, 1, 2], "p": "x/y"}),
    ({1: "one", None: "none"}, {"1": "one", "None": "none"}),
    ([{"a": 1}], [{"a": 1}]),
]


@pytest.mark.parametrize(("item", "found"), DICTS)
@pytest.mark.parametrize("repeat", [1, 2000])
def test_dicts_are_strict_json(
    recorded: Run, logger: Own, item: Any, found: Any, repeat: int
) -> None:
    """Small ones are values, large ones files with all that was in them."""
    big = {"rows": [item] * repeat} if repeat > 1 else item
    logger.log(big, "things/config", kind="dict")
    (one,) = logged(recorded)
    assert one.file == "things/config.json"
    if repeat == 1:
        assert one.value == found
    else:
        assert one.media == "application/json"
        rows = json.loads(content(recorded, one), parse_constant=pytest.fail)["rows"]
        assert len(rows) >= 1000
        assert rows[0] == found


@pytest.mark.parametrize(
    ("identifier", "file"),
    [
        ("config", "config.json"),
        ("config.json", "config.json"),
        ("config.yaml", "config.yaml"),
        ("a/b", "a/b.json"),
        ("../../etc/passwd", "etc/passwd.json"),
        ("/abs", "abs.json"),
        ("v1.2", "v1.2.json"),
        ("..", "item.json"),
        ("C:\\x\\y", "C:/x/y.json"),
        ("new\nline", "new_line.json"),
    ],
)
def test_names_of_files(identifier: str, file: str) -> None:
    """They stay inside, and have a suffix once."""
    assert file_name(identifier, ".json", (".json", ".yaml", ".yml")) == file


@pytest.mark.parametrize("length", [0, 10, 8192, 8193, 1_000_000])
def test_texts(recorded: Run, logger: Own, length: int) -> None:
    """Whole, as a value while they are short."""
    words = "ü" * (length // 2)
    logger.log(words, "note", kind="text")
    (one,) = logged(recorded)
    assert one.file == "note.txt"
    if length <= 8193:
        assert (one.value, one.content) == (words, None)
    else:
        assert content(recorded, one).decode() == words
        assert (one.media, one.size) == ("text/plain", length)


def test_what_is_no_text_is_taken_as_it_prints(recorded: Run, logger: Own) -> None:
    """Numbers, objects."""
    logger.log(5, "number", kind="text")
    assert [i.value for i in logged(recorded)] == ["5"]


PARAMS: list[tuple[Any, dict[str, Any]]] = [
    (0.5, {"p": 0.5}),
    ("sgd", {"p": "sgd"}),
    (None, {"p": None}),
    ({"a": {"b": 1}}, {"p.a.b": 1}),
    (torch.device("cpu"), {"p": "cpu"}),
    (torch.float32, {"p": "torch.float32"}),
    (torch.tensor(2.0), {"p": 2.0}),
    (math.inf, {"p": "inf"}),
]


@pytest.mark.parametrize(("item", "found"), PARAMS)
def test_params(recorded: Run, logger: Own, item: Any, found: dict[str, Any]) -> None:
    """As JSON has them, else as they print."""
    logger.log(item, "p", kind="param")
    assert {i.name: i.value for i in logged(recorded, "param")} == found


def test_a_param_may_be_long(recorded: Run, logger: Own) -> None:
    """It is kept whole then, in a file."""
    layers = list(range(900)) * 1
    logger.log({"layers": [f"layer {i} " * 5 for i in layers]}, "p", kind="param")
    (one,) = logged(recorded)
    assert len(json.loads(content(recorded, one))) == 900


def test_a_param_that_is_a_secret_is_masked(recorded: Run, logger: Own) -> None:
    """By its name."""
    logger.log("abc", "wandb_api_key", kind="param")
    assert [i.value for i in logged(recorded)] == ["***"]


def test_nested_params_end_somewhere() -> None:
    """A dict in itself does not."""
    cycle: dict[str, Any] = {}
    cycle["self"] = cycle
    assert len(flattened(cycle)) == 1


# Artifacts


def test_artifacts_of_files_and_folders(recorded: Run, logger: Own, tmp_path: Path) -> None:
    """Paths as texts or as Path, relative ones too; each file of a folder is one item."""
    (tmp_path / "a.bin").write_bytes(b"a")
    (tmp_path / "d" / "e").mkdir(parents=True)
    (tmp_path / "d" / "x.txt").write_text("x")
    (tmp_path / "d" / "e" / "y.txt").write_text("y")
    logger.log(str(tmp_path / "a.bin"), "weights", kind="artifact")
    logger.log(tmp_path / "d", "data", kind="artifact")
    (tmp_path / "a.bin").write_bytes(b"changed afterwards")
    found = [(i.name, i.file, content(recorded, i)) for i in logged(recorded)]
    assert found == [
        ("weights", "a.bin", b"a"),
        ("data", "e/y.txt", b"y"),
        ("data", "x.txt", b"x"),
    ]


def test_artifacts_of_objects(recorded: Run, logger: Own) -> None:
    """Bytes as they are, structures as JSON, tensors by torch.save, the rest pickled."""
    logger.log(b"raw", "raw.dat", kind="artifact")
    logger.log({"a": [1]}, "structure", kind="artifact")
    logger.log(torch.ones(2), "tensor", kind="artifact")
    logger.log(Thing(), "thing", kind="artifact")
    raw, structure, tensor, thing = logged(recorded)
    assert [i.file for i in (raw, structure, tensor, thing)] == [
        "raw.dat",
        "structure.json",
        "tensor.pt",
        "thing.pkl",
    ]
    assert content(recorded, raw) == b"raw"
    assert json.loads(content(recorded, structure)) == {"a": [1]}
    assert torch.load(io.BytesIO(content(recorded, tensor)), weights_only=True).sum() == 2
    assert pickle.loads(content(recorded, thing)).value == 5
