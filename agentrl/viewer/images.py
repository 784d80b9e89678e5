"""Images of a conversation on the page: each is asked for by its place, decoded, and sent as the pixels that it has.

A session's images come from strangers: a file may be an image and a page at once, or say that it is of another type. So
no byte of it reaches the browser: what is sent is a PNG that is made of the decoded pixels, which are also what a model
is shown, the first picture of an animation.
"""

from __future__ import annotations

import io
import re
from typing import Any

from agentrl.common import pictures
from agentrl.errors import InvalidInput
from agentrl.types import Message, Node

SIDE = 2048
"""Pixels of the longest side of what is sent."""
_SHOWN = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,")
_FAST = 1
"""The compression level of zlib."""


def list_message(message: Message) -> dict[str, Any]:
    """Return a message as plain JSON values, in which an image is its place among the message's images."""
    plain = message.model_dump(exclude_none=True)
    parts = plain["content"] if isinstance(plain.get("content"), list) else ()
    place = 0
    for part in parts:
        if part["type"] == "image_url":
            if _SHOWN.match(str(part["image_url"].get("url", ""))):
                part["image_url"] = {"place": place}
            place += 1
    return plain


def png(node: Node, place: int) -> bytes:
    """Return an image of a node's message as a PNG.

    Raises:
        InvalidInput: the message has no such image, or it can't be decoded.
    """
    images = node.message.images
    if not place < len(images) or not _SHOWN.match(images[place]):
        raise InvalidInput(f"image={place}: node {node.id} has no such image")
    shown, out = pictures.picture(images[place]), io.BytesIO()
    shown.thumbnail((SIDE, SIDE))
    shown.save(out, "PNG", compress_level=_FAST)
    return out.getvalue()


def preview(message: Message) -> str:
    """Return a message's text, with [image] for each image."""
    if not message.images or not isinstance(message.content, list):
        return message.text
    return " ".join("[image]" if part.image else part.text or "" for part in message.content)
