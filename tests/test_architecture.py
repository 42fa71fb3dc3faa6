"""Imports point one way, and what records stays light."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "stepwell"

TOP = "stepwell"
"""In the tables: the package's own `__init__`, the public surface."""

MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "_core": (),
    "vocabulary": (),
    "journal": ("_core",),
    "follower": ("journal",),
    "telemetry": ("follower", "vocabulary"),
    "training": ("telemetry",),
    "annotations": ("telemetry",),
    "diagnostics": ("telemetry",),
    "loggers": ("telemetry",),
    "exporters": ("telemetry",),
    "integrations": ("training", "annotations", "diagnostics", "loggers", "exporters"),
    "compat": ("integrations",),
    "importing": ("telemetry",),
    "reading": ("follower",),
    "analysis": ("reading", "vocabulary"),
    "dashboard": ("analysis", "exporters", "loggers"),
    "cli": (
        "dashboard",
        "analysis",
        "exporters",
        "loggers",
        "telemetry",
        "importing",
        "testing",
        TOP,
    ),
    "testing": ("telemetry", "reading", TOP),
    "__main__": ("cli",),
    "ai": ("annotations",),
    TOP: ("telemetry",),
}
"""Each part with those right below it; what these may import, it may import too."""

MAY_IMPORT_LAZILY: dict[str, tuple[str, ...]] = {
    TOP: ("reading", "annotations", "integrations", "loggers"),
    "exporters": ("reading",),
    "loggers": ("reading", "diagnostics"),
    "telemetry": ("reading",),
    "reading": ("dashboard",),
}
"""More for some of them, but only inside functions or for type checkers."""

RECORDING = (
    *("_core", "vocabulary", "journal", "follower", "telemetry", "training", "annotations", "ai"),
    TOP,
)
"""The parts that every training process imports."""

LATE = {"asyncio"}
"""Of the standard library, but too slow to import in every training process."""

NEVER_WHEN_RECORDING = {"numpy", "polars", "pandas", "pyarrow"}
"""What readers need; a process that only records pays for none of it."""

When = Literal["eager", "lazy", "typing"]


@dataclass(frozen=True)
class Import:
    """One imported name, and when the import happens."""

    target: str
    line: int
    when: When

    @property
    def package(self) -> str:
        return self.target.partition(".")[0]

    @property
    def part(self) -> str | None:
        """The part of stepwell that is imported; None for anything else."""
        package, *rest = self.target.split(".")
        if package != "stepwell":
            return None
        return rest[0] if rest and rest[0] in MAY_IMPORT else TOP


def imports_of(source: str, package: str) -> Iterator[Import]:
    """The imports in a module's source; `package` is what its relative imports start from."""
    yield from _walk(ast.parse(source), package, "eager")


def _walk(
    node: ast.AST, package: str, when: Literal["eager", "lazy", "typing"]
) -> Iterator[Import]:
    for target in _targets(node, package):
        yield Import(target, node.lineno, when)
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        for child in node.body:
            yield from _walk(child, package, "typing")
        for child in node.orelse:
            yield from _walk(child, package, when)
        return
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and when == "eager":
        when = "lazy"
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, package, when)


def _targets(node: ast.AST, package: str) -> list[str]:
    """The full names that one node imports, by statement or by `import_module("…")`."""
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=module, names=names, level=level):
            base = _absolute("." * level + (module or ""), package)
            return [f"{base}.{alias.name}" for alias in names]
        case ast.Call(
            func=ast.Name(id=called) | ast.Attribute(attr=called),
            args=[ast.Constant(value=str(name)), *_],
        ) if called in ("import_module", "__import__"):
            return [_absolute(name, package)]
    return []


def _absolute(name: str, package: str) -> str:
    rest = name.lstrip(".")
    up = len(name) - len(rest)
    if not up:
        return rest
    start = package.split(".")
    return ".".join([*start[: len(start) - up + 1], *([rest] if rest else [])])


def allowed_below(part: str) -> set[str]:
    """All that a part may import: itself, what is right below it, and what is below that."""
    found = {part}
    for lower in MAY_IMPORT[part]:
        found |= allowed_below(lower)
    return found


def wrong_directions(part: str, imports: Iterator[Import]) -> list[str]:
    """Imports that the layers do not allow, as lines for a failed test."""
    allowed = allowed_below(part)
    allowed_lazily = allowed.union(*map(allowed_below, MAY_IMPORT_LAZILY.get(part, ())))
    return [
        f"line {found.line}: {part} imports {found.target}"
        for found in imports
        if found.part is not None
        and found.part not in (allowed if found.when == "eager" else allowed_lazily)
    ]


def heavy_imports(imports: Iterator[Import]) -> list[str]:
    """Imports that a recording process must not have, as lines for a failed test."""
    light = (sys.stdlib_module_names | {"stepwell"}) - LATE
    return [
        f"line {found.line}: {found.target} ({found.when})"
        for found in imports
        if (found.when == "eager" and found.package not in light)
        or (found.when == "lazy" and found.package in NEVER_WHEN_RECORDING)
    ]


def part_of(path: Path) -> str:
    """The part of stepwell that a source file belongs to."""
    first = path.relative_to(SOURCE).parts[0]
    return TOP if first == "__init__.py" else first.removesuffix(".py")


@cache
def modules() -> list[tuple[Path, list[Import]]]:
    """Every source file with its imports."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        package = ".".join(path.relative_to(SOURCE.parent).parent.parts)
        found.append((path, list(imports_of(path.read_text(encoding="utf-8"), package))))
    return found


def test_every_part_has_its_place_in_the_table() -> None:
    """A new package or top-level module says what it may import before it is used."""
    parts = {part_of(path) for path, _ in modules()}
    assert TOP in parts
    assert parts - MAY_IMPORT.keys() == set()


def test_imports_point_one_way() -> None:
    """No module imports a part that is not below its own, not even inside a function."""
    wrong = [
        f"{path.relative_to(SOURCE)}, {line}"
        for path, imports in modules()
        for line in wrong_directions(part_of(path), iter(imports))
    ]
    assert wrong == []


def test_hooks_of_pytorch_are_registered_in_one_place() -> None:
    """PyTorch iterates over the step hooks themselves, and fails if one comes or goes meanwhile.

    ``diagnostics/hooks.py`` knows when they may. Of forward hooks it makes a copy first.
    """
    found = {
        (str(path.relative_to(SOURCE)), name)
        for path, _ in modules()
        if "register_" in (text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        for name in _names_in(node)
        if re.fullmatch(r"register_\w*hook", name)
    }
    assert found == {
        ("diagnostics/activations.py", "register_forward_hook"),
        ("integrations/torch/hooks.py", "register_forward_hook"),
        ("integrations/torch/hooks.py", "register_forward_pre_hook"),
        ("diagnostics/gradients.py", "register_step_pre_hook"),
    }


def _names_in(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name) | ast.alias(name=name):
            yield name
        case ast.Constant(value=str(name)):
            yield name


def test_what_records_imports_the_standard_library_alone() -> None:
    """zstandard, msgspec and asyncio are imported when first needed, a reader's libraries never."""
    heavy = [
        f"{path.relative_to(SOURCE)}, {line}"
        for path, imports in modules()
        if part_of(path) in RECORDING
        for line in heavy_imports(iter(imports))
    ]
    assert heavy == []


@pytest.mark.parametrize(
    "source",
    [
        "import stepwell",
        "import stepwell.cli.app",
        "from stepwell import cli",
        "from stepwell import init",
        "from stepwell.cli import main",
        "from ..cli import main",
        "from .. import cli",
        "def f():\n    from stepwell.cli import main",
        "class A:\n    from stepwell.cli import main",
        "try:\n    import stepwell.cli\nexcept ImportError:\n    pass",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from stepwell.cli import main",
        "import importlib\nimportlib.import_module('stepwell.cli')",
        "from importlib import import_module\nimport_module('..cli', __package__)",
    ],
)
def test_an_upward_import_is_seen_however_it_is_spelt(source: str) -> None:
    """Neither a relative path nor a function body, a class body or a string hides an import."""
    assert len(wrong_directions("journal", imports_of(source, "stepwell.journal"))) == 1


@pytest.mark.parametrize(
    ("part", "source"),
    [
        ("journal", "import os\nfrom . import lane\nfrom stepwell.journal.lane import Lane"),
        ("telemetry", "from ..journal.lane import Lane"),
        ("compat", "from stepwell.journal import lane\nfrom stepwell import loggers"),
        ("cli", "import stepwell\nfrom stepwell import init, open_run, telemetry, reading"),
        (TOP, "from stepwell.telemetry import Run\ndef f():\n    from stepwell.reading import Run"),
    ],
)
def test_a_downward_import_is_fine(part: str, source: str) -> None:
    """A part may use itself and everything below it."""
    package = "stepwell" if part == TOP else f"stepwell.{part}"
    assert wrong_directions(part, imports_of(source, package)) == []


def test_the_public_surface_may_reach_for_the_readers_only_lazily() -> None:
    """An eager import of `reading` in the top-level package is refused."""
    assert wrong_directions(TOP, imports_of("from .reading import open_run", "stepwell")) == [
        "line 1: stepwell imports stepwell.reading.open_run"
    ]


def test_the_table_of_words_imports_the_standard_library_alone() -> None:
    """Whoever reads it pulls in nothing else."""
    words = SOURCE / "vocabulary.py"
    imported = {found.package for path, imports in modules() if path == words for found in imports}
    assert imported <= sys.stdlib_module_names


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import json, mmap\nfrom collections.abc import Iterator", []),
        ("import zstandard", ["line 1: zstandard (eager)"]),
        ("if True:\n    import asyncio.events", ["line 2: asyncio.events (eager)"]),
        ("def f():\n    import zstandard, asyncio", []),
        ("def f():\n    import numpy as np", ["line 2: numpy (lazy)"]),
        ("import typing\nif typing.TYPE_CHECKING:\n    import numpy, msgspec", []),
        (
            "if TYPE_CHECKING:\n    import numpy\nelse:\n    import polars",
            ["line 4: polars (eager)"],
        ),
    ],
)
def test_a_heavy_import_is_seen_where_it_costs(source: str, found: list[str]) -> None:
    """Code that runs at import may use only the standard library; later code may use more."""
    assert heavy_imports(imports_of(source, "stepwell.journal")) == found
