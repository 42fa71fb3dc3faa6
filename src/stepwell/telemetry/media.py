"""Values for ``log`` other than numbers: images, histograms, tables and texts, with captions.

These classes only hold their arguments. ``stepwell.loggers.items`` converts them when they are logged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar


class Media:
    """Base class of values to log that are not numbers.

    Attributes:
        kind: the kind of item that it becomes.
        data: the first argument.
        options: further arguments of the conversion.
    """

    kind: ClassVar[str] = ""

    def __init__(self, data: Any, caption: str | None, **options: Any) -> None:
        self.data = data
        self.options = {name: value for name, value in options.items() if value is not None}
        if caption is not None:
            self.options["caption"] = str(caption)

    @property
    def caption(self) -> str | None:
        """Text shown below it."""
        return self.options.get("caption")

    def __repr__(self) -> str:
        return f"<stepwell.{type(self).__name__} of {type(self.data).__name__}>"


class Image(Media):
    """An image, stored as PNG. A tensor on an accelerator is copied, which waits for the accelerator.

    Args:
        data: a NumPy array or tensor (height × width, × channels, or channels first; several become a
            grid), a PIL image, a figure of Matplotlib or Plotly, or the path of an image. Floats are
            from 0 to 1, integers from 0 to 255.
        caption: text shown below it.
        dataformats: the axes if the shape is ambiguous, such as "HWC", "CHW" or "NCHW".
    """

    kind = "figure"

    def __init__(
        self,
        data: Any,
        caption: str | None = None,
        *,
        dataformats: str | None = None,
    ) -> None:
        super().__init__(data, caption, dataformats=dataformats)


class Histogram(Media):
    """The distribution of many numbers. A tensor on an accelerator is copied, which waits for it.

    Args:
        data: an array, a tensor or a sequence of numbers; counts if ``edges`` are given.
        bins: number of bins of equal width.
        edges: the limits of the bins, one more than counts.
        caption: text shown below it.
    """

    kind = "histogram"

    def __init__(
        self,
        data: Any,
        bins: int = 64,
        *,
        edges: Sequence[float] | None = None,
        caption: str | None = None,
    ) -> None:
        super().__init__(data, caption, bins=bins, edges=edges)


class Table(Media):
    """A table, stored as JSON.

    Args:
        data: rows as sequences (with ``columns``) or as dicts, a dict of columns, a two-dimensional
            array, or a pandas or Polars DataFrame.
        columns: the names of the columns.
        caption: text shown below it.
    """

    kind = "table"

    def __init__(
        self,
        data: Iterable[Any] | Mapping[str, Iterable[Any]] | Any,
        columns: Sequence[str] | None = None,
        *,
        caption: str | None = None,
    ) -> None:
        super().__init__(data, caption, columns=columns)


class Text(Media):
    """A text of any length; backends show it as Markdown if they can.

    Args:
        data: the text.
        caption: text shown below it.
    """

    kind = "text"

    def __init__(self, data: str, caption: str | None = None) -> None:
        super().__init__(data, caption)
