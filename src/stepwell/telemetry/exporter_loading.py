"""Exporters by name: from a configuration file, from a list, from ``STEPWELL_EXPORTERS``.

An entry has a ``name`` (``file``, or what a package registered under the entry points
``stepwell.exporters``) or a ``class_name`` (``package.module.Class``), and may have ``options``, ``enabled``,
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

from stepwell.journal.errors import StepwellError, say
from stepwell.journal.values import text_of
from stepwell.telemetry.export_filter import ExportFilter
from stepwell.telemetry.exporter import check_exporter

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
"""Also among the entry points; here too, so that they are found where nothing was installed."""
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
class Configured:
    """An exporter that was made from an entry; ``filter`` is None where the entry has none."""

    exporter: Any
    filter: ExportFilter | None = None


def load_exporters(config: Any, find: Find | None = None) -> list[Configured]:
    """The exporters that a configuration asks for, without those that are not enabled.

    Args:
        config: the path of a YAML or JSON file, its content, or a list of entries; an entry may
            also be a name alone.
        find: what finds the class of a name, for its second argument in messages; ``find_class`` by
            default.

    What is wrong raises ``StepwellError``, which names the entry and what to write instead.
    """
    entries, where = _entries(config)
    find = find or find_class
    made = [_configured(entry, f"{where}entry {i}", find) for i, entry in enumerate(entries, 1)]
    return [found for found in made if found is not None]


def add_from_environment(run: Run) -> None:
    """Add the exporters that ``STEPWELL_EXPORTERS`` names: a file, or names with commas between.

    What is wrong is said, and the others are added all the same.
    """
    setting = os.environ.get(VARIABLE, "").strip()
    if not setting:
        return
    entries, where = _guarded(lambda: _entries(setting)) or ([], "")
    for number, entry in enumerate(entries, 1):
        _guarded(partial(_add, run, entry, f"{where}entry {number}"))


def _add(run: Run, entry: Any, where: str) -> None:
    found = _configured(entry, where, find_class)
    if found is not None:
        run.add_exporter(found.exporter, found.filter)


def _guarded(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:  # whatever a constructor of somebody else's raises
        say("%s: %s. Training goes on without this exporter.", VARIABLE, text_of(error))
        return None


# Entries


def _entries(config: Any) -> tuple[list[Any], str]:
    """The entries of a configuration, and how to begin a message about one of them."""
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
    found = config.get("exporters") if isinstance(config, Mapping) else config
    if isinstance(found, list | tuple):
        return list(found)
    raise StepwellError(
        f"{where}exporters: there is no list of exporters here. Write `exporters:` and below it an "
        "entry for each, such as `- name: file`"
    )


def _read(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise StepwellError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise StepwellError(f"{path} is no text in UTF-8") from None
    try:
        return json.loads(text) if path.suffix.lower() == ".json" else _yaml(text)
    except ValueError as error:
        raise StepwellError(f"{path} cannot be understood: {error}") from None


def _yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


def _configured(entry: Any, where: str, find: Find) -> Configured | None:
    if isinstance(entry, str):
        entry = {"name": entry}
    if not isinstance(entry, Mapping):
        if callable(getattr(entry, "export", None)):
            check_exporter(entry)
            return Configured(entry)
        raise StepwellError(
            f"{where} is {entry!r}: write a name, or a mapping such as {{name: file}}"
        )
    for key in entry:
        if key not in KEYS:
            raise StepwellError(f"{where}: there is no key {key!r}{_nearest(key, KEYS)}")
    enabled = entry.get("enabled", True)
    if not isinstance(enabled, bool):
        raise StepwellError(f"{where}: enabled is {enabled!r}: write true or false")
    if not enabled:
        return None
    return Configured(_made(entry, where, find), _filter(entry, where))


def _made(entry: Mapping[str, Any], where: str, find: Find) -> Any:
    names = [entry[key] for key in ("name", "class_name") if entry.get(key) is not None]
    if len(names) != 1 or not isinstance(names[0], str):
        raise StepwellError(
            f"{where}: write either name (such as file) or class_name (such as package.module.Class)"
        )
    found = find(names[0], where)
    where = f"{where} ({names[0]})"
    options = [entry[key] for key in ("options", "config") if entry.get(key) is not None]
    if len(options) > 1:
        raise StepwellError(f"{where}: options and config mean the same: write one of them")
    given = options[0] if options else {}
    if not isinstance(given, Mapping):
        raise StepwellError(f"{where}: options are {given!r}: write a mapping of names to values")
    return _make(found, dict(given), where)


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
    """The exporter of this name or class with these options."""
    return _make(find_class(name, f"exporter {name}"), dict(options or {}), f"exporter {name}")


def find_class(name: str, where: str, also: Iterable[str] = ()) -> Callable[..., Any]:
    """The class that a short name or a dotted path stands for; ``also`` are names that others know."""
    if name in BUILT_IN:
        return _imported(BUILT_IN[name], where)
    registered = _registered()
    if name in registered:
        return _imported(registered[name], where)
    if "." in name or ":" in name:
        return _imported(name, where)
    known = sorted({*BUILT_IN, *registered, *also})
    raise StepwellError(
        f"{where}: there is no exporter {name!r}{_nearest(name, known)}. There are "
        f"{', '.join(known)}, and package.module.Class for one of your own"
    )


def _registered() -> dict[str, str]:
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=GROUP)}


def _imported(path: str, where: str) -> Callable[..., Any]:
    module_name, _, class_name = path.replace(":", ".").rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a module of somebody else's may fail in any way
        what = (
            text_of(error)
            if isinstance(error, ImportError)
            else f"{type(error).__name__}: {text_of(error)}"
        )
        raise StepwellError(f"{where}: {module_name} cannot be imported: {what}") from error
    found = getattr(module, class_name, None)
    if not callable(found):
        raise StepwellError(
            f"{where}: {module_name} has no class {class_name}{_nearest(class_name, dir(module))}"
        )
    made: Callable[..., Any] = found
    return made


def _make(made_by: Callable[..., Any], options: dict[str, Any], where: str) -> Any:
    _check_options(made_by, options, where)
    try:
        exporter = made_by(**options)
        check_exporter(exporter)
    except Exception as error:
        raise StepwellError(f"{where}: {text_of(error)}") from error
    return exporter


def _check_options(made_by: Callable[..., Any], options: dict[str, Any], where: str) -> None:
    try:
        parameters = inspect.signature(made_by).parameters.values()
    except (TypeError, ValueError):
        return
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for name in options:
        if name not in known:
            offered = f" Its options are {', '.join(known)}" if known else " It has no options"
            raise StepwellError(
                f"{where}: there is no option {name!r}{_nearest(name, known)}.{offered}"
            )


def _nearest(word: object, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(str(word), list(known), 1)
    return f" (did you mean {near[0]!r}?)" if near else ""
