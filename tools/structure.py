"""Print figures about the structure of the source: `python tools/structure.py`.

`tests/test_structure.py` uses the same functions to keep them from getting worse.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "stepwell"
PACKAGE = "stepwell"
SMALL = 60
"""A module under this many lines belongs in its importer, if there is only one."""


@dataclass(frozen=True)
class Module:
    """One source file."""

    name: str
    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def part(self) -> str:
        """The package or module right below `stepwell`."""
        return [*self.name.split("."), ""][1]

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @cached_property
    def code_lines(self) -> int:
        """Lines without blank ones, comments and docstrings."""
        lines: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type not in _NO_CODE:
                lines.update(range(token.start[0], token.end[0] + 1))
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                lines.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
        return len(lines)

    @cached_property
    def classes(self) -> list[str]:
        """Names of classes at the top level."""
        return [node.name for node in self.tree.body if isinstance(node, ast.ClassDef)]

    @cached_property
    def private_names(self) -> set[str]:
        """Names with one underscore that this module defines, as globals, methods or attributes."""
        names: set[str] = set()
        for node in ast.walk(self.tree):
            match node:
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                    names.add(name)
                case ast.AsyncFunctionDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                    names.add(name)
                case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
                    names.add(name)
                case ast.Constant(value=str(name)):  # __slots__
                    names.add(name)
        return {name for name in names if _is_private(name)}


_NO_CODE = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)


_OF_OTHERS = {
    *("_", "_replace", "_make", "_fields", "_asdict", "_exit"),
    *("_handle", "_params", "_compiled_call_impl", "_combined_loader", "_logger_connector"),
}
"""Names of the standard library, PyTorch and Lightning."""


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in _OF_OTHERS


def read_modules(source: Path = SOURCE) -> dict[str, Module]:
    """Return all modules of the package by their dotted names."""
    modules = {}
    for path in sorted(source.rglob("*.py")):
        name = ".".join(path.relative_to(source.parent).with_suffix("").parts)
        name = name.removesuffix(".__init__")
        modules[name] = Module(name, path, path.read_text(encoding="utf-8"))
    return modules


def imports(module: Module, modules: dict[str, Module]) -> Iterator[tuple[str, str]]:
    """Yield the modules of the package that a module imports, each with the imported name."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield (whole, "") if whole in modules else (node.module or "", alias.name)


def importers(modules: dict[str, Module]) -> dict[str, set[str]]:
    """Return which modules import each module."""
    result: dict[str, set[str]] = defaultdict(set)
    for module in modules.values():
        for target, _ in imports(module, modules):
            if target != module.name:
                result[target].add(module.name)
    return result


def repeated_classes(modules: dict[str, Module]) -> dict[str, list[str]]:
    """Return class names that more than one module defines. `compat` repeats other libraries' names."""
    places: dict[str, list[str]] = defaultdict(list)
    for module in modules.values():
        if module.part != "compat":
            for name in module.classes:
                places[name].append(module.name)
    return {name: found for name, found in places.items() if len(found) > 1}


def small_modules(modules: dict[str, Module]) -> dict[str, str]:
    """Return modules under `SMALL` lines that one other module imports, with that module."""
    users = importers(modules)
    return {
        name: next(iter(users[name]))
        for name, module in modules.items()
        if len(users[name]) == 1 and module.lines < SMALL and not module.is_package
    }


def private_uses(modules: dict[str, Module]) -> list[str]:
    """Return uses of names with an underscore that only another module defines.

    `_core` and `journal` are left out: there, speed asks for it.
    """
    defined = set().union(*(module.private_names for module in modules.values()))
    uses = []
    for module in modules.values():
        if module.part in ("_core", "journal"):
            continue
        for node in ast.walk(module.tree):
            for name in _foreign_names(node):
                if _is_private(name) and name in defined and name not in module.private_names:
                    uses.append(f"{module.name}:{getattr(node, 'lineno', 0)} {name}")
    return uses


def _foreign_names(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Attribute(value=ast.Name(id=base), attr=name) if base not in ("self", "cls"):
            yield name
        case ast.Attribute(value=ast.Attribute() | ast.Call(), attr=name):
            yield name
        case ast.ImportFrom(module=str(source), names=names) if source.startswith(PACKAGE):
            yield from (alias.name for alias in names)


def journal_imports(modules: dict[str, Module]) -> dict[str, int]:
    """Return the modules of `journal` that other packages import, with the number of importers."""
    return {
        target: count
        for target, names in sorted(importers(modules).items())
        if target.startswith(f"{PACKAGE}.journal")
        and (count := sum(modules[name].part != "journal" for name in names))
    }


def main() -> None:
    """Print all figures."""
    modules = read_modules()
    users = importers(modules)
    single = [name for name in modules if len(users[name]) == 1]
    parts: dict[str, list[Module]] = defaultdict(list)
    for module in modules.values():
        parts[module.part or "(top)"].append(module)
    print(f"{'':14}{'files':>7}{'lines':>9}{'code':>9}{'classes':>9}")
    for part, members in [*sorted(parts.items()), ("all", list(modules.values()))]:
        print(
            f"{part:14}{len(members):7}{sum(m.lines for m in members):9,}"
            f"{sum(m.code_lines for m in members):9,}{sum(len(m.classes) for m in members):9}"
        )
    print(f"\nmodules with one importer: {len(single)}")
    print(f"imports of journal from outside: {sum(journal_imports(modules).values())}")
    _print_list("class names defined twice", repeated_classes(modules).items())
    _print_list(f"modules under {SMALL} lines with one importer", small_modules(modules).items())
    _print_list("uses of another module's private names", private_uses(modules))


def _print_list(title: str, rows: object) -> None:
    items = list(rows)  # type: ignore[call-overload]
    print(f"\n{title}: {len(items)}")
    for item in items:
        print("  ", item if isinstance(item, str) else f"{item[0]}: {item[1]}")


if __name__ == "__main__":
    main()
