"""The JSON objects of a trace one by one, however long the file is and however it ends.

Three layouts: one object a line; a list of objects, with or without commas and a closing bracket; and a
document with the list under ``traceEvents``. What does not parse is counted and passed over.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from stepwell.importing.sources import Source
from stepwell.importing.values import parse_fraction, parse_whole
from stepwell.journal.errors import StepwellError

MAX_OBJECT = 8 << 20
"""Characters of one record."""
MAX_HEAD = 16 << 20
MAX_TAIL = 16 << 20
NEAR_END = 64
BROKEN = "it is no valid JSON"
TOO_LONG = f"it is longer than {MAX_OBJECT >> 20} MB"

_GAP = re.compile(r"[\s,\[\]\0]*")
_GAP_IN_LIST = re.compile(r"[\s,\0]*")
_LIST = re.compile(r'"traceEvents"\s*:\s*\[')
_NEXT = re.compile(r"[\r\n]\s*(?=[{\]])")
_BARE = re.compile(r"(?<=[:\[,])\s*([+-]?)(nan|inf)(?=\s*[,}\]])", re.IGNORECASE)
_WORDS = {"nan": "NaN", "inf": "Infinity"}

_scan = json.JSONDecoder(parse_float=parse_fraction, strict=False).raw_decode
_scan_slowly = json.JSONDecoder(
    parse_float=parse_fraction, parse_int=parse_whole, strict=False
).raw_decode


class Objects:
    """Iterates over the objects; ``about`` is what a document says beside its list."""

    def __init__(self, source: Source, left_out: Counter[str]) -> None:
        self.source = source
        self.about: dict[str, Any] = {}
        self._left_out = left_out
        self._texts = source.texts()
        self._text = ""
        self._at = 0
        self._ended = False
        self._in_document = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self._begin()
        gap = _GAP_IN_LIST if self._in_document else _GAP
        while True:
            self._at = gap.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at == len(self._text):
                if not self._more():
                    if self._in_document and not self.source.damage:
                        self.source.damage = "the list of events is cut off"
                    return
            elif self._text[self._at] == "]":
                self._read_tail()
                return
            else:
                found = self._object()
                if found is not None:
                    yield found

    def _begin(self) -> None:
        """Find out which layout it is, and go to the first object."""
        while True:
            self._at = _GAP_IN_LIST.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text):
                break
            if not self._more():
                return
        if self._text[self._at] not in "{[":
            raise StepwellError(f"{str(self.source.path)!r} is no trace: it does not begin as JSON")
        if self._text[self._at] == "[" or self._is_record():
            return
        while (found := _LIST.search(self._text)) is None:
            if len(self._text) > MAX_HEAD or not self._more():
                raise StepwellError(
                    f"{str(self.source.path)!r} is no trace: it has no list traceEvents, "
                    "and is not one JSON object a line"
                )
        self._note(self._text[: found.start()].rstrip().rstrip(",") + "}")
        self._at = found.end()
        self._in_document = True

    def _is_record(self) -> bool:
        """Whether the text begins with an object that is a record itself."""
        try:
            found, _ = _scan(self._text, self._at)
        except (ValueError, RecursionError):
            line = self._text.find("\n", self._at)
            head = self._text[: line if line >= 0 else None]
            # A line that is broken, but of a file of lines.
            return '"ph"' in head and '"traceEvents"' not in head
        return isinstance(found, dict) and "traceEvents" not in found

    def _note(self, text: str) -> None:
        try:
            found = _scan_slowly(text.strip())[0]
        except (ValueError, RecursionError):
            return
        if isinstance(found, dict):
            self.about.update(found)

    def _read_tail(self) -> None:
        while len(self._text) - self._at < MAX_TAIL and self._more():
            pass
        self._note("{" + self._text[self._at + 1 :].lstrip().lstrip(","))

    def _more(self) -> bool:
        """Read on; what was gone through is let go of."""
        piece = next(self._texts, None)
        if piece is None:
            self._ended = True
            return False
        self._text = self._text[self._at :] + piece
        self._at = 0
        return True

    def _object(self) -> dict[str, Any] | None:
        """The object that begins here; None when there is none, or not all of it yet."""
        try:
            found, end = _scan(self._text, self._at)
        except (ValueError, RecursionError) as error:
            return None if self._is_cut(error) and self._more() else self._rescue()
        self._at = end
        if type(found) is not dict:
            self._left_out["it is no object"] += 1
            return None
        return found

    def _is_cut(self, error: Exception) -> bool:
        """Whether the rest of the object may be yet to come."""
        if len(self._text) - self._at > MAX_OBJECT:
            return False
        if isinstance(error, json.JSONDecodeError):
            return error.msg.startswith("Unterminated") or error.pos >= len(self._text) - NEAR_END
        # A number of too many digits, or nested too deeply.
        return False

    def _rescue(self) -> dict[str, Any] | None:
        """Read what does not parse in a more patient way, or pass it over."""
        try:
            found, self._at = _scan_slowly(self._text, self._at)
            if type(found) is dict:
                return found
        except (ValueError, RecursionError):
            pass
        line = self._skip()
        try:
            # Some write nan and inf as C prints them.
            found, _ = _scan_slowly(_BARE.sub(_word, line))
            if type(found) is dict:
                return found
        except (ValueError, RecursionError):
            pass
        self._left_out[BROKEN if len(line) < MAX_OBJECT else TOO_LONG] += 1
        return None

    def _skip(self) -> str:
        """Go to the next line that begins with an object; returns what was passed over."""
        while (found := _NEXT.search(self._text, self._at)) is None:
            if len(self._text) - self._at > MAX_OBJECT:
                # Nothing of so long a record is kept, only its end looked for.
                passed = self._text[-MAX_OBJECT:]
                self._at = len(self._text) - 1
                if not self._more():
                    self._at = len(self._text)
                    return passed
                self._drop_to_next_line()
                return passed
            if not self._more():
                passed = self._text[self._at :]
                self._at = len(self._text)
                return passed
        passed = self._text[self._at : found.start()]
        self._at = found.end()
        return passed

    def _drop_to_next_line(self) -> None:
        while (found := _NEXT.search(self._text, self._at)) is None:
            self._at = max(self._at, len(self._text) - 1)
            if not self._more():
                self._at = len(self._text)
                return
        self._at = found.end()


def _word(found: re.Match[str]) -> str:
    sign = "-" if found[1] == "-" else ""
    return ("" if found[2].lower() == "nan" else sign) + _WORDS[found[2].lower()]
