"""TensorBoard's file format, written by us and read by TensorBoard."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import pytest

from stepwell.loggers.backends.tensorboard import tfevents
from stepwell.loggers.backends.tensorboard.events import image_size
from stepwell.loggers.backends.tensorboard.tfevents import LARGE, PIECE, crc32c
from tests.loggers.delivering import PNG

loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")

NS = 1_700_000_000_500_000_000


def read(path: Path) -> list[Any]:
    """The events of a file as TensorBoard has them; it checks every checksum."""
    return list(loader.LegacyEventFileLoader(str(path)).Load())


def written(path: Path, *events: bytes) -> list[Any]:
    path.write_bytes(b"".join(map(tfevents.frame, (tfevents.file_version(NS), *events))))
    return read(path)[1:]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        # RFC 3720, B.4, and the usual check value.
        (b"", 0),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (b"123456789", 0xE3069283),
    ],
)
def test_checksums_are_those_of_the_standard(data: bytes, expected: int) -> None:
    assert crc32c(data) == expected


@pytest.mark.parametrize("size", [LARGE - 1, LARGE, LARGE + 1, LARGE + PIECE, 1_000_003])
def test_a_large_content_has_the_same_checksum_as_tensorboard_gives_it(size: int) -> None:
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import crc32c as theirs

    data = (bytes(range(256)) * (size // 256 + 1))[:size]
    assert crc32c(data) == theirs(data)


def test_a_file_begins_with_its_version_and_who_wrote_it(tmp_path: Path) -> None:
    written(tmp_path / "f")
    (first,) = read(tmp_path / "f")
    assert first.file_version == "brain.Event:2"
    assert first.source_metadata.writer == "stepwell"
    assert first.wall_time == NS / 1e9


@pytest.mark.parametrize("step", [0, 1, 127, 128, 1 << 40, -1, -(1 << 40)])
def test_a_scalar_has_its_tag_value_step_and_time(tmp_path: Path, step: int) -> None:
    (event,) = written(tmp_path / "f", tfevents.scalar("größe/ä 🙂", 0.5, step, NS))
    (value,) = event.summary.value
    assert (value.tag, value.simple_value) == ("größe/ä 🙂", 0.5)
    assert (event.step, event.wall_time) == (step, NS / 1e9)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.1, struct.unpack("<f", struct.pack("<f", 0.1))[0]),
        (math.inf, math.inf),
        (-math.inf, -math.inf),
        (1e300, math.inf),
        (-1e300, -math.inf),
        (3.4028234663852886e38, 3.4028234663852886e38),
        (3.4028235677973366e38, math.inf),
        (-0.0, -0.0),
        (1e-300, 0.0),
    ],
)
def test_numbers_are_what_32_bits_hold(tmp_path: Path, value: float, expected: float) -> None:
    (event,) = written(tmp_path / "f", tfevents.scalar("x", value, 0, NS))
    assert event.summary.value[0].simple_value == expected


def test_not_a_number_stays_that(tmp_path: Path) -> None:
    (event,) = written(tmp_path / "f", tfevents.scalar("x", math.nan, 0, NS))
    assert math.isnan(event.summary.value[0].simple_value)


def test_every_number_around_the_largest_can_be_written() -> None:
    edge = tfevents.MAX_FLOAT32
    for value in (
        math.nextafter(edge, 0),
        edge,
        math.nextafter(edge, math.inf),
        1.7976931348623157e308,
    ):
        tfevents.scalar("x", value, 0, NS)
        tfevents.scalar("x", -value, 0, NS)


def test_half_of_a_character_does_not_break_a_file(tmp_path: Path) -> None:
    events = [tfevents.text("a\ud800", "b\udfff", 0, NS), tfevents.scalar("\ud800", 1.0, 0, NS)]
    assert [e.summary.value[0].tag for e in written(tmp_path / "f", *events)] == ["a?", "?"]


def test_images_have_their_size_and_content(tmp_path: Path) -> None:
    (event,) = written(tmp_path / "f", tfevents.image("x", PNG, 3, NS, (1, 1, 3)))
    image = event.summary.value[0].image
    assert (image.width, image.height, image.colorspace) == (1, 1, 3)
    assert image.encoded_image_string == PNG


def test_the_size_of_an_image_is_in_its_first_bytes() -> None:
    jpeg = (
        b"\xff\xd8\xff\xe0\x00\x04ab\xff\xc0\x00\x11\x08"
        + struct.pack(">HH", 480, 640)
        + b"\x03abc"
    )
    assert image_size(PNG) == (1, 1, 3)
    assert image_size(b"GIF89a" + struct.pack("<HH", 20, 10) + b"rest") == (20, 10, 3)
    assert image_size(jpeg) == (640, 480, 3)
    for broken in (
        b"",
        b"\x89PNG",
        PNG[:20],
        b"\xff\xd8",
        b"\xff\xd8\xff\xe0\x00\x00" * 9,
        b"<svg/>",
    ):
        assert image_size(broken) is None
