"""Images as they come in: bytes, files, PIL's objects or data URLs, checked before anything decodes them.

Of untrusted bytes, only the header is read until type and size are known: a small file may unpack to gigabytes. A
remote URL is never fetched. Pillow is imported where an image is.
"""

from __future__ import annotations

import base64
import binascii
import io
from pathlib import Path
from typing import Any

from agentrl.errors import InvalidInput, require_extra

LARGEST_BYTES = 20 << 20
LARGEST_PIXELS = 1 << 24
FORMATS = {"PNG": "image/png", "JPEG": "image/jpeg", "GIF": "image/gif", "WEBP": "image/webp"}
"""Pillow's names of the formats that are taken, and their types."""


def data_url(source: Any) -> str:
    """The image as a data URL, checked.

    Args:
        source: bytes of a file, a path, a PIL image, or a data URL.

    Raises:
        InvalidInput: it is none of the four types, too large, broken, or somewhere else on the network.
    """
    data, kind = _check(_bytes(source))
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def url_of(url: str) -> str:
    """A data URL from somebody else, checked; a path or another URL is refused, and nothing is read or fetched.

    Raises:
        InvalidInput: see `data_url`.
    """
    if not url.startswith("data:"):
        raise InvalidInput(f"the image {url[:80]!r} is no data URL (data:image/…;base64,…); others are not fetched")
    return data_url(url)


def picture(url: str) -> Any:
    """The first picture of a data URL as PIL's image in RGB.

    Raises:
        InvalidInput: see `data_url`.
    """
    from PIL import Image

    data, _ = _check(_decode(url))
    with Image.open(io.BytesIO(data)) as opened:
        return opened.convert("RGB")


def _bytes(source: Any) -> bytes:
    if isinstance(source, str) and source.startswith("data:"):
        return _decode(source)
    if isinstance(source, str) and "://" in source:
        raise InvalidInput(f"the image {source[:80]!r} is a remote URL, which is not fetched; send a data URL")
    if isinstance(source, str | Path):
        try:
            size = Path(source).stat().st_size
            _refuse_large(size)
            return Path(source).read_bytes()
        except (OSError, ValueError) as error:
            if isinstance(error, InvalidInput):
                raise
            raise InvalidInput(f"the image {str(source)[:80]!r} can't be read: {error}") from error
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    if hasattr(source, "save") and hasattr(source, "getbands"):
        out = io.BytesIO()
        source.convert("RGB").save(out, "PNG")
        return out.getvalue()
    raise InvalidInput(f"an image is bytes, a path, a PIL image or a data URL, not {type(source).__name__}")


def _decode(url: str) -> bytes:
    head, comma, body = url.partition(",")
    if not comma or not head.endswith(";base64"):
        raise InvalidInput(f"the image's data URL begins with {head[:40]!r}; expected data:image/…;base64,…")
    _refuse_large(len(body) * 3 // 4)
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInput(f"the image's data URL is no base64: {error}") from error


def _refuse_large(size: int) -> None:
    if size > LARGEST_BYTES:
        raise InvalidInput(f"an image of {size:,} bytes is too large; at most {LARGEST_BYTES:,}")


def _check(data: bytes) -> tuple[bytes, str]:
    """The same bytes and their type, when they decode to an image of a size that is taken."""
    _refuse_large(len(data))
    with require_extra("vision", "pillow"):
        from PIL import Image
    try:
        with Image.open(io.BytesIO(data), formats=tuple(FORMATS)) as opened:
            kind, (width, height) = FORMATS[str(opened.format)], opened.size
            if width * height > LARGEST_PIXELS:
                raise InvalidInput(f"an image of {width} x {height} is too large; at most {LARGEST_PIXELS:,} pixels")
            opened.load()
    except InvalidInput:
        raise
    except Image.DecompressionBombError as error:
        raise InvalidInput(f"an image is too large; at most {LARGEST_PIXELS:,} pixels: {error}") from error
    except Exception as error:  # Pillow's decoders raise all kinds on hostile bytes
        names = ", ".join(FORMATS)
        raise InvalidInput(f"the image is broken, or none of {names}: {type(error).__name__}: {error}") from error
    return data, kind
