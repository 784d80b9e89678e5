"""Images that clients send: OpenAI's and Anthropic's parts, as a message's parts with a checked data URL.

An image is decoded before it is taken, so that what is broken, too large or of another type than it says is an error of
the request, whose program is told which part it is. The type is the decoded one, whatever the client says. A URL of the
network is refused, since a model would be trained on what may be another image tomorrow, unless the settings let the
gateway fetch it (`http.image_urls`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from agentrl.common import pictures
from agentrl.errors import InvalidInput
from agentrl.sessions.gateway.http.api_error import ApiError, refuse_parameter
from agentrl.sessions.gateway.limits import ImageLimits
from agentrl.sessions.gateway.wire.objects import object_at, text_at
from agentrl.types import Part

Content = str | list[Part]
"""A message's content: text, or parts where there are images."""
INLINE = "inlineData"
KINDS = frozenset({"image_url", "input_image", "image", INLINE})
"""The types of the parts that are images: Chat Completions', Responses', Anthropic's, Google's."""
TEXT_ONLY = "this model takes text only"
NO_IMAGES = ImageLimits()
"""The limits of a text."""


def content_at(item: Mapping[str, Any], name: str, where: str, texts: Set[str], images: ImageLimits) -> Content:
    """A field that must be there: text, or parts of text and images.

    Args:
        item: has the field.
        name: the field's.
        where: the item's place in the request.
        texts: the types of parts that are text; one without a type is text too.
        images: which images there may be.

    Raises:
        ApiError: it is missing, something else, or has a part that can't be taken.
    """
    content, place = item.get(name), f"{where}.{name}"
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ApiError(400, f"{place}: must be text, or a list of its parts", "invalid_value", place)
    parts = [object_at(part, f"{place}[{number}]") for number, part in enumerate(content)]
    return join_pieces(read_part(part, f"{place}[{number}]", texts, images) for number, part in enumerate(parts))


def read_part(part: Mapping[str, Any], where: str, texts: Set[str], images: ImageLimits) -> str | Part:
    """A part's text, or its image; ApiError where it is neither, or an image that can't be taken."""
    kind = part.get("type", "text")
    if kind in texts:
        return text_at(part, "text", where)
    if kind not in KINDS or not images:
        taken = "only text and images" if images else TEXT_ONLY
        raise refuse_parameter(f"{where}.type", f"{kind!r:.100}; {taken}")
    return _image(part, where, images)


def join_pieces(pieces: Iterable[str | Part]) -> Content:
    """Pieces of text and images as a message's content: text that is side by side is one part."""
    found: list[str | Part] = []
    for piece in pieces:
        if isinstance(piece, str) and found and isinstance(before := found[-1], str):
            found[-1] = before + piece
        else:
            found.append(piece)
    if all(isinstance(piece, str) for piece in found):
        return "".join(map(str, found))
    return [Part(type="text", text=piece) if isinstance(piece, str) else piece for piece in found if piece != ""]


def pieces_of(content: Content | None) -> list[str | Part]:
    """The pieces of a message's content; see `join_pieces`."""
    if not isinstance(content, list):
        return [content] if content else []
    return [part if part.type == "image_url" else part.text or "" for part in content]


def check_number(items: Sequence[Any], images: ImageLimits) -> None:
    """Refuse more images than a request may have, before any of them is decoded or fetched.

    Args:
        items: the messages, as the client sent them.
        images: how many there may be; where there may be none, each is refused by its place (`read_part`).

    Raises:
        ApiError: there are more.
    """
    found = sum(map(_count, items)) if images else 0
    if found > images.most:
        raise ApiError(
            413, f"{found} images are new in this request; at most {images.most} are read", "too_many_images"
        )


def _count(item: Any) -> int:
    if not isinstance(item, Mapping):
        return 0
    if isinstance(kind := item.get("type"), str) and kind in KINDS:
        return 1
    inside = (item.get(name) for name in ("content", "output"))
    return sum(_count(part) for each in inside if isinstance(each, list) for part in each)


def _image(part: Mapping[str, Any], where: str, images: ImageLimits) -> Part:
    url, place = _url(part, where)
    if not url.startswith("data:") and images.fetch is None:
        why = "only data:image/…;base64,…; nothing is fetched, since it may be another image when it is trained on"
        raise refuse_parameter(place, f"{url[:80]!r}; {why}")
    try:
        taken = pictures.url_of(url) if url.startswith("data:") or images.fetch is None else images.fetch(url)
        return Part(type="image_url", image_url={"url": taken})
    except InvalidInput as error:
        raise ApiError(400, f"{place}: {error}", "invalid_image", place) from None


def _url(part: Mapping[str, Any], where: str) -> tuple[str, str]:
    """An image's URL, and its place in the request."""
    if part["type"] == INLINE:  # google-genai writes base64 as addresses have it
        data = text_at(part, "data", where).replace("-", "+").replace("_", "/")
        return f"data:{text_at(part, 'mimeType', where)};base64,{data}", f"{where}.data"
    if part["type"] == "image":
        place = f"{where}.source"
        source = object_at(part.get("source"), place)
        if source.get("type") == "base64":
            kind = text_at(source, "media_type", place)
            return f"data:{kind};base64,{text_at(source, 'data', place)}", f"{place}.data"
        if source.get("type") == "url":
            return text_at(source, "url", place), f"{place}.url"
        raise refuse_parameter(f"{place}.type", f"{source.get('type')!r:.100}; only base64")
    if "file_id" in part:
        raise refuse_parameter(f"{where}.file_id", "there are no files here; send the image itself")
    given = part.get("image_url")
    if isinstance(given, Mapping):
        return text_at(object_at(given, f"{where}.image_url"), "url", f"{where}.image_url"), f"{where}.image_url.url"
    return text_at(part, "image_url", where), f"{where}.image_url"
