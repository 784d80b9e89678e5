"""Images that clients send: OpenAI's and Anthropic's parts, as a message's parts with a checked data URL.

An image is decoded before it is taken, so that what is broken, too large or of another type than it says is an error of
the request, whose program is told which part it is. The type is the decoded one, whatever the client says. Nothing is
fetched: a URL of the network is refused, since a model would be trained on what may be another image tomorrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from agentrl.common import pictures
from agentrl.errors import InvalidInput
from agentrl.sessions.gateway.http.api_error import ApiError, unsupported
from agentrl.sessions.gateway.wire.objects import object_at, text_at
from agentrl.types import Part

Content = str | list[Part]
"""A message's content: text, or parts where there are images."""
KINDS = frozenset({"image_url", "input_image", "image"})
"""The types of the parts that are images: Chat Completions', Responses', Anthropic's."""
TEXT_ONLY = "this model takes text only"


def content_at(item: Mapping[str, Any], name: str, where: str, texts: Set[str], images: int) -> Content:
    """A field that must be there: text, or parts of text and images.

    Args:
        item: has the field.
        name: the field's.
        where: the item's place in the request.
        texts: the types of parts that are text; one without a type is text too.
        images: how many images there may be; 0: the model sees none.

    Raises:
        ApiError: it is missing, something else, or has a part that can't be taken.
    """
    content, place = item.get(name), f"{where}.{name}"
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ApiError(400, f"{place}: must be text, or a list of its parts", "invalid_value", place)
    parts = [object_at(part, f"{place}[{number}]") for number, part in enumerate(content)]
    return joined(read_part(part, f"{place}[{number}]", texts, images) for number, part in enumerate(parts))


def read_part(part: Mapping[str, Any], where: str, texts: Set[str], images: int) -> str | Part:
    """A part's text, or its image.

    Raises:
        ApiError: it is neither, or an image that can't be taken.
    """
    kind = part.get("type", "text")
    if kind in texts:
        return text_at(part, "text", where)
    if kind not in KINDS or not images:
        raise unsupported(f"{where}.type", f"{kind!r:.100}; {_taken(images)}")
    return _image(part, where)


def joined(pieces: Iterable[str | Part]) -> Content:
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
    """The pieces of a message's content; see `joined`."""
    if not isinstance(content, list):
        return [content] if content else []
    return [part if part.type == "image_url" else part.text or "" for part in content]


def check_number(contents: Sequence[Content | None], images: int) -> None:
    """Refuse more images than a request may have.

    Raises:
        ApiError: there are more.
    """
    found = sum(part.type == "image_url" for each in contents if isinstance(each, list) for part in each)
    if found > images:
        raise ApiError(413, f"{found} images are new in this request; at most {images} are read", "too_many_images")


def _image(part: Mapping[str, Any], where: str) -> Part:
    url, place = _url(part, where)
    if not url.startswith("data:"):
        why = "only data:image/…;base64,…; nothing is fetched, since it may be another image when it is trained on"
        raise unsupported(place, f"{url[:80]!r}; {why}")
    try:
        return Part(type="image_url", image_url={"url": pictures.url_of(url)})
    except InvalidInput as error:
        raise ApiError(400, f"{place}: {error}", "invalid_image", place) from None


def _url(part: Mapping[str, Any], where: str) -> tuple[str, str]:
    """An image's URL, and its place in the request."""
    if part["type"] == "image":
        place = f"{where}.source"
        source = object_at(part.get("source"), place)
        if source.get("type") == "base64":
            kind = text_at(source, "media_type", place)
            return f"data:{kind};base64,{text_at(source, 'data', place)}", f"{place}.data"
        if source.get("type") == "url":
            return text_at(source, "url", place), f"{place}.url"
        raise unsupported(f"{place}.type", f"{source.get('type')!r:.100}; only base64")
    if "file_id" in part:
        raise unsupported(f"{where}.file_id", "there are no files here; send the image itself")
    given = part.get("image_url")
    if isinstance(given, Mapping):
        return text_at(object_at(given, f"{where}.image_url"), "url", f"{where}.image_url"), f"{where}.image_url.url"
    return text_at(part, "image_url", where), f"{where}.image_url"


def _taken(images: int) -> str:
    return "only text and images" if images else TEXT_ONLY
