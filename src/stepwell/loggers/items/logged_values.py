"""Values given to ``stepwell.log`` that are not numbers: images, figures, histograms, tables, long texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from stepwell._core.errors import report_misuse, warn_once
from stepwell._core.values import MAX_TEXT, number, shown, text_of
from stepwell.follower.log import OWN_KEYS
from stepwell.journal.format import ITEM
from stepwell.journal.journal import Journal
from stepwell.journal.metrics import context
from stepwell.loggers.items import converters as items
from stepwell.loggers.items.converters import CannotKeep, ConvertedItem
from stepwell.telemetry.media import Media
from stepwell.telemetry.run import active_run

PLAIN = (str, bytes, bool, int, float, list, tuple, dict, set, frozenset, type(None))
"""Types that JSON can represent."""


def keep_logged(
    journal: Journal, name: str, value: Any, step: int | None, audience: Sequence[int] = ()
) -> bool:
    """Store a logged value as an item. Return False if it has to be stored as a plain value.

    A value of which only a description can be stored gives one warning per name.
    """
    kind = kind_of(value)
    if kind is not None:
        _keep(journal, name, kind, value, step, audience)
        return True
    if isinstance(value, list | tuple) and value and all(kind_of(each) for each in value):
        for number, each in enumerate(value):
            _keep(journal, f"{name}/{number}", str(kind_of(each)), each, step, audience)
        return True
    if not _is_plain(value):
        warn_once(
            f"described {name[:200]}",
            "log({%r: …}): %s is not a number, and only a description is stored. Wrap it in stepwell.Image, "
            "Histogram, Table or Text to store it",
            name[:200],
            _described(value),
        )
    return False


def kind_of(value: Any) -> str | None:
    """Return the kind of item that the type of a value implies; None if there is none."""
    try:
        return _kind_of(value)
    except Exception:  # attributes of foreign objects may raise anything
        return None


def _is_plain(value: Any) -> bool:
    """Return whether JSON can represent a value. Only the outermost level of a nested value is checked."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return all(isinstance(each, PLAIN) or number(each) is not None for each in value)
    return isinstance(value, PLAIN)


def _kind_of(value: Any) -> str | None:
    if isinstance(value, Media):
        return value.kind
    if isinstance(value, str):
        return "text" if len(value) > MAX_TEXT else None
    if hasattr(value, "savefig") or hasattr(value, "to_plotly_json"):
        return "figure"
    if hasattr(value, "getbands"):  # PIL
        return "image"
    if hasattr(value, "columns") and hasattr(value, "shape"):  # pandas, Polars
        return "table"
    return None


def _keep(
    journal: Journal, name: str, kind: str, value: Any, step: int | None, audience: Sequence[int]
) -> None:
    data, options = (value.data, value.options) if isinstance(value, Media) else (value, {})
    with failures_reported(f"log {name[:200]}", f"log({{{name[:200]!r}: …}})"):
        converted = items.convert(kind, data, name, options)
        if kind == "figure" and converted and "width" in converted[0].meta:
            kind = "image"
        write_items(journal, kind, converted, step, audience)


@contextmanager
def failures_reported(key: str, call: str) -> Iterator[None]:
    """Context manager: report an exception instead of raising it. ``call`` then stored nothing."""
    try:
        yield
    except CannotKeep as error:
        reason = str(error)
    except Exception as error:
        reason = f"{type(error).__name__}: {text_of(error)}"
    else:
        return
    report_misuse(key, f"{call} stored nothing: {reason}")


def write_items(
    journal: Journal,
    kind: str,
    converted: list[ConvertedItem],
    step: int | None,
    audience: Sequence[int],
) -> None:
    """Write items to the journal and their contents to the run folder. Raise OSError if the disk is full."""
    run = active_run()
    if run is None:
        return
    common: dict[str, Any] = {
        "item": kind,
        "audience": list(audience),
        "step": context.step if step is None else step,
        "epoch": context.epoch,
    }
    for item in converted:
        attributes = {k: v for k, v in item.meta.items() if k not in OWN_KEYS} | common
        value, content, file = item.value, item.content, item.file
        if content is None and (data := _too_large(value)) is not None:
            value, content, file = None, data, items.file_name(item.name, ".json")
        if content is None:
            attributes["value"] = value
        else:
            try:
                sha256, size = items.store(run.path, content)
            except OSError:
                journal.count_drop("artifacts")
                raise
            media = ConvertedItem(item.name, file=file).media
            attributes |= {"content": sha256, "size": size, "media": media}
        if file is not None:
            attributes["file"] = file
        journal.write_event(ITEM, item.name, attributes)


def _too_large(value: Any) -> bytes | None:
    """Return the value as JSON if it is too large for a line of the journal; else None."""
    if value is None or isinstance(value, bool | int | float):
        return None
    data = items.as_json(value)
    return data if data is not None and len(data) > 2 * MAX_TEXT else None


def _described(value: Any) -> str:
    try:
        kind = f"{type(value).__module__.partition('.')[0]}.{type(value).__qualname__}"
        return f"{kind} of shape {tuple(value.shape)}" if hasattr(value, "shape") else shown(value)
    except Exception:
        return shown(value)
