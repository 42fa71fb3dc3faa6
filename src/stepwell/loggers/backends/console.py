"""The console backend: prints one line per record and copies files to a folder."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from stepwell._core.values import cut
from stepwell.loggers.delivery.backend import Backend, ItemRecord, LogRecord, Source
from stepwell.loggers.delivery.files import as_one_part, keep_file, path_of

DEFAULT_SAVEDIR = os.path.join("mllogs", "simple-logger")
MAX_VALUE = 200
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
"""Control characters, which a terminal would execute. Names may come from someone else."""


class ConsoleBackend(Backend):
    """Prints records with the logger ``stepwell.console``, or on standard error if it has no handlers.

    Files are copied to ``<savedir>/<run id>``, those of ranks after the first to a subfolder.
    """

    name: ClassVar[str] = "console"
    out_of_process: ClassVar[bool] = False

    def open(self, source: Source, state: dict[str, Any]) -> None:
        """Choose the folder. It is created with the first file."""
        if "folder" not in state:
            savedir = Path(str(self.options.get("savedir") or DEFAULT_SAVEDIR)).expanduser()
            run = as_one_part(source.run)
            place = [run] if self.is_first else [run, f"rank-{self.rank:05d}"]
            state["folder"] = str(savedir.absolute().joinpath(*place))
        self._folder = Path(state["folder"])
        self._prefix = "" if self.is_first else f"rank {self.rank}: "

    def deliver(self, records: list[LogRecord], again: bool) -> None:
        """Copy all files, then print: a line that is printed cannot be undone if a copy fails."""
        lines = [self._line(record) for record in records]
        _print(f"{self._prefix}{CONTROL.sub('?', line)}" for line in lines)

    def _line(self, record: LogRecord) -> str:
        places = {"step": record.step, "epoch": record.epoch}
        details = [f"{name} {place}" for name, place in places.items() if place is not None]
        if not isinstance(record, ItemRecord):
            return _with(f"{record.name} = {record.value:.6g}", details)
        details.insert(0, record.kind)
        if record.content is None:
            return _with(f"{record.name} = {_shown(record.value)}", details)
        content = self.content_path(record.content)
        if not content.is_file():
            return _with(f"{record.name}: its content is not in the run folder", details)
        path = keep_file(content, record.content, self._folder, path_of(record))
        return _with(f"{record.name}: {path}", details)


def _with(text: str, details: list[str]) -> str:
    return f"{text} ({', '.join(details)})" if details else text


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return cut(" ".join(text.split()), MAX_VALUE)


def _print(lines: Iterable[str]) -> None:
    logger = logging.getLogger("stepwell.console")
    if logger.isEnabledFor(logging.INFO) and logger.hasHandlers():
        for line in lines:
            logger.info("%s", line)
    elif sys.stderr is not None:
        sys.stderr.write("".join(f"{line}\n" for line in lines))
        sys.stderr.flush()
