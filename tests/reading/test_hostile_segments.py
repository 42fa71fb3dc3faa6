"""Malicious segments: correct checksums with wrong contents."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from stepwell import open_run
from stepwell.analysis.report import report
from stepwell.journal.format import LINK_WORD, SPAN_SLOTS
from stepwell.journal.seal import split_planes
from tests.harness.marks import others_in_full
from tests.reading.strangers import Read, decode_everything, frame, read_everything, spans_live

NAME = 1 << 16
PROCESS = "rank-00000.attempt-0.pid-1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A process folder without records."""
    folder = tmp_path / "run" / PROCESS
    folder.mkdir(parents=True)
    document: dict[str, Any] = {
        "process": PROCESS,
        "run": "r",
        "attempt": 0,
        "rank": 0,
        "host": "h",
    }
    document |= {"boot": "b", "pid": 1, "start": 1, "status": "finished", "anchors": [[0, 10**18]]}
    (folder / "process.json").write_text(json.dumps(document))
    (folder / "names.jsonl").write_text('{"id":1,"kind":"span","category":"","name":"x"}\n')
    return folder


def rows(folder: Path) -> list[tuple[int, int | None]]:
    """(depth, parent's position) of each span, in order of their ids."""
    spans = open_run(folder.parent).spans().sort("id").collect()
    at = {identity: i for i, identity in enumerate(spans["id"])}
    return [(d, at.get(p)) for d, p in zip(spans["depth"], spans["parent"], strict=True)]


def test_a_parent_beyond_the_segment_is_none(folder: Path) -> None:
    """Slots that do not exist, or are higher, are not accepted as parents."""
    metas = [0, NAME | 0xFFFF, NAME | 3, NAME, NAME | 3]
    (folder / "spans-00000.live").write_bytes(spans_live(metas, [0, 1, 2, 3, 4], [0, 9, 9, 9, 9]))
    assert rows(folder) == [(0, None), (0, None), (0, None), (1, 2)]


def test_parents_in_a_circle_are_none(folder: Path) -> None:
    """A span that is its own ancestor would have no depth."""
    metas = [0, NAME | 1, NAME | 3, NAME | 2]
    (folder / "spans-00000.live").write_bytes(spans_live(metas, [0, 1, 2, 3], [0, 9, 9, 9]))
    assert rows(folder) == [(0, None), (0, None), (1, 1)]


@pytest.mark.full
def test_the_deepest_chain_that_fits_is_read(folder: Path) -> None:
    """Every slot is the child of the one before."""
    metas = [0] + [NAME | slot for slot in range(SPAN_SLOTS - 1)]
    starts, ends = list(range(SPAN_SLOTS)), [0] + [SPAN_SLOTS] * (SPAN_SLOTS - 1)
    (folder / "spans-00000.live").write_bytes(spans_live(metas, starts, ends))
    assert rows(folder)[-1] == (SPAN_SLOTS - 2, SPAN_SLOTS - 3)


def test_links_that_lead_around_in_circles_end(folder: Path) -> None:
    """Segments that say their spans began in each other are read all the same."""
    for seq in range(3):
        elsewhere = ((seq + 1) % 3 << 14 | 2) + 1
        metas = [0, 1 | LINK_WORD, NAME | 1]
        data = spans_live(metas, [0, elsewhere, 5], [0, 0, 9], seq)
        (folder / f"spans-{seq:05d}.live").write_bytes(data)
    assert read_everything(folder.parent)["spans"] == 3


@pytest.mark.parametrize(
    "read_chain", [decode_everything, pytest.param(read_everything, marks=pytest.mark.full)]
)
@pytest.mark.parametrize("towards", others_in_full([-1, 1], [1]))
def test_a_chain_through_thousands_of_segments_is_read(
    folder: Path, towards: int, read_chain: Read
) -> None:
    """The span of each segment has its parent in the previous or the next segment."""
    archive = b""
    for seq in range(1, 2001):
        head = {"process": PROCESS, "kind": "spans", "seq": seq, "lane": 0, "thread": "t"}
        link = (seq + towards << 14 | 2) + 1
        columns = [[0, 1 | LINK_WORD, NAME | 1], [0, link, 5], [0, 0, 9]]
        words = [b"".join(n.to_bytes(8, "little") for n in column) for column in columns]
        archive += frame(json.dumps(head).encode(), b"".join(map(split_planes, words)))
    (folder / "spans-00000.zst").write_bytes(archive)
    assert read_chain(folder.parent)["spans"] == 2000


def test_a_link_to_nowhere_is_passed_over(folder: Path) -> None:
    """Identities of spans and slots that do not exist change nothing for the others."""
    metas = [0, 0xFFFF | LINK_WORD, 2 | LINK_WORD, NAME | 2]
    data = spans_live(metas, [0, 2**64 - 1, 2**64 - 1, 5], [0, 0, 0, 9])
    (folder / "spans-00000.live").write_bytes(data)
    assert read_everything(folder.parent)["spans"] == 1


@pytest.mark.parametrize("word", [1, 2**63, 2**64 - 1, 0x5555555555555555])
def test_any_word_anywhere(folder: Path, word: int) -> None:
    """A segment full of one word, whichever it is, raises nothing."""
    words = [word] * SPAN_SLOTS
    (folder / "spans-00000.live").write_bytes(spans_live(words, words, words))
    data = spans_live(words, words, words)
    metrics = data.replace(b'"spans"', b'"metrics"', 1)
    attributes = data.replace(b'"spans"', b'"attributes"', 1)
    (folder / "metrics-00001.live").write_bytes(metrics)
    (folder / "attributes-00000.live").write_bytes(attributes)
    read_everything(folder.parent)
    assert report(open_run(folder.parent)).ranks == 1


HEADER: dict[str, Any] = {"process": PROCESS, "seq": 0, "lane": 0, "thread": "t"}
VALUES: list[Any] = [None, -1, 2**40, 2**80, 0.5, "x", "\ud800", [], [[1]], [["a", "b"]], {}]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["spans", "metrics", "attributes"])
@pytest.mark.parametrize("state", ["sealed", "live"])
def test_any_header_field_may_be_anything(folder: Path, kind: str, state: str, read: Read) -> None:
    """Each field of a segment's header in turn is of a wrong type, too large or missing."""
    live = spans_live([0, NAME], [0, 1], [0, 2])
    for key in ("stepwell", "process", "kind", "seq", "lane", "thread", "links", "open", "time"):
        for value in VALUES:
            header = {"stepwell": 1, **HEADER, "kind": kind, key: value}
            head = json.dumps(header).encode()
            if state == "sealed":
                (folder / "spans-00000.zst").write_bytes(frame(head, bytes(96)))
            else:
                data = head.ljust(4096, b"\0") + live[4096:]
                (folder / f"{kind}-00000.live").write_bytes(data)
            read(folder.parent)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("kind", ["spans", "metrics", "attributes"])
@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"x",
        bytes(23),
        bytes(25),
        b"\xff" * 960,
        b"[5]\n",
        b"[-1]\n" + bytes(80),
        b"[999999999999]\nabc",
        b"[x]\n",
        b"[1]\n\x01\x00\x00\x00\xff\xff\xff\xff{}",
        b"[1]\n" + bytes(8) + b"\xff\xfe\n{}",
    ],
)
def test_any_payload_may_be_anything(folder: Path, kind: str, payload: bytes) -> None:
    """Contents of a wrong size or form are left out."""
    head = {**HEADER, "kind": kind}
    spans = {**HEADER, "kind": "spans"}
    good = b"".join(split_planes(b"".join(n.to_bytes(8, "little") for n in c))
                    for c in ([0, NAME | 1 << 40], [0, 1], [0, 2]))  # fmt: skip
    data = frame(json.dumps(head).encode(), payload)
    data += frame(json.dumps({**spans, "seq": 1}).encode(), good)
    (folder / "spans-00000.zst").write_bytes(data)
    assert read_everything(folder.parent)["spans"] >= 1


@pytest.mark.parametrize("kind", ["spans", "metrics", "attributes", "worker"])
def test_a_bomb_is_not_unpacked(folder: Path, kind: str) -> None:
    """A frame of a few kilobytes that unpacks to 300 MB costs none of them."""
    head = json.dumps({**HEADER, "kind": kind}).encode()
    data = frame(head, bytes(300 << 20))
    assert len(data) < 50_000
    name = "workers" if kind == "worker" else "metrics" if kind == "metrics" else "spans"
    (folder / f"{name}-00000.zst").write_bytes(data)
    read_everything(folder.parent)
    tracemalloc.start()
    read_everything(folder.parent)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50 << 20


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"process.json": 5}', b'{"process.json": {}}', b"\xff", b"[" * 100_000],
)
def test_a_folded_worker_may_be_anything(folder: Path, content: bytes) -> None:
    """Documents of workers are checked as those of processes are."""
    head = json.dumps({"process": "w", "kind": "worker", "seq": 0}).encode()
    (folder / "workers-00000.zst").write_bytes(frame(head, content))
    assert read_everything(folder.parent)["processes"] == 1
