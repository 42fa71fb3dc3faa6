"""The resolved configuration of a job: application, training and overrides merged into one.

Overrides are dicts, or YAML or JSON files; errors name file, line and field.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepwell._core.checks import FLAG, refuse
from stepwell._core.errors import StepwellError, report_misuse
from stepwell._core.values import shown
from stepwell.training.config import (
    ApplicationConfig,
    ApplicationFields,
    TrainingFields,
    TrainingTelemetryConfig,
)
from stepwell.training.settings import (
    OR_FN,
    Setting,
    as_json,
    changed_fields,
    check,
    checked,
    is_different,
    setting,
    settings_of,
)

NESTED = "telemetry_config"
METADATA_FIELD = "custom_metadata"

Fields = dict[str, Any]
Problem = tuple[tuple[str, ...], str]
"""The path of a field in an override, and the text of the problem with it."""


@checked
@dataclass(frozen=True, kw_only=True)
class ResolvedConfig(ApplicationFields, TrainingFields):
    """All fields of a job's configuration in one object. Functions are still called at each access."""

    has_telemetry_config: bool = setting(
        False, FLAG, "whether training has been configured, here or later"
    )

    @property
    def counts_are_functions(self) -> bool:
        """Whether the sizes for counting are functions, which are called in each iteration."""
        sizes = (
            self.global_batch_size_or_fn,
            self.seq_length_or_fn,
            self.flops_per_sample_or_fn,
            self.is_log_throughput_enabled_or_fn,
        )
        return any(map(callable, sizes))

    def ask(self, field: str) -> Any:
        """Return a value, None if the user's function for it fails."""
        try:
            return getattr(self, field)
        except StepwellError as error:
            report_misuse(f"config {field}", str(error))
            return None

    def to_dict(self) -> dict[str, Any]:
        """Return all fields with a value as JSON values. Functions are called."""
        return as_json(self, _all_settings())


def merged(
    base: ApplicationConfig | TrainingTelemetryConfig | None = None,
    training: TrainingTelemetryConfig | None = None,
    overrides: Iterable[Mapping[str, Any]] = (),
) -> ResolvedConfig:
    """Return one configuration from all. Later overrides win.

    Raise StepwellError if the two configurations set a field to different values; defaults do not count.
    """
    configs = _configs(base, training)
    fields = _combined(configs)
    is_set = any(isinstance(config, TrainingTelemetryConfig) for config in configs)
    for changes in overrides:
        change = read_override(changes)
        _overlay(fields, change.application)
        _overlay(fields, change.training)
        is_set = is_set or change.is_about_training
    return ResolvedConfig(**fields, has_telemetry_config=is_set)


def _configs(base: Any, training: Any) -> list[ApplicationConfig | TrainingTelemetryConfig]:
    """Return all given configurations, including the nested one, without duplicates."""
    configs: list[Any] = []
    inner = base.telemetry_config if isinstance(base, ApplicationConfig) else None
    for config in (base, inner, training):
        if config is not None and not any(config is other for other in configs):
            configs.append(config)
    for config in configs:
        if not isinstance(config, (ApplicationConfig, TrainingTelemetryConfig)):
            raise StepwellError(
                "config must be an ApplicationConfig or a TrainingTelemetryConfig, "
                f"got {shown(config)}"
            )
    return configs


def _combined(configs: list[ApplicationConfig | TrainingTelemetryConfig]) -> Fields:
    fields: Fields = {}
    problems: list[str] = []
    for config in configs:
        for name, value in changed_fields(config).items():
            if name == NESTED:
                continue
            if name == METADATA_FIELD:
                problems += _add_metadata(fields, value)
            elif name in fields and is_different(fields[name], value):
                problems.append(_conflict(name, fields[name], value))
            else:
                fields[name] = value
    refuse(problems, "conflicting configurations")
    return fields


def _add_metadata(fields: Fields, added: Mapping[str, Any]) -> list[str]:
    """Merge the metadata of both. Return a problem for each key with two different values."""
    before = fields.get(METADATA_FIELD, {})
    fields[METADATA_FIELD] = {**before, **added}
    return [
        _conflict(f"{METADATA_FIELD}[{key!r}]", before[key], value)
        for key, value in added.items()
        if key in before and is_different(before[key], value)
    ]


def _conflict(name: str, first: Any, second: Any) -> str:
    return f"{name} is {shown(first)} in one and {shown(second)} in the other: set it in one only"


# Overrides


@dataclass(frozen=True)
class Override:
    """Changed fields, by their names in the configuration classes. None resets a field."""

    application: Fields
    training: Fields
    is_about_training: bool


def read_override(changes: Mapping[str, Any]) -> Override:
    """Return the fields that an override changes. Raise one StepwellError for all unknown or wrong ones.

    Fields of training can be at the top level or in ``telemetry_config``. The suffix ``_or_fn`` is optional.
    """
    override, problems = examine_override(changes)
    refuse([f"{'.'.join(path)} {text}".strip() for path, text in problems], "override")
    return override


def examine_override(changes: Mapping[str, Any]) -> tuple[Override, list[Problem]]:
    """Return the fields that an override changes, and the problems in it."""
    if not isinstance(changes, Mapping):
        return Override({}, {}, False), [
            ((), f"must be a dict, such as {{'session_tag': 'night'}}, got {shown(changes)}")
        ]
    outer = {name: value for name, value in changes.items() if name != NESTED}
    top, problems = _examine(outer, ())
    inner: Fields = {}
    nested = changes.get(NESTED)
    if isinstance(nested, TrainingTelemetryConfig):
        inner = changed_fields(nested)
    elif isinstance(nested, Mapping):
        inner, more = _examine(nested, (NESTED,))
        problems += more
    elif nested is not None:
        problems.append(((NESTED,), f"must be a dict of its fields, got {shown(nested)}"))
    problems += _given_twice(top, inner)
    own = settings_of(TrainingFields)
    training = {**{name: top[name] for name in top if name in own}, **inner}
    application = {name: top[name] for name in top if name not in own}
    return Override(application, training, bool(training) or nested is not None), problems


def _examine(changes: Mapping[Any, Any], at: tuple[str, ...]) -> tuple[Fields, list[Problem]]:
    settings = _all_settings()
    fields: Fields = {}
    problems: list[Problem] = []
    for name, value in changes.items():
        full = _full_name(name, settings)
        if full in fields:
            problems.append(((*at, str(name)), "is given twice, with and without _or_fn"))
            continue
        kept, wrong = check(settings, {full: value})
        # The text starts with the name, which is in the path already.
        problems += [((*at, str(name)), text[len(full) + 1 :]) for text in wrong]
        fields[full] = kept.get(full)
    return fields, problems


def _full_name(name: Any, settings: Mapping[str, Setting]) -> str:
    text = str(name)
    return text + OR_FN if text not in settings and text + OR_FN in settings else text


def _given_twice(top: Fields, inner: Fields) -> list[Problem]:
    return [
        ((NESTED, name), f"is {shown(inner[name])}, but {shown(top[name])} at the top level")
        for name in top.keys() & inner.keys()
        if name != METADATA_FIELD and is_different(top[name], inner[name])
    ]


def _all_settings() -> dict[str, Setting]:
    return {**settings_of(ApplicationFields), **settings_of(TrainingFields)}


def _overlay(fields: Fields, changes: Fields) -> None:
    """Change fields in place. Metadata is changed key by key; None resets a field."""
    for name, value in changes.items():
        if value is None:
            fields.pop(name, None)
        elif name == METADATA_FIELD:
            fields[name] = {**fields.get(name, {}), **value}
        else:
            fields[name] = value


def override_training(
    config: TrainingTelemetryConfig, changes: Mapping[str, Any]
) -> TrainingTelemetryConfig:
    """Return a copy of the configuration with these fields changed."""
    change = read_override(changes)
    fields = changed_fields(config)
    _overlay(fields, change.application)
    _overlay(fields, change.training)
    return TrainingTelemetryConfig(**fields)


def override_application(
    config: ApplicationConfig, changes: Mapping[str, Any]
) -> ApplicationConfig:
    """Return a copy of the configuration, and of its training configuration, with these fields changed."""
    change = read_override(changes)
    fields = changed_fields(config)
    inner = fields.pop(NESTED, None)
    _overlay(fields, change.application)
    if inner is not None or change.is_about_training:
        training = changed_fields(inner) if inner is not None else {}
        # Remove the old values of training, which would conflict with the new ones of the application.
        for name in change.application.keys() - {METADATA_FIELD}:
            training.pop(name, None)
        _overlay(training, change.training)
        fields[NESTED] = TrainingTelemetryConfig(**training)
    return ApplicationConfig(**fields)


# Files

MAX_BYTES = 1 << 20
"""Largest size of a configuration file."""

Lines = dict[tuple[str, ...], int]
"""The line of each field, by its path."""


def read_overrides(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the checked fields in a YAML or JSON file. Errors name the file, the line and the field.

    The file has fields of the application and of training; those of training may be in ``telemetry_config``.
    """
    file = Path(path).expanduser()
    text = _read(file)
    values, lines = _parse_json(file, text) if file.suffix == ".json" else _parse_yaml(file, text)
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise StepwellError(f"{file}: the file must contain fields, such as session_tag: night")
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
        raise StepwellError(f"{file}: a configuration must have at most {MAX_BYTES} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise StepwellError(f"{file}: the file must be UTF-8 text") from None


def _line(lines: Lines, where: tuple[str, ...]) -> int:
    """Return the line of a field, or of the field that contains it."""
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
        """Reads 6e9 as a number, which is text in YAML 1.1."""

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
    """Return the lines of the fields of a mapping, and of the mappings in it."""
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
    return f"{file}, line {line}: {name} is given twice, first in line {lines[where]}"


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
    """Yield the path and the line of each key in a valid JSON text, except keys inside lists."""
    path: list[str | None] = []
    key: str | None = None
    for match in re.finditer(r'("(?:[^"\\]|\\.)*")(\s*:)?|[\[\]{}]', text):
        token = match[0]
        if match[2]:
            key = json.loads(match[1])
            around = [*path[1:], key]
            if None not in around:
                yield tuple(map(str, around)), text.count("\n", 0, match.start()) + 1
        elif token in "[{":
            path.append(key if token == "{" or not path else None)
            key = None
        elif token in "]}":
            path.pop()
