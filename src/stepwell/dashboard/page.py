"""The files of the page, which ``npm run build`` in ``ui/`` makes."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path

from stepwell._core.errors import StepwellError

FOLDER = Path(__file__).parent / "static"
PAGE_TYPES = {
    "index.html": "text/html; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "app.css": "text/css; charset=utf-8",
}


@cache
def page_file(name: str) -> tuple[bytes, str, str]:
    """Return content, media type and entity tag of a file of the page."""
    try:
        body = (FOLDER / name).read_bytes()
    except OSError:
        raise StepwellError(
            "The page is not built. In a clone, run `make ui` (needs Node.js or pip); "
            "an installed package contains it."
        ) from None
    return body, PAGE_TYPES[name], f'"{sha256(body).hexdigest()[:16]}"'
