"""The size of an image, from its first bytes: of those formats that browsers and TensorBoard show."""

from __future__ import annotations

PNG = b"\x89PNG\r\n\x1a\n"
PNG_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}
_NO_LENGTH = {0x01, *range(0xD0, 0xDA)}
_NO_FRAME = {0xC4, 0xC8, 0xCC}


def image_size(content: bytes) -> tuple[int, int, int] | None:
    """Width, height and number of channels of a PNG, JPEG or GIF; None of anything else."""
    if content[:8] == PNG and content[12:16] == b"IHDR" and len(content) > 25:
        width, height = _big(content[16:20]), _big(content[20:24])
        return width, height, PNG_CHANNELS.get(content[25], 3)
    if content[:6] in (b"GIF87a", b"GIF89a") and len(content) > 9:
        return int.from_bytes(content[6:8], "little"), int.from_bytes(content[8:10], "little"), 3
    return _jpeg_size(content) if content[:2] == b"\xff\xd8" else None


def _jpeg_size(content: bytes) -> tuple[int, int, int] | None:
    """From the first segment that begins a frame."""
    at = 2
    while at + 9 < len(content) and content[at] == 0xFF:
        marker = content[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in _NO_FRAME:
            height, width = _big(content[at + 5 : at + 7]), _big(content[at + 7 : at + 9])
            return width, height, content[at + 9]
        at += 2 if marker in _NO_LENGTH else 2 + max(2, _big(content[at + 2 : at + 4]))
    return None


def _big(data: bytes) -> int:
    return int.from_bytes(data, "big")
