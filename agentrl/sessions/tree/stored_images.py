"""Images of a stored message: their files are the store's attachments, and the message's JSON names them.

So one image is stored once, however many messages show it. In memory a message keeps its data URLs, which is the form
that models' APIs, exports and the viewer know.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

from agentrl.types import Message

PREFIX = "picture/"
"""The beginning of the names of a node's image files, beside its attachments' kinds."""
_MARK = ";attachment,"


def take_out(message: Message) -> tuple[Message, dict[str, bytes]]:
    """A message whose images are named, and their files by name."""
    if not isinstance(message.content, list) or not message.images:
        return message, {}
    files: dict[str, bytes] = {}
    parts = []
    for part in message.content:
        head, base, body = (part.image or "").partition(";base64,")
        data = _decode(body) if base else None
        if data is not None and part.image_url is not None:
            name = f"{PREFIX}{len(files)}"
            files[name] = data
            part = part.model_copy(update={"image_url": part.image_url | {"url": f"{head}{_MARK}{name}"}})
        parts.append(part)
    return message.model_copy(update={"content": parts}), files


def put_back(message: Message, files: Mapping[str, bytes]) -> Message:
    """The message that `take_out` was given."""
    if not files or not isinstance(message.content, list):
        return message
    for part in message.content:
        head, mark, name = (part.image or "").partition(_MARK)
        if mark and name in files and part.image_url is not None:
            part.image_url["url"] = f"{head};base64,{base64.b64encode(files[name]).decode()}"
    return message


def _decode(body: str) -> bytes | None:
    """The bytes of base64; None where they would not give the same text again."""
    try:
        data = base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        return None
    return data if base64.b64encode(data).decode() == body else None
