"""Which spans an exporter is given. The journal always has all of them."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any

from stepwell.journal.errors import StepwellError
from stepwell.vocabulary import DEFAULT_SPANS_EXPORT_BLACKLIST

SHORT_SPANS = tuple(word.value for word in DEFAULT_SPANS_EXPORT_BLACKLIST)
"""Spans of every iteration, which exporters are not given unless asked for: there are so many."""


MACHINERY = ("gc", "diagnostics")
"""Pauses of Python's garbage collection, and the time that diagnostics take: no parts of the job."""


class ExportCustomizationMode(enum.Enum):
    """Which spans to export, next to a list of names."""

    EXPORT_ALL_SPANS = "export_all_spans"
    WHITELIST_SPANS = "whitelist_spans"
    BLACKLIST_SPANS = "blacklist_spans"


_MODES = ", ".join(f"ExportCustomizationMode.{mode.name}" for mode in ExportCustomizationMode)


class ExportFilter:
    """Which spans are exported: all, only those named, or all but those named.

    Without arguments: all but the short ones of every iteration (``SHORT_SPANS``), pauses of the garbage
    collection and diagnostics. Children of a span that is left out hang on the nearest ancestor that is not.
    """

    __slots__ = ("mode", "names")

    def __init__(
        self,
        mode: ExportCustomizationMode | str | None = None,
        span_name_filter: Iterable[str | enum.Enum] | None = None,
    ) -> None:
        if mode is None and span_name_filter is None:
            mode, span_name_filter = (
                ExportCustomizationMode.BLACKLIST_SPANS,
                (
                    *SHORT_SPANS,
                    *MACHINERY,
                ),
            )
        self.mode = _mode(mode)
        self.names = _names(self.mode, span_name_filter)

    @classmethod
    def default_of(cls, exporter: Any) -> ExportFilter:
        """What an exporter gets where nobody says so."""
        if getattr(exporter, "every_span", False):
            return cls(ExportCustomizationMode.EXPORT_ALL_SPANS)
        return cls()

    def keeps(self, name: str) -> bool:
        """Whether spans of this name are exported."""
        if self.mode is ExportCustomizationMode.EXPORT_ALL_SPANS:
            return True
        return (name in self.names) is (self.mode is ExportCustomizationMode.WHITELIST_SPANS)

    def to_json(self) -> dict[str, Any]:
        """The same as plain values, for ``from_json``."""
        return {"mode": self.mode.value, "span_name_filter": sorted(self.names) or None}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ExportFilter:
        """The filter that ``to_json`` described."""
        return cls(values.get("mode"), values.get("span_name_filter"))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ExportFilter):
            return NotImplemented
        return (self.mode, self.names) == (other.mode, other.names)

    def __hash__(self) -> int:
        return hash((self.mode, self.names))

    def __repr__(self) -> str:
        return f"ExportFilter({self.mode.name}, {sorted(self.names)})"


def _mode(mode: Any) -> ExportCustomizationMode:
    if isinstance(mode, ExportCustomizationMode):
        return mode
    if isinstance(mode, str):
        for known in ExportCustomizationMode:
            if mode.strip().lower() == known.value:
                return known
    raise StepwellError(f"the export customization mode is {mode!r}: write one of {_MODES}")


def _names(mode: ExportCustomizationMode, given: Any) -> frozenset[str]:
    if mode is ExportCustomizationMode.EXPORT_ALL_SPANS:
        if given is not None:
            raise StepwellError(
                f"EXPORT_ALL_SPANS goes without a span_name_filter, but there is one: {given!r}. "
                "Leave it out, or choose WHITELIST_SPANS or BLACKLIST_SPANS"
            )
        return frozenset()
    if isinstance(given, str | enum.Enum):
        raise StepwellError(
            f"span_name_filter is {given!r}: write a list, such as span_name_filter=[{given!r}]"
        )
    names = list(given) if isinstance(given, Iterable) else []
    if not names:
        raise StepwellError(
            f"{mode.name} needs the names of spans, but span_name_filter is {given!r}: "
            "write a list, such as span_name_filter=['validation_loop']"
        )
    return frozenset(_name(name) for name in names)


def _name(name: Any) -> str:
    text = name.value if isinstance(name, enum.Enum) else name
    if not isinstance(text, str):
        raise StepwellError(
            f"span_name_filter has {name!r}: write names of spans, as strings or as members of an enum"
        )
    return text
