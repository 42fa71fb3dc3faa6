"""Images and figures are kept as pictures, pixel by pixel."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell import Run
from tests.loggers.items.reading import logged, pixels
from tests.loggers.logged import Own, content

torch = pytest.importorskip("torch")


RED = np.zeros((4, 6, 3), np.uint8)
RED[..., 0] = 255

IMAGES: list[tuple[str, Any, tuple[int, int, int], int]] = [
    # name, item, shape of the pixels, value of the first one
    ("HWC bytes", RED, (4, 6, 3), 255),
    ("CHW tensor", torch.full((3, 4, 6), 0.5), (4, 6, 3), 128),
    ("CHW bytes", torch.full((3, 4, 6), 7, dtype=torch.uint8), (4, 6, 3), 7),
    ("HW floats", np.full((4, 6), 1.0), (4, 6, 1), 255),
    ("HW to 255", np.full((4, 6), 200.0), (4, 6, 1), 200),
    ("alpha", np.full((4, 6, 4), 9, np.uint8), (4, 6, 4), 9),
    ("booleans", np.ones((4, 6), bool), (4, 6, 1), 255),
    ("integers", np.full((4, 6), 300), (4, 6, 1), 255),
    ("negative", np.full((4, 6), -1.0), (4, 6, 1), 0),
    ("NaN", np.full((4, 6), math.nan), (4, 6, 1), 0),
    ("bfloat16", torch.full((1, 4, 6), 1.0, dtype=torch.bfloat16), (4, 6, 1), 255),
    ("with gradient", torch.ones(3, 4, 6, requires_grad=True), (4, 6, 3), 255),
    ("both may be channels, torch", torch.ones(3, 5, 3), (5, 3, 3), 255),
    ("both may be channels, numpy", np.ones((3, 5, 3)), (3, 5, 3), 255),
    ("four of them", torch.ones(4, 3, 4, 6), (10, 14, 3), 255),
    ("three of them", np.ones((3, 4, 6, 1)), (10, 14, 1), 255),
]


@pytest.mark.parametrize(
    ("item", "shape", "first"), [row[1:] for row in IMAGES], ids=[row[0] for row in IMAGES]
)
def test_images(
    recorded: Run, logger: Own, item: Any, shape: tuple[int, int, int], first: int
) -> None:
    """Arrays and tensors of all usual layouts are PNG files."""
    logger.log(item, "samples/first", kind="image")
    (one,) = logged(recorded)
    found = pixels(content(recorded, one))
    assert found.shape == shape
    assert found[0, 0, 0] == first
    assert (one.file, one.media) == ("samples/first.png", "image/png")
    assert (one.attributes["width"], one.attributes["height"]) == (shape[1], shape[0])


def test_an_image_keeps_every_pixel(recorded: Run, logger: Own) -> None:
    """As another reader sees it."""
    image = np.random.default_rng(0).integers(0, 256, (7, 5, 3), np.uint8)
    logger.log(image, "noise", kind="image")
    logger.log(image.transpose(2, 0, 1), "turned", kind="image", dataformats="CHW")
    one, two = logged(recorded)
    assert (pixels(content(recorded, one)) == image).all()
    assert (pixels(content(recorded, two)) == image).all()
    assert "dataformats" not in two.attributes
    matplotlib = pytest.importorskip("matplotlib.image")
    read = matplotlib.imread(io.BytesIO(content(recorded, one)))
    assert (np.round(read * 255) == image).all()


def test_an_image_of_pillow_and_one_in_a_file(recorded: Run, logger: Own, tmp_path: Path) -> None:
    """A file is kept as it is."""
    pil = pytest.importorskip("PIL.Image")
    picture = pil.fromarray(RED)
    picture.save(tmp_path / "red.jpg")
    logger.log(picture, "pillow", kind="image")
    logger.log(tmp_path / "red.jpg", "file", kind="image")
    one, two = logged(recorded)
    assert (np.asarray(pil.open(io.BytesIO(content(recorded, one)))) == RED).all()
    assert content(recorded, two) == (tmp_path / "red.jpg").read_bytes()
    assert (two.file, two.media) == ("file.jpg", "image/jpeg")


@pytest.mark.parametrize(
    ("identifier", "file", "begins"),
    [
        ("plot", "plot.png", b"\x89PNG"),
        ("plot.svg", "plot.svg", b"<?xml"),
        ("a/plot.pdf", "a/plot.pdf", b"%PDF"),
    ],
)
def test_figures(recorded: Run, logger: Own, identifier: str, file: str, begins: bytes) -> None:
    """Of Matplotlib, in the format that the name asks for; axes stand for their figure."""
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    figure = Figure()
    axes = figure.subplots()
    axes.plot([1, 2])
    logger.log(figure, identifier, kind="figure")
    logger.log(axes, identifier, kind="figure")
    for one in logged(recorded):
        assert one.file == file
        assert content(recorded, one).startswith(begins)


class PlotlyLike:
    """What Plotly's figures have."""

    def to_plotly_json(self) -> dict[str, Any]:
        return {}

    def to_html(self, include_plotlyjs: str) -> str:
        return f"<html>{include_plotlyjs}</html>"


def test_a_figure_of_plotly_is_a_page(recorded: Run, logger: Own) -> None:
    """With all that can be done with it there."""
    logger.log(PlotlyLike(), "chart", kind="figure")
    (one,) = logged(recorded)
    assert (one.file, one.media) == ("chart.html", "text/html")
    assert content(recorded, one) == b"<html>cdn</html>"
