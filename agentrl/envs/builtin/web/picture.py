"""A page as an agent sees it: a screenshot, with the number of each link, button and field drawn beside it."""

from __future__ import annotations

import io
from collections.abc import Sequence

from agentrl.types import Part, image

WIDTH, HEIGHT = 640, 1280
"""Pixels of a screenshot, at most: what is further down is cut off, as it is in a window."""
MARK, INK = (200, 0, 60), (255, 255, 255)
MARGIN = 2


def numbered(png: bytes, places: Sequence[tuple[float, float]]) -> Part:
    """A screenshot as a part of a message.

    Args:
        png: the screenshot.
        places: the left upper corner of each element, in the order of their numbers, in pixels.
    """
    from PIL import Image, ImageDraw

    with Image.open(io.BytesIO(png)) as opened:
        picture = opened.convert("RGB").crop((0, 0, min(opened.width, WIDTH), min(opened.height, HEIGHT)))
    drawing = ImageDraw.Draw(picture)
    for number, (left, upper) in enumerate(places, 1):
        left = max(left - drawing.textlength(str(number)) - 2 * MARGIN, MARGIN)  # beside its words, not on them
        box = drawing.textbbox((left, upper), str(number))
        drawing.rectangle((box[0] - MARGIN, box[1] - MARGIN, box[2] + MARGIN, box[3] + MARGIN), fill=MARK)
        drawing.text((left, upper), str(number), fill=INK)
    return image(picture)
