"""Exporters from a configuration: a file, a list of entries, or ``STEPWELL_EXPORTERS``.

An entry has a ``name`` (``file``, or a name registered in the entry points ``stepwell.exporters``) or a
``class_name`` (``package.module.Class``), and may have ``options``, ``enabled``,
``export_customization_mode`` and ``span_name_filter``.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from stepwell._core.errors import StepwellError, log_warning
from stepwell._core.values import text_of
from stepwell.telemetry.exporter import ExportFilter, check_exporter

if TYPE_CHECKING:
    from stepwell.telemetry.run import Run

VARIABLE = "STEPWELL_EXPORTERS"
GROUP = "stepwell.exporters"
BUILT_IN = {
    "file": "stepwell.exporters.file.FileExporter",
    "logging": "stepwell.exporters.python_logging.LoggingExporter",
    "console": "stepwell.exporters.console.ConsoleExporter",
    "otlp": "stepwell.exporters.otlp.OTLPExporter",
    "chrome": "stepwell.exporters.chrome.ChromeExporter",
    "dftracer": "stepwell.exporters.dftracer.DFTracerExporter",
}
"""Also registered as entry points; listed here so that they work without an installation."""
KEYS = (
    "name",
    "class_name",
    "options",
    "config",
    "enabled",
    "export_customization_mode",
    "span_name_filter",
)
SUFFIXES = (".yaml", ".yml", ".json")
Find: TypeAlias = Callable[[str, str], Callable[..., Any]]


@dataclass(frozen=True)
class ConfiguredExporter:
    """An exporter created from an entry; ``filter`` is None if the entry has none."""

    exporter: Any
    filter: ExportFilter | None = None


def load_exporters(config: Any, find: Find | None = None) -> list[ConfiguredExporter]:
    """Return the enabled exporters of a configuration.

    Args:
        config: the path of a YAML or JSON file, its content, or a list of entries; an entry may be just a
            name.
        find: returns the class of a name; its second argument is the entry, for messages. Default:
            ``find_class``.

    A mistake raises ``StepwellError`` with the entry and the allowed values.
    """
    entries, where = parse_exporter_entries(config)
    find = find or find_class
    exporters = [
        _configured(entry, f"{where}entry {i}", find) for i, entry in enumerate(entries, 1)
    ]
    return [exporter for exporter in exporters if exporter is not None]


def add_from_environment(run: Run) -> None:
    """Add the exporters in ``STEPWELL_EXPORTERS``: the path of a file, or names separated by commas.

    A mistake gives a warning, and the other exporters are still added.
    """
    setting = os.environ.get(VARIABLE, "").strip()
    if not setting:
        return
    entries, where = _guarded(lambda: parse_exporter_entries(setting)) or ([], "")
    for number, entry in enumerate(entries, 1):
        _guarded(partial(_add, run, entry, f"{where}entry {number}"))


def _add(run: Run, entry: Any, where: str) -> None:
    configured = _configured(entry, where, find_class)
    if configured is not None:
        run.add_exporter(configured.exporter, configured.filter)


def _guarded(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:  # the constructor of any exporter
        log_warning("%s: %s. Training continues without this exporter.", VARIABLE, text_of(error))
        return None


# Entries


def parse_exporter_entries(config: Any) -> tuple[list[Any], str]:
    """Return the entries of a configuration or of ``STEPWELL_EXPORTERS``, and a prefix for messages."""
    if isinstance(config, str | os.PathLike):
        text = os.fspath(config)
        if not _is_path(text):
            return [name.strip() for name in str(text).split(",") if name.strip()], ""
        path = Path(text).expanduser()
        return _listed(_read(path), f"{path}, "), f"{path}, "
    return _listed(config, ""), ""


def _is_path(text: str) -> bool:
    return text.lower().endswith(SUFFIXES) or os.sep in text or "/" in text or os.path.isfile(text)


def _listed(config: Any, where: str) -> list[Any]:
    entries = config.get("exporters") if isinstance(config, Mapping) else config
    if isinstance(entries, list | tuple):
        return list(entries)
    raise StepwellError(
        f"{where}no list of exporters. Write `exporters:` and below it an entry for each, such as "
        "`- name: file`"
    )


def _read(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise StepwellError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise StepwellError(f"{path} is not a text in UTF-8") from None
    try:
        return json.loads(text) if path.suffix.lower() == ".json" else _yaml(text)
    except ValueError as error:
        raise StepwellError(f"{path} cannot be parsed: {error}") from None


def _yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


def _configured(entry: Any, where: str, find: Find) -> ConfiguredExporter | None:
    if isinstance(entry, str):
        entry = {"name": entry}
    if not isinstance(entry, Mapping):
        if callable(getattr(entry, "export", None)):
            check_exporter(entry)
            return ConfiguredExporter(entry)
        raise StepwellError(
            f"{where} must be a name or a mapping such as {{name: file}}, got {entry!r}"
        )
    for key in entry:
        if key not in KEYS:
            raise StepwellError(f"{where}: unknown key {key!r}{_nearest(key, KEYS)}")
    enabled = entry.get("enabled", True)
    if not isinstance(enabled, bool):
        raise StepwellError(f"{where}: enabled must be true or false, got {enabled!r}")
    if not enabled:
        return None
    return ConfiguredExporter(_create(entry, where, find), _filter(entry, where))


def _create(entry: Mapping[str, Any], where: str, find: Find) -> Any:
    names = [entry[key] for key in ("name", "class_name") if entry.get(key) is not None]
    if len(names) != 1 or not isinstance(names[0], str):
        raise StepwellError(
            f"{where} must have either a name (such as file) or a class_name (package.module.Class)"
        )
    factory = find(names[0], where)
    where = f"{where} ({names[0]})"
    options = [entry[key] for key in ("options", "config") if entry.get(key) is not None]
    if len(options) > 1:
        raise StepwellError(
            f"{where} has both options and config, which mean the same: write one of them"
        )
    given = options[0] if options else {}
    if not isinstance(given, Mapping):
        raise StepwellError(f"{where}: options must be a mapping of names to values, got {given!r}")
    return _make(factory, dict(given), where)


def _filter(entry: Mapping[str, Any], where: str) -> ExportFilter | None:
    mode, names = entry.get("export_customization_mode"), entry.get("span_name_filter")
    if mode is None and names is None:
        return None
    try:
        return ExportFilter(mode, names)
    except StepwellError as error:
        raise StepwellError(f"{where}: {error}") from None


# Classes


def make_exporter(name: str, options: Mapping[str, Any] | None = None) -> Any:
    """Return an exporter by its name or class, with these options."""
    return _make(find_class(name, f"exporter {name}"), dict(options or {}), f"exporter {name}")


def find_class(name: str, where: str, also: Iterable[str] = ()) -> Callable[..., Any]:
    """Return the class of a short name or a dotted path; ``also`` are further names to suggest."""
    if name in BUILT_IN:
        return _imported(BUILT_IN[name], where)
    registered = _registered()
    if name in registered:
        return _imported(registered[name], where)
    if "." in name or ":" in name:
        return _imported(name, where)
    valid = sorted({*BUILT_IN, *registered, *also})
    raise StepwellError(
        f"{where}: no exporter named {name!r}{_nearest(name, valid)}. Use one of {', '.join(valid)}, "
        "or package.module.Class for your own"
    )


def _registered() -> dict[str, str]:
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=GROUP)}


def _imported(path: str, where: str) -> Callable[..., Any]:
    module_name, _, class_name = path.replace(":", ".").rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # the module may fail in any way
        problem = (
            text_of(error)
            if isinstance(error, ImportError)
            else f"{type(error).__name__}: {text_of(error)}"
        )
        raise StepwellError(f"{where}: {module_name} cannot be imported: {problem}") from error
    factory: Callable[..., Any] | None = getattr(module, class_name, None)
    if not callable(factory):
        raise StepwellError(
            f"{where}: {module_name} has no class {class_name}{_nearest(class_name, dir(module))}"
        )
    return factory


def _make(factory: Callable[..., Any], options: dict[str, Any], where: str) -> Any:
    _check_options(factory, options, where)
    try:
        exporter = factory(**options)
        check_exporter(exporter)
    except Exception as error:
        raise StepwellError(f"{where}: {text_of(error)}") from error
    return exporter


def _check_options(factory: Callable[..., Any], options: dict[str, Any], where: str) -> None:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    valid = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for name in options:
        if name not in valid:
            offered = f" Its options are {', '.join(valid)}" if valid else " It has no options"
            raise StepwellError(
                f"{where}: unknown option {name!r}{_nearest(name, valid)}.{offered}"
            )


def _nearest(word: object, valid: Iterable[str]) -> str:
    near = difflib.get_close_matches(str(word), list(valid), 1)
    return f" (did you mean {near[0]!r}?)" if near else ""
