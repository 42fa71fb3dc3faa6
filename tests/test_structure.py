"""The structure of the source does not get worse; `python tools/structure.py` prints the figures."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tools.structure import (
    Module,
    journal_imports,
    private_uses,
    read_modules,
    repeated_classes,
    small_modules,
)

MOST_PRIVATE_USES = 39
"""Where the hot path and framework integrations reach into another module. The number may only fall."""

JOURNAL = {
    "stepwell.journal",
    "stepwell.journal.archive",
    "stepwell.journal.cap",
    "stepwell.journal.decorator",
    "stepwell.journal.document",
    "stepwell.journal.format",
    "stepwell.journal.journal",
    "stepwell.journal.lane",
    "stepwell.journal.metrics",
    "stepwell.journal.names",
    "stepwell.journal.process_writer",
    "stepwell.journal.pump",
    "stepwell.journal.recovery",
    "stepwell.journal.scalars",
    "stepwell.journal.seal",
    "stepwell.journal.segment",
    "stepwell.journal.span",
    "stepwell.journal.span_handle",
    "stepwell.journal.spool",
    "stepwell.journal.state",
    "stepwell.journal.tail",
    "stepwell.journal.task_spans",
}
"""Modules of the journal that other packages may import."""


@cache
def modules() -> dict[str, Module]:
    return read_modules()


def test_one_class_name_is_one_class() -> None:
    assert repeated_classes(modules()) == {}


def test_private_names_are_used_at_home() -> None:
    uses = private_uses(modules())
    assert len(uses) <= MOST_PRIVATE_USES, "\n".join(uses)


def test_small_modules_are_part_of_their_importer() -> None:
    assert small_modules(modules()) == {}


def test_other_packages_import_only_what_is_the_journals() -> None:
    assert journal_imports(modules()).keys() - JOURNAL == set()


def test_the_checks_can_fail(tmp_path: Path) -> None:
    """A package with one of each fault."""
    source = tmp_path / "stepwell"
    for name, text in {
        "__init__": "",
        "a": "class Twice: ...\n_secret = 1\n",
        "b": "from stepwell import a\nclass Twice: ...\nprint(a._secret)\n",
        "journal/__init__": "",
        "journal/lane": "x = 1\n",
        "c": "from stepwell.journal.lane import x\n",
    }.items():
        path = source / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    made = read_modules(source)
    assert repeated_classes(made) == {"Twice": ["stepwell.a", "stepwell.b"]}
    assert private_uses(made) == ["stepwell.b:3 _secret"]
    assert small_modules(made) == {
        "stepwell.a": "stepwell.b",
        "stepwell.journal.lane": "stepwell.c",
    }
    assert journal_imports(made) == {"stepwell.journal.lane": 1}
