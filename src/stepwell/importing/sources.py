"""Trace files: finds them, decompresses them in pieces, and yields their JSON objects with exact numbers.

Three layouts: one object per line; a list of objects, with or without commas and a closing bracket; and a
document with the list under ``traceEvents``. Invalid objects are counted and skipped, and a file may end
anywhere.
"""

from __future__ import annotations

import codecs
import glob
import json
import math
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import IO, Any

from stepwell._core.errors import StepwellError
from stepwell._core.values import MAX_TEXT, as_float, encode

SUFFIXES = (".pfw", ".pfw.gz", ".json", ".json.gz", ".jsonl", ".jsonl.gz", ".ndjson")
GZIP = b"\x1f\x8b"
CHUNK = 1 << 20
BITE = 1 << 14
MAX_FILES = 100_000
MOST_UNPACKED = 250
"""No trace compresses better: a file with a higher ratio was made to fill memory."""
UNSUSPICIOUS = 256 << 20
"""Decompressed bytes that are read whatever the ratio."""

Progress = Callable[[str, int, int], None]
"""Called with the stage ("reading" or "writing"), the amount done, and the total."""

MAX_OBJECT = 8 << 20
"""Most characters of a record."""
MAX_HEAD = 16 << 20
MAX_TAIL = 16 << 20
NEAR_END = 64
BROKEN = "invalid JSON"
TOO_LONG = f"longer than {MAX_OBJECT >> 20} MB"
_GAP = re.compile(r"[\s,\[\]\0]*")
_GAP_IN_LIST = re.compile(r"[\s,\0]*")
_LIST = re.compile(r'"traceEvents"\s*:\s*\[')
_NEXT = re.compile(r"[\r\n]\s*(?=[{\]])")
_BARE = re.compile(r"(?<=[:\[,])\s*([+-]?)(nan|inf)(?=\s*[,}\]])", re.IGNORECASE)
_WORDS = {"nan": "NaN", "inf": "Infinity"}
MAX_DIGITS = 30
MAX_DEPTH = 60
NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_quick: Callable[[Any], bytes] | None = None


def find_files(path: str | os.PathLike[str]) -> list[Path]:
    """Return the files of a path, a pattern or a folder. Raise StepwellError if there are none."""
    location = Path(path).expanduser()
    if location.is_dir():
        entries = sorted(location.iterdir())
        files = [p for p in entries if p.name.lower().endswith(SUFFIXES) and p.is_file()]
        if not files:
            raise StepwellError(
                f"no traces in the folder {str(location)!r}: it has no files that end with "
                f"{', '.join(SUFFIXES)}"
            )
    elif location.is_file():
        files = [location]
    else:
        files = [Path(p) for p in sorted(glob.glob(str(location))) if Path(p).is_file()]
        if not files:
            if location.exists():
                raise StepwellError(f"{str(location)!r} is not a regular file")
            raise StepwellError(f"no such file: {str(location)!r}")
    if len(files) > MAX_FILES:
        raise StepwellError(
            f"{str(location)!r} matches {len(files)} files; at most {MAX_FILES} are allowed"
        )
    return files


class TraceSource:
    """A file to read.

    ``done`` is the number of bytes read, ``damage`` the reason why its end is missing, if it is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = path.stat().st_size
        self.done = 0
        self.damage = ""

    def texts(self) -> Iterator[str]:
        """Yield its text in pieces; bytes that are not UTF-8 become replacement characters."""
        decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        for data in self.pieces():
            piece = decoder.decode(data)
            if piece:
                yield piece
        rest = decoder.decode(b"", True)
        if rest:
            yield rest

    def pieces(self) -> Iterator[bytes]:
        """Yield its bytes in pieces of bounded size."""
        with open(self.path, "rb") as file:
            packed = file.read(2) == GZIP
            file.seek(0)
            self.done = 0
            yield from self._unpacked(file) if packed else self._plain(file)

    def _plain(self, file: IO[bytes], size: int = 0) -> Iterator[bytes]:
        while data := file.read(size or CHUNK):
            self.done += len(data)
            yield data

    def _unpacked(self, file: IO[bytes]) -> Iterator[bytes]:
        """Yield the content of a gzip file, up to the first damage; it may have several members."""
        given = 0
        unpacker = zlib.decompressobj(31)
        # In small pieces, because nothing of a damaged piece is decompressed.
        for data in self._plain(file, BITE):
            while data:
                if unpacker.eof:
                    data = data.lstrip(b"\0")
                    if not data:
                        break
                    unpacker = zlib.decompressobj(31)
                try:
                    piece = unpacker.decompress(data, CHUNK)
                except zlib.error as error:
                    self.damage = f"damaged gzip data ({error})"
                    return
                given += len(piece)
                self._check_ratio(given)
                yield piece
                data = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
        if not unpacker.eof:
            self.damage = "the gzip data is cut off"

    def _check_ratio(self, given: int) -> None:
        if given > UNSUSPICIOUS and given > MOST_UNPACKED * self.done:
            raise StepwellError(
                f"{str(self.path)!r} decompresses to more than {MOST_UNPACKED} times its size, "
                "unlike any trace. If it is one, decompress it first"
            )


def parse_fraction(text: str) -> Decimal | float:
    """Parse a number with a fraction exactly: microseconds since the epoch do not fit into a float."""
    if len(text) <= MAX_DIGITS and "e" not in text and "E" not in text:
        return Decimal(text)
    return float(text)


def parse_whole(text: str) -> int | float:
    """Parse an integer; one with very many digits becomes a float."""
    return int(text) if len(text) <= MAX_DIGITS else float(text)


_scan = json.JSONDecoder(parse_float=parse_fraction, strict=False).raw_decode
_scan_slowly = json.JSONDecoder(
    parse_float=parse_fraction, parse_int=parse_whole, strict=False
).raw_decode


class TraceObjects:
    """Iterates over the objects of a file; ``document`` are the fields beside its list."""

    def __init__(self, source: TraceSource, left_out: Counter[str]) -> None:
        self.source = source
        self.document: dict[str, Any] = {}
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
                record = self._object()
                if record is not None:
                    yield record

    def _begin(self) -> None:
        """Detect the layout, and go to the first object."""
        while True:
            self._at = _GAP_IN_LIST.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text):
                break
            if not self._more():
                return
        if self._text[self._at] not in "{[":
            raise StepwellError(
                f"{str(self.source.path)!r} is not a trace: it does not begin as JSON"
            )
        if self._text[self._at] == "[" or self._is_record():
            return
        while (match := _LIST.search(self._text)) is None:
            if len(self._text) > MAX_HEAD or not self._more():
                raise StepwellError(
                    f"{str(self.source.path)!r} is not a trace: it has no list traceEvents, "
                    "and is not one JSON object per line"
                )
        self._note(self._text[: match.start()].rstrip().rstrip(",") + "}")
        self._at = match.end()
        self._in_document = True

    def _is_record(self) -> bool:
        """Return whether the text begins with a record."""
        try:
            value, _ = _scan(self._text, self._at)
        except (ValueError, RecursionError):
            line = self._text.find("\n", self._at)
            head = self._text[: line if line >= 0 else None]
            # An invalid line in a file of lines.
            return '"ph"' in head and '"traceEvents"' not in head
        return isinstance(value, dict) and "traceEvents" not in value

    def _note(self, text: str) -> None:
        try:
            value = _scan_slowly(text.strip())[0]
        except (ValueError, RecursionError):
            return
        if isinstance(value, dict):
            self.document.update(value)

    def _read_tail(self) -> None:
        while len(self._text) - self._at < MAX_TAIL and self._more():
            pass
        self._note("{" + self._text[self._at + 1 :].lstrip().lstrip(","))

    def _more(self) -> bool:
        """Read the next piece, and drop the text already parsed. Return False at the end."""
        piece = next(self._texts, None)
        if piece is None:
            self._ended = True
            return False
        self._text = self._text[self._at :] + piece
        self._at = 0
        return True

    def _object(self) -> dict[str, Any] | None:
        """Return the object that begins here; None if it is invalid or not complete yet."""
        try:
            value, end = _scan(self._text, self._at)
        except (ValueError, RecursionError) as error:
            return None if self._is_cut(error) and self._more() else self._rescue()
        self._at = end
        if type(value) is not dict:
            self._left_out["not an object"] += 1
            return None
        return value

    def _is_cut(self, error: Exception) -> bool:
        """Return whether the rest of the object may be in the next piece."""
        if len(self._text) - self._at > MAX_OBJECT:
            return False
        if isinstance(error, json.JSONDecodeError):
            return error.msg.startswith("Unterminated") or error.pos >= len(self._text) - NEAR_END
        # A number with too many digits, or nesting that is too deep.
        return False

    def _rescue(self) -> dict[str, Any] | None:
        """Parse an object in the slow way, which accepts more; skip it if that fails too."""
        try:
            value, self._at = _scan_slowly(self._text, self._at)
            if type(value) is dict:
                return value
        except (ValueError, RecursionError):
            pass
        line = self._skip()
        try:
            # Some tools write nan and inf as C prints them.
            value, _ = _scan_slowly(_BARE.sub(_word, line))
            if type(value) is dict:
                return value
        except (ValueError, RecursionError):
            pass
        self._left_out[BROKEN if len(line) < MAX_OBJECT else TOO_LONG] += 1
        return None

    def _skip(self) -> str:
        """Go to the next line that begins with an object; return the text that was skipped."""
        while (match := _NEXT.search(self._text, self._at)) is None:
            if len(self._text) - self._at > MAX_OBJECT:
                # A record this long is not kept: only its end is searched.
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
        passed = self._text[self._at : match.start()]
        self._at = match.end()
        return passed

    def _drop_to_next_line(self) -> None:
        while (match := _NEXT.search(self._text, self._at)) is None:
            self._at = max(self._at, len(self._text) - 1)
            if not self._more():
                self._at = len(self._text)
                return
        self._at = match.end()


def _word(match: re.Match[str]) -> str:
    sign = "-" if match[1] == "-" else ""
    return ("" if match[2].lower() == "nan" else sign) + _WORDS[match[2].lower()]


def exact_number(value: Any) -> int | Decimal | None:
    """Return a number of the file, also in quotes, without rounding; None if it is not a number."""
    kind = type(value)
    if kind is int or kind is Decimal:
        return value  # type: ignore[no-any-return]
    if kind is float and math.isfinite(value) and abs(value) < 1e19:
        return Decimal(repr(value))
    if kind is str and len(value) <= MAX_DIGITS:
        try:
            number = Decimal(value)
        except InvalidOperation:
            return None
        return number if number.is_finite() and number.adjusted() < 19 else None
    return None


def nanoseconds(value: int | Decimal, unit: int) -> int:
    """Return ``value`` units as nanoseconds, rounded to a whole number."""
    return value * unit if isinstance(value, int) else int((value * unit).to_integral_value())


def as_number(value: Any) -> float | None:
    """Return a value of a counter as a float, None if it is not a number."""
    if isinstance(value, bool | int | float | Decimal):
        return as_float(value)
    return NOT_FINITE.get(value) if isinstance(value, str) else None


def encode_attributes(attributes: Mapping[str, Any]) -> bytes:
    """Return attributes in the encoding of the journal."""
    global _quick
    if _quick is None:
        import msgspec

        _quick = msgspec.json.Encoder(decimal_format="number").encode
    try:
        data = _quick(attributes)
        if b"null" not in data and len(data) <= MAX_TEXT:
            return data
    except Exception:  # lone surrogates, integers past 64 bits
        pass
    return encode(with_floats(attributes))


def with_floats(value: Any, depth: int = 0) -> Any:
    """Return the value with floats instead of exact fractions."""
    if isinstance(value, Decimal):
        return float(value)
    if depth > MAX_DEPTH:
        return f"<{type(value).__name__}: nested too deeply>"
    if isinstance(value, Mapping):
        return {key: with_floats(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [with_floats(item, depth + 1) for item in value]
    return value


def text(value: Any, otherwise: str = "") -> str:
    """Return the value as a text; ``otherwise`` if it is None."""
    if type(value) is str:
        return value
    return otherwise if value is None else str(with_floats(value))[:2000]
