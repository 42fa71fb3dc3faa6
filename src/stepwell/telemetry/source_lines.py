"""Lines of Python code that a stack consists of: file, line, function and source text.

Never the values of variables. Literals of secrets in the source text are masked.
"""

from __future__ import annotations

import itertools
import linecache
import re
from collections.abc import Iterable
from types import CodeType, FrameType, TracebackType
from typing import Any, TypeVar

from stepwell.journal.masking import mask_source

OUTERMOST = 10
"""Lines of a deep stack that are kept from its start, and …"""
INNERMOST = 30
"""… from its end."""
MAX_SOURCE = 200
MAX_NAME = 400
MAX_WALKED = 10_000

SourceLine = dict[str, Any]
_Place = tuple[CodeType, int]
_T = TypeVar("_T")
_FRAME = re.compile(
    r'^  File "(?P<file>.*)", line (?P<line>\d+), in (?P<function>.+)\n?', re.MULTILINE
)


def lines_of_traceback(traceback: TracebackType | None) -> list[SourceLine]:
    """Return the lines that an exception went through, outermost first."""
    places: list[_Place] = []
    while traceback is not None and len(places) < MAX_WALKED:
        places.append((traceback.tb_frame.f_code, traceback.tb_lineno))
        traceback = traceback.tb_next
    return _lines(places)


def lines_of_frame(frame: FrameType | None) -> list[SourceLine]:
    """Return the lines that a thread is at, outermost first."""
    places: list[_Place] = []
    while frame is not None and len(places) < MAX_WALKED:
        places.append((frame.f_code, frame.f_lineno or 0))
        frame = frame.f_back
    return _lines(places[::-1])


def lines_of_text(traceback: str) -> list[SourceLine]:
    """Return the lines of a traceback that Python has formatted, outermost first."""
    return [
        _line(found["file"], int(found["line"]), found["function"], _source_after(traceback, found))
        for found in _kept(list(_FRAME.finditer(traceback)))
    ]


def _source_after(traceback: str, frame: re.Match[str]) -> str:
    line = traceback[frame.end() :].partition("\n")[0]
    return line.strip() if line.startswith("    ") else ""


def _lines(places: list[_Place]) -> list[SourceLine]:
    return [
        _line(
            code.co_filename,
            number,
            getattr(code, "co_qualname", code.co_name),
            linecache.getline(code.co_filename, number).strip(),
        )
        for code, number in _kept(places)
    ]


def _kept(places: list[_T]) -> Iterable[_T]:
    if len(places) <= OUTERMOST + INNERMOST:
        return places
    return itertools.chain(places[:OUTERMOST], places[-INNERMOST:])


def _line(file: str, number: int, function: str, source: str) -> SourceLine:
    return {
        "file": file[-MAX_NAME:],
        "line": number,
        "function": function[:MAX_NAME],
        "source": mask_source(source[:MAX_SOURCE]),
    }
