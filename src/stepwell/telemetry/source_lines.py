"""Lines of Python code that a stack consists of: file, line, function and source text.

Never the values of variables. Literals of secrets in the source text are masked.
"""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Iterable
from types import CodeType, FrameType, TracebackType
from typing import Any

from stepwell.telemetry.masking import mask_source

OUTERMOST = 10
"""Lines of a deep stack that are kept from its start, and …"""
INNERMOST = 30
"""… from its end."""
MAX_SOURCE = 200
MAX_NAME = 400
MAX_WALKED = 10_000

SourceLine = dict[str, Any]
_Place = tuple[CodeType, int]


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


def _lines(places: list[_Place]) -> list[SourceLine]:
    kept: Iterable[_Place] = places
    if len(places) > OUTERMOST + INNERMOST:
        kept = itertools.chain(places[:OUTERMOST], places[-INNERMOST:])
    return [_line(code, number) for code, number in kept]


def _line(code: CodeType, number: int) -> SourceLine:
    source = linecache.getline(code.co_filename, number).strip()
    return {
        "file": code.co_filename[-MAX_NAME:],
        "line": number,
        "function": getattr(code, "co_qualname", code.co_name)[:MAX_NAME],
        "source": mask_source(source[:MAX_SOURCE]),
    }
