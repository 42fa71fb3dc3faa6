"""Archives: blocks that were written completely are read, whatever follows them."""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
import zstandard

from stepwell.journal.archive import MAGIC, Archive, archive_files, pack, read_blocks

HEADER = {"process": "p", "kind": "spans", "seq": 0}


def frame(seq: int, payload: bytes = b"payload") -> bytes:
    return pack({**HEADER, "seq": seq}, payload)


def read(folder: Path) -> list[tuple[int, bytes]]:
    return [
        (f.header["seq"], f.payload())
        for p in archive_files(folder, "spans")
        for f in read_blocks(p)
    ]


def test_a_frame_is_laid_out_as_documented(tmp_path: Path) -> None:
    """Magic, lengths and crc32 in little endian, then a JSON header, then zstd."""
    data = frame(5, b"x" * 1000)
    magic, head_size, size, check = struct.unpack("<IIII", data[:16])
    head, packed = data[16 : 16 + head_size], data[16 + head_size :]
    assert (magic, len(packed), zlib.crc32(head + packed)) == (MAGIC, size, check)
    assert head == b'{"process":"p","kind":"spans","seq":5}'
    assert zstandard.ZstdDecompressor().decompress(packed) == b"x" * 1000


def test_frames_are_read_in_the_order_they_were_appended(tmp_path: Path) -> None:
    """Blocks are read as they were appended."""
    archive = Archive(tmp_path, "spans")
    for seq in range(5):
        archive.append(frame(seq, bytes([seq]) * seq))
    assert read(tmp_path) == [(seq, bytes([seq]) * seq) for seq in range(5)]
    assert [p.name for p in tmp_path.iterdir()] == ["spans-00000.zst"]


def test_the_next_file_is_begun_when_one_is_large(tmp_path: Path) -> None:
    """A file that reached the limit is left alone from then on."""
    archive = Archive(tmp_path, "spans", roll_bytes=2 * len(frame(0)))
    for seq in range(5):
        archive.append(frame(seq))
    names = ["spans-00000.zst", "spans-00001.zst", "spans-00002.zst"]
    assert [p.name for p in archive_files(tmp_path, "spans")] == names
    assert [seq for seq, _ in read(tmp_path)] == [0, 1, 2, 3, 4]


def test_a_new_writer_never_appends_to_an_old_file(tmp_path: Path) -> None:
    """The old file may end in a torn frame, so a restarted writer takes the next one."""
    Archive(tmp_path, "spans").append(frame(0))
    with (tmp_path / "spans-00000.zst").open("ab") as file:
        file.write(frame(1)[:-1])
    Archive(tmp_path, "spans").append(frame(2))
    assert [seq for seq, _ in read(tmp_path)] == [0, 2]


@pytest.mark.parametrize("left", [1, 15, 16, 17, 40, -1])
def test_a_torn_tail_hides_no_earlier_frame(tmp_path: Path, left: int) -> None:
    """Wherever the last frame was cut off, those before it are read."""
    path = tmp_path / "spans-00000.zst"
    path.write_bytes(frame(0) + frame(1) + frame(2)[:left])
    assert [seq for seq, _ in read(tmp_path)] == [0, 1]


def test_any_corrupted_byte_is_noticed(tmp_path: Path) -> None:
    """A block with one wrong byte, anywhere, is not returned."""
    path = tmp_path / "spans-00000.zst"
    good, damaged = frame(0), frame(1)
    for at in range(len(damaged)):
        wrong = bytearray(damaged)
        wrong[at] ^= 0x55
        path.write_bytes(good + bytes(wrong))
        assert [seq for seq, _ in read(tmp_path)] == [0], at


def test_a_short_write_is_an_error_and_the_file_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame that a full disk cut off raises; tried again, it goes to a fresh file."""
    archive = Archive(tmp_path, "spans")
    archive.append(frame(0))
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:20]))
    with pytest.raises(OSError, match="short write"):
        archive.append(frame(1))
    monkeypatch.undo()
    archive.append(frame(1))
    assert [seq for seq, _ in read(tmp_path)] == [0, 1]
    assert len(archive_files(tmp_path, "spans")) == 2


def test_a_failed_write_is_an_error_and_tried_again_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENOSPC reaches the caller, and the next try succeeds."""
    archive = Archive(tmp_path, "spans")

    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        archive.append(frame(0))
    monkeypatch.undo()
    archive.append(frame(0))
    assert [seq for seq, _ in read(tmp_path)] == [0]


def signed(head: bytes, packed: bytes, /, **wrong: Any) -> bytes:
    sizes = {"head": len(head), "size": len(packed), **wrong}
    check = zlib.crc32(head + packed)
    return struct.pack("<IIII", MAGIC, sizes["head"], sizes["size"], check) + head + packed


@pytest.mark.parametrize("head", [b"", b"{", b"\xff\xff", b"[" * 100_000])
def test_a_header_that_is_no_json_ends_the_file(tmp_path: Path, head: bytes) -> None:
    """A malicious block with a correct checksum raises nothing."""
    (tmp_path / "spans-00000.zst").write_bytes(frame(0) + signed(head, b""))
    assert [seq for seq, _ in read(tmp_path)] == [0]


@pytest.mark.parametrize("sizes", [{"head": 2**32 - 1}, {"size": 2**32 - 1}, {"size": 2**28}])
def test_absurd_sizes_end_the_file(tmp_path: Path, sizes: dict[str, int]) -> None:
    """Lengths larger than the file, or than any frame of ours, are not believed."""
    (tmp_path / "spans-00000.zst").write_bytes(frame(0) + signed(b"{}", b"x" * 100, **sizes))
    assert [seq for seq, _ in read(tmp_path)] == [0]


def test_a_payload_that_unpacks_to_gigabytes_is_refused(tmp_path: Path) -> None:
    """The size that a frame declares is looked at before anything is unpacked."""
    import tracemalloc

    one = zstandard.ZstdCompressor().compress(bytes(300 << 20))
    path = tmp_path / "spans-00000.zst"
    path.write_bytes(signed(b'{"process":"p","kind":"spans","seq":0}', one))
    [bomb] = read_blocks(path)
    tracemalloc.start()
    with pytest.raises(ValueError, match="too large"):
        bomb.payload()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_payload_that_does_not_say_its_size_is_refused(tmp_path: Path) -> None:
    """Valid blocks always state their size; a block that does not is refused."""
    packer = zstandard.ZstdCompressor(write_content_size=False)
    path = tmp_path / "spans-00000.zst"
    path.write_bytes(signed(b'{"process":"p","kind":"spans","seq":0}', packer.compress(b"x" * 99)))
    [strange] = read_blocks(path)
    with pytest.raises(ValueError, match="too large"):
        strange.payload()


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_no_plain_file_is_not_opened(tmp_path: Path, kind: str) -> None:
    """Links are not followed, and a pipe is not waited for."""
    (tmp_path / "elsewhere").write_bytes(frame(0))
    path = tmp_path / "spans-00000.zst"
    if kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    assert list(read_blocks(path)) == []
