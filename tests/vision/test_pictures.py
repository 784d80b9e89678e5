"""Images are taken as bytes, files, PIL images and data URLs, and what is broken, huge or elsewhere is refused."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from pathlib import Path

import pytest
from PIL import Image

from agentrl.common.pictures import data_url, picture
from agentrl.errors import InvalidInput


def png(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def bomb(side: int) -> bytes:
    """A PNG of a few bytes whose header says that it has side * side pixels."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    )


def test_every_form_of_an_image_gives_the_same_picture(tmp_path: Path) -> None:
    image = Image.new("RGB", (3, 2), (10, 20, 30))
    data = png(image)
    (tmp_path / "a.png").write_bytes(data)
    url = data_url(data)
    assert url == data_url(image) == data_url(tmp_path / "a.png") == data_url(str(tmp_path / "a.png")) == data_url(url)
    assert picture(url).tobytes() == image.tobytes()


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("https://example.org/a.png", "remote URL"),
        ("file:///etc/passwd", "remote URL"),
        (b"no image", "broken, or none of PNG"),
        (png(Image.new("RGB", (50, 50), 7))[:60], "broken, or none of PNG"),
        (bomb(60_000), "too large"),
        (b"\0" * (21 << 20), "too large"),
        ("data:image/png;base64,@@@", "no base64"),
        ("data:image/png,abc", "expected data:image"),
        ("data:image/svg+xml;base64," + base64.b64encode(b"<svg/>").decode(), "broken, or none of PNG"),
        ("/nowhere/a.png", "can't be read"),
        (17, "not int"),
    ],
    ids=["http", "file", "text", "cut", "bomb", "bytes", "base64", "plain", "svg", "missing", "number"],
)
def test_other_images_are_refused_with_the_reason(source: object, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        data_url(source)
