"""Values given to ``stepwell.log`` that are not numbers: images, figures, histograms, tables, long texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepwell.journal.errors import misuse, warn_once
from stepwell.journal.follow_items import OWN_KEYS
from stepwell.journal.journal import ITEM, Journal
from stepwell.journal.metrics import context
from stepwell.journal.values import MAX_TEXT, number, shown, text_of
from stepwell.loggers.items import making as items
from stepwell.loggers.items.making import CannotKeep, Item
from stepwell.telemetry.media import Media
from stepwell.telemetry.run import active_run

PLAIN = (str, bytes, bool, int, float, list, tuple, dict, set, frozenset, type(None))
"""Types that JSON keeps as they are."""


def keep_logged(
    journal: Journal, name: str, value: Any, step: int | None, audience: Sequence[int] = ()
) -> bool:
    """Keep a logged value as an item; return False if it has to be kept as a plain value.

    A value of which only a description can be kept gives one warning for each name.
    """
    kind = kind_of(value)
    if kind is not None:
        _keep(journal, name, kind, value, step, audience)
        return True
    if isinstance(value, list | tuple) and value and all(kind_of(one) for one in value):
        for number, one in enumerate(value):
            _keep(journal, f"{name}/{number}", str(kind_of(one)), one, step, audience)
        return True
    if not _is_plain(value):
        warn_once(
            f"described {name[:200]}",
            "log({%r: …}): %s is not a number, and only its description is kept. Wrap it in "
            "stepwell.Image, Histogram, Table or Text to keep it",
            name[:200],
            _described(value),
        )
    return False


def kind_of(value: Any) -> str | None:
    """Return the kind of item that a value is by itself; None for anything else."""
    try:
        return _kind_of(value)
    except Exception:  # attributes of foreign objects may raise anything
        return None


def _is_plain(value: Any) -> bool:
    """Whether JSON keeps a value as it is; of nested ones the outermost level is looked at."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return all(isinstance(one, PLAIN) or number(one) is not None for one in value)
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
    try:
        made = items.made_of(kind, data, name, options)
        if kind == "figure" and made and "width" in made[0].meta:
            kind = "image"
        write_items(journal, kind, made, step, audience)
    except CannotKeep as error:
        _say_not_kept(name, str(error))
    except Exception as error:
        _say_not_kept(name, f"{type(error).__name__}: {text_of(error)}")


def _say_not_kept(name: str, reason: str) -> None:
    misuse(f"log {name[:200]}", f"log({{{name[:200]!r}: …}}) kept nothing: {reason}")


def write_items(
    journal: Journal, kind: str, made: list[Item], step: int | None, audience: Sequence[int]
) -> None:
    """Write items into the journal, their contents into the run folder; OSError when it is full."""
    run = active_run()
    if run is None:
        return
    about: dict[str, Any] = {
        "item": kind,
        "audience": list(audience),
        "step": context.step if step is None else step,
        "epoch": context.epoch,
    }
    for one in made:
        kept = {key: value for key, value in one.meta.items() if key not in OWN_KEYS} | about
        value, content, file = one.value, one.content, one.file
        if content is None and (data := _too_large(value)) is not None:
            value, content, file = None, data, items.file_name(one.name, ".json")
        if content is None:
            kept["value"] = value
        else:
            try:
                sha256, size = items.store(run.path, content)
            except OSError:
                journal.count_drop("artifacts")
                raise
            media = Item(one.name, file=file).media
            kept |= {"content": sha256, "size": size, "media": media}
        if file is not None:
            kept["file"] = file
        journal.write_event(ITEM, one.name, kept)


def _too_large(value: Any) -> bytes | None:
    """Return the value as JSON when it is too large for a line of the journal."""
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
