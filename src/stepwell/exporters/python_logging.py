"""The logging exporter: one readable line for each record, through Python's ``logging``."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Sequence
from typing import Any

from stepwell._core.errors import StepwellError
from stepwell._core.text import duration
from stepwell.exporters.record_format import join_short, pairs, word
from stepwell.telemetry.exporter import Exporter, Record, Source, SpanRecord

LOGGER = "stepwell.export"


class LoggingExporter(Exporter):
    """Log every record.

    Args:
        logger: a logger or its name. Default: ``stepwell.export``.
        level: the log level, as a number or a name. Errors are logged at ``ERROR`` or above.
    """

    name = "logging"

    def __init__(
        self, logger: logging.Logger | str | None = None, level: int | str = logging.INFO
    ) -> None:
        self.logger = _logger(logger)
        self.level = _level(level)
        self._place = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LoggingExporter) and other._key() == self._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[str, int]:
        return self.logger.name, self.level

    def __repr__(self) -> str:
        return f"LoggingExporter({self.logger.name!r}, {logging.getLevelName(self.level)})"

    def open(self, source: Source) -> None:
        self._place = pairs({"run": source.run, "attempt": source.attempt, "rank": source.rank})

    def export(self, records: Sequence[Record]) -> None:
        for record in join_short(records):
            is_error = record.type == "error" or getattr(record, "status", "") == "error"
            level = max(self.level, logging.ERROR) if is_error else self.level
            if self.logger.isEnabledFor(level):
                self.logger.log(level, "%s", line_of(record, self._place))


def line_of(record: Record, place: str) -> str:
    """Return a record as one line. No value can add a line or a field to it."""
    if isinstance(record, SpanRecord):
        parts = [f"span {record.type}", word(record.name), place]
        parts.append(pairs({"id": record.id, "parent": record.parent}))
        if record.end_ns is not None:
            parts.append(f"took {duration(record.end_ns - record.start_ns)}")
            parts.append(pairs({"status": record.status}))
    else:
        parts = [record.type, word(record.name), place, pairs({"span": record.span})]
    attributes = pairs(record.attributes)
    return " ".join(filter(None, [*parts, f"| {attributes}" if attributes else ""]))


def _logger(logger: Any) -> logging.Logger:
    if logger is None or isinstance(logger, str):
        return logging.getLogger(logger or LOGGER)
    if isinstance(logger, logging.Logger):
        return logger
    raise StepwellError(f"logger must be a logger or its name, got {logger!r}")


def _level(level: Any) -> int:
    if isinstance(level, int) and not isinstance(level, bool):
        return level
    levels = {name: number for number, name in logging._levelToName.items()}
    name = str(level).strip().upper()
    if isinstance(level, str) and name in levels:
        return levels[name]
    near = difflib.get_close_matches(name, levels, 1) or ["INFO"]
    raise StepwellError(f"level must be a level of logging, such as {near[0]!r}, got {level!r}")
