"""Sealing keeps every word of a segment, in a tenth of its size."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from stepwell.journal.archive import PREFIX
from stepwell.journal.format import (
    ATTRIBUTE_BYTES,
    CONTEXT_NAME,
    HEADER_BYTES,
    LINK_WORD,
    METRIC_BYTES,
    SPAN_BYTES,
    SPAN_SLOTS,
    pack_header,
    parse_file,
    parse_header,
)
from stepwell.journal.seal import join_planes, seal, split_planes
from stepwell.reading.segments import RecordedSegment, sealed_segments

WORDS = st.lists(st.integers(0, 2**64 - 1), max_size=200)


def pages(kind: str, size: int, body: bytes) -> bytes:
    header = pack_header({"kind": kind, "seq": 3, "lane": 1, "thread": "t", "native": 5})
    return (header.ljust(HEADER_BYTES, b"\0") + body).ljust(size, b"\0")


def sealed(tmp_path: Path, kind: str, size: int, body: bytes) -> RecordedSegment:
    frame = seal("proc", pages(kind, size, body))
    assert frame is not None
    place = tmp_path / ("metrics-00000.zst" if kind == "metrics" else "spans-00000.zst")
    place.write_bytes(frame)
    [segment] = sealed_segments(tmp_path)
    return segment


def pack_columns(*columns: list[int]) -> bytes:
    return b"".join(
        struct.pack(f"{SPAN_SLOTS}Q", *c, *[0] * (SPAN_SLOTS - len(c))) for c in columns
    )


@given(WORDS)
def test_planes_and_words_are_each_other_s_inverse(words: list[int]) -> None:
    """Splitting words by byte position and joining them again changes nothing."""
    data = struct.pack(f"<{len(words)}Q", *words)
    planes = split_planes(data)
    assert join_planes(planes) == data
    assert planes[: len(words)] == bytes(word & 0xFF for word in words)
    assert planes[len(planes) - len(words) :] == bytes(word >> 56 for word in words)


@given(rows=st.lists(st.tuples(*[st.integers(1, 2**64 - 1)] * 3), min_size=1, max_size=50))
def test_span_columns_come_back(
    rows: list[tuple[int, int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Metas, starts and ends of a sealed segment are those that were written."""
    columns = [list(column) for column in zip((0, 0, 0), *rows, strict=True)]
    body = pack_columns(*columns)
    segment = sealed(tmp_path_factory.mktemp("s"), "spans", SPAN_BYTES, body)
    assert [list(map(int, column)) for column in segment.columns] == columns
    assert (segment.seq, segment.lane, segment.thread, segment.process) == (3, 1, "t", "proc")


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 2**64 - 1), st.floats(), st.integers(0, 2**64 - 1)), max_size=50
    )
)
def test_metric_rows_come_back(
    rows: list[tuple[int, float, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Clock, value bits, step word and name word of every row are those that were written."""
    body = b"".join(struct.pack("@QdQQ", *row, i + 1) for i, row in enumerate(rows))
    segment = sealed(tmp_path_factory.mktemp("m"), "metrics", METRIC_BYTES, body)
    unpacked = [tuple(map(int, row)) for row in zip(*segment.columns, strict=True)]
    assert unpacked == list(struct.iter_unpack("@QQQQ", body))


TEXTS = st.lists(
    st.text(st.characters(exclude_characters="\0\n", exclude_categories=("Cs",)), min_size=1),
    min_size=1,
    max_size=30,
)


@given(texts=TEXTS)
def test_attribute_texts_come_back_at_their_offsets(
    texts: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Every text is found where it was put, though equal ones are kept once."""
    body, where = b"", {}
    for text in texts:
        where[(HEADER_BYTES + len(body)) // 8] = text
        body += text.encode() + b"\0"
        body += b"\0" * (-len(body) % 8)
    segment = sealed(tmp_path_factory.mktemp("a"), "attributes", ATTRIBUTE_BYTES, body)
    assert segment.texts == where
    assert segment.header["sets"] == len(texts)


def test_equal_attribute_sets_are_kept_once() -> None:
    """Ten thousand times the same text costs little more than its offsets."""
    body = b'{"a":1}\0' * 10_000
    frame = seal("p", pages("attributes", ATTRIBUTE_BYTES, body))
    assert frame is not None
    _, head, _, _ = PREFIX.unpack(frame[: PREFIX.size])
    payload = zstandard.ZstdDecompressor().decompress(frame[PREFIX.size + head :])
    assert payload.count(b'{"a":1}') == 1
    assert len(payload) == len(b"[10000]\n") + 8 * 10_000 + len(b'{"a":1}')


@pytest.mark.parametrize("kind", ["spans", "attributes"])
def test_a_segment_that_was_never_used_is_nothing(kind: str) -> None:
    """No frame is made of a segment without a record, nor of one without a header."""
    size = {"spans": SPAN_BYTES, "attributes": ATTRIBUTE_BYTES}[kind]
    assert seal("p", pages(kind, size, b"")) is None
    assert seal("p", bytes(size)) is None


def summary(metas: list[int], starts: list[int], ends: list[int]) -> dict[str, Any]:
    import json

    frame = seal("p", pages("spans", SPAN_BYTES, pack_columns(metas, starts, ends)))
    assert frame is not None
    _, head, _, _ = PREFIX.unpack(frame[: PREFIX.size])
    header: dict[str, Any] = json.loads(frame[PREFIX.size : PREFIX.size + head])
    return header


def test_the_header_of_a_sealed_segment_sums_it_up() -> None:
    """It has the first and last start of spans that began here, and the number of open ones."""
    link = 2 | LINK_WORD
    fields = summary([0, link, 7 << 16, 8 << 16, 9 << 16], [0, 501, 10, 30, 40], [0, 0, 0, 35, 0])
    assert fields["slots"] == 5
    assert fields["links"] == [[2, 500]]
    assert fields["time"] == [30, 40]
    assert fields["open"] == 2


def test_a_link_that_stands_for_a_span_is_no_continuation() -> None:
    """A slot that targets itself does not say that the span went on here."""
    fields = summary([0, 1 | LINK_WORD, 1 | 7 << 16], [0, 501, 30], [0, 0, 35])
    assert fields["links"] == []
    assert fields["open"] == 0


def test_a_header_is_read_only_when_it_is_complete() -> None:
    """Half a header page, another format or invalid JSON is not a header."""
    fields = {"kind": "spans", "seq": 1, "lane": 2}
    page = pack_header(fields).ljust(HEADER_BYTES, b"\0")
    assert parse_header(page) == {"stepwell": 1, **fields}
    assert parse_header(page[:10]) is None
    assert parse_header(page.replace(b": 1,", b": 9,", 1)) is None
    assert parse_header(bytes(HEADER_BYTES)) is None
    assert parse_header(b"[1]") is None
    assert parse_header(b"[" * HEADER_BYTES) is None
    for damage in ({"kind": []}, {"kind": "x"}, {"seq": -1}, {"lane": 2**31}, {"lane": None}):
        assert parse_header(pack_header({**fields, **damage})) is None


def test_a_file_that_was_cut_off_is_sealed_as_far_as_it_goes() -> None:
    """A missing part of a file counts as empty, as for readers."""
    whole = pages("spans", SPAN_BYTES, pack_columns([0, 7 << 16], [0, 10], [0, 35]))
    assert seal("p", whole[:-100]) == seal("p", whole) == seal("p", whole + b"more")


def test_the_name_of_a_file_has_the_number_of_its_segment() -> None:
    """Where the one in the header is damaged, it would be taken for another segment."""
    page = pack_header({"kind": "spans", "seq": 0, "lane": 2})
    assert (parse_file("spans-00003.live", page) or {})["seq"] == 3
    assert (parse_file("", page) or {})["seq"] == 0
    assert parse_file(f"spans-{2**31}.live", page) is None


def test_a_summary_tells_when_spans_began_and_ended(tmp_path: Path) -> None:
    """The earliest and the latest start, in whatever order they stand, and the latest end, flags apart."""
    carried, failed = 1 << 62, 1 << 63
    metas = [0, 1 << 16, LINK_WORD | 3, 1 << 16, 1 << 16, 1 << 16]
    starts = [0, 50, 501, 7, 20, 70]
    ends = [0, 55, 0, 90, 95 | failed, carried]
    body = pack_columns(metas, starts, ends)
    block_header = sealed(tmp_path, "spans", SPAN_BYTES, body).header
    # The span in slot 3 began in another segment, at 7.
    assert block_header["time"] == [20, 70]
    assert block_header["until"] == 95


def test_a_summary_tells_of_the_steps_that_were_set(tmp_path: Path) -> None:
    """First and last change, what to, and the range of steps; nothing where there was none."""
    rows = [
        (10, 5 << 24, CONTEXT_NAME),
        (30, 3 << 24 | 2, CONTEXT_NAME),
        (20, 9 << 24, CONTEXT_NAME),
    ]
    body = b"".join(struct.pack("@QQdQ", clock, word, 0.0, name) for clock, word, name in rows)
    body += struct.pack("@QQdQ", 40, 77, 1.5, 4)
    block_header = sealed(tmp_path, "metrics", METRIC_BYTES, body).header
    assert block_header["time"] == [10, 40]
    assert block_header["until"] == 40
    assert block_header["context"] == [10, 30, 5 << 24, 3 << 24 | 2, 3, 9]
    plain = sealed(tmp_path, "metrics", METRIC_BYTES, struct.pack("@QQdQ", 40, 77, 1.5, 4)).header
    assert plain["context"] == []
