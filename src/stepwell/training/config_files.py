"""Overrides of a configuration from a YAML or JSON file, with errors that name file, line and field."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stepwell.journal.errors import StepwellError
from stepwell.training.merging import examine_override
from stepwell.training.values import refuse

MAX_BYTES = 1 << 20
"""No configuration that a person wrote is larger."""

Lines = dict[tuple[str, ...], int]
"""The line of each field; a field inside another has the names of both."""


def read_overrides(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The fields in a YAML or JSON file, checked. StepwellError names the file, the line and the field.

    The file holds fields of the application and of training, those of training also in ``telemetry_config``.
    """
    file = Path(path).expanduser()
    text = _read(file)
    values, lines = _parse_json(file, text) if file.suffix == ".json" else _parse_yaml(file, text)
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise StepwellError(f"{file}: write fields, such as session_tag: night")
    _, problems = examine_override(values)
    refuse(
        [f"line {_line(lines, where)}: {'.'.join(where)} {text}" for where, text in problems],
        str(file),
    )
    return values


def _read(file: Path) -> str:
    if file.suffix not in (".yaml", ".yml", ".json"):
        raise StepwellError(f"{file}: the name must end in .yaml, .yml or .json")
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise StepwellError(f"{file} cannot be read: {error.strerror or error}") from None
    if len(data) > MAX_BYTES:
        raise StepwellError(f"{file} has more than {MAX_BYTES} bytes, too many for a configuration")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise StepwellError(f"{file} is not a text in UTF-8") from None


def _line(lines: Lines, where: tuple[str, ...]) -> int:
    """The line of a field, or of what it is in."""
    while where and where not in lines:
        where = where[:-1]
    return lines.get(where, 1)


# YAML


def _parse_yaml(file: Path, text: str) -> tuple[Any, Lines]:
    try:
        import yaml
    except ImportError:
        raise StepwellError(f"{file}: reading YAML needs pyyaml: pip install pyyaml") from None

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Reads 6e9 as a number, which YAML 1.1 takes for a text."""

    number = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+.0123456789"))
    loader = Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None, {}
        lines = _yaml_lines(file, node, ())
        return loader.construct_document(node), lines
    except StepwellError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise StepwellError(
            f"{file}, line {mark.line + 1 if mark else 1}: {error.problem or error.context}"
        ) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise StepwellError(f"{file}: {error}") from None
    finally:
        loader.dispose()


def _yaml_lines(file: Path, node: Any, at: tuple[str, ...]) -> Lines:
    """The lines of the fields of a mapping, and of the mapping among them."""
    lines: Lines = {}
    if not isinstance(node.value, list):
        return lines
    for pair in node.value:
        if not isinstance(pair, tuple):
            continue
        key, value = pair
        where = (*at, str(key.value))
        line = key.start_mark.line + 1
        if where in lines:
            raise StepwellError(_twice(file, line, where, lines))
        lines[where] = line
        if len(at) == 0:
            lines.update(_yaml_lines(file, value, where))
    return lines


def _twice(file: Path, line: int, where: tuple[str, ...], lines: Lines) -> str:
    name = ".".join(where)
    return f"{file}, line {line}: {name} is written twice, first in line {lines[where]}"


# JSON


def _parse_json(file: Path, text: str) -> tuple[Any, Lines]:
    if not text.strip():
        return None, {}
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise StepwellError(f"{file}, line {error.lineno}: {error.msg}") from None
    except (RecursionError, ValueError) as error:
        raise StepwellError(f"{file}: {error}") from None
    lines: Lines = {}
    for where, line in _json_keys(text):
        if where in lines:
            raise StepwellError(_twice(file, line, where, lines))
        lines[where] = line
    return values, lines


def _json_keys(text: str) -> Iterator[tuple[tuple[str, ...], int]]:
    """Each key of a valid JSON text with those around it, and its line; keys inside lists are left out."""
    path: list[str | None] = []
    key: str | None = None
    for found in re.finditer(r'("(?:[^"\\]|\\.)*")(\s*:)?|[\[\]{}]', text):
        token = found[0]
        if found[2]:
            key = json.loads(found[1])
            around = [*path[1:], key]
            if None not in around:
                yield tuple(map(str, around)), text.count("\n", 0, found.start()) + 1
        elif token in "[{":
            path.append(key if token == "{" or not path else None)
            key = None
        elif token in "]}":
            path.pop()
