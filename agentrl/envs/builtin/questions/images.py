"""Questions about images: the images of a row as its set has them, and a message that shows them.

| sets | columns |
|---|---|
| EasyR1's | `images`: {bytes, path}, paths or bytes, in the order in which the question says <image> |
| VLM-R1's | `image`: a path or several; `conversations`: the human's question, and the answer, a text or a box |

A task holds what is small, since each of its sessions is stored with it: a path as its row has it, relative to the
data, or the digest of an image that is inside of the data, which is in memory from when its file was read.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.common import pictures
from agentrl.common.plain import plain
from agentrl.errors import InvalidInput
from agentrl.types import Part

MARK = "<image>"
"""The mark at which a question shows its next image."""
FIELD = "images"
"""Of a task."""
_NAMED = "sha256:"
COLUMNS = ("images", "image")
"""Columns of images, in any case; the first that holds something."""
_FILE = re.compile(r"\.(png|jpe?g|gif|webp)\Z|\Adata:image/", re.IGNORECASE)
_KEPT: dict[str, tuple[str, str]] = {}
"""Names and data URLs of images inside of data that was read."""


def images_of(row: Mapping[str, Any]) -> list[str]:
    """The images of a row, as paths or names of images in memory (`is_kept`), in order.

    Raises:
        ValueError: a column of images holds something else, or an image is broken or too large.
    """
    return [_image(each) for each in _find_column(row)[1]]


def column_of_images(row: Mapping[str, Any]) -> str | None:
    """The column in which a row has images: bytes, data URLs or names of image files; None where it has none."""
    name, given = _find_column(row)
    inside = [each.get("bytes") or each.get("path") if isinstance(each, Mapping) else each for each in given]
    found = any(isinstance(each, bytes) or (isinstance(each, str) and _FILE.search(each)) for each in inside)
    return name if found else None


def _find_column(row: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """The column of images of a row, and what is in it."""
    lower = {str(name).lower(): name for name in row}
    for name in COLUMNS:
        if name in lower and (given := row[lower[name]]) not in (None, "", []):
            return str(lower[name]), list(given) if isinstance(given, list | tuple) else [given]
    return "", []


def _image(given: Any) -> str:
    if isinstance(given, Mapping):
        given = given.get("bytes") or given.get("path")
    if isinstance(given, bytes | bytearray) or (isinstance(given, str) and given.startswith("data:")):
        try:
            return _keep(pictures.data_url(given) if isinstance(given, bytes | bytearray) else pictures.url_of(given))
        except InvalidInput as error:
            raise ValueError(f"an image can't be read: {error}") from None
    if isinstance(given, str) and given:
        return given
    raise ValueError(f"an image is {plain(given)!r:.60}; expected a path, bytes, or {{bytes, path}}")


def _keep(url: str) -> str:
    """The name of an image, by which it is found in this process."""
    name = f"{_NAMED}{hashlib.sha256(url.encode()).hexdigest()}"
    return _KEPT.setdefault(name, (name, url))[0]


def is_kept(name: str) -> bool:
    """Return whether an image is a path, or in this process's memory."""
    return name in _KEPT or not name.startswith(_NAMED)


def with_conversation(row: dict[str, Any]) -> dict[str, Any]:
    """A row of VLM-R1's files with a question and an answer; any other row as it is.

    Raises:
        ValueError: its conversation is not a question and an answer.
    """
    turns, shows = row.get("conversations"), row.get("image") or row.get("images")
    if not isinstance(turns, list) or not shows or row.keys() & {"problem", "question", "prompt"}:
        return row
    kinds = [each.get("from") if isinstance(each, Mapping) else type(each).__name__ for each in turns]
    if kinds not in (["human", "gpt"], ["user", "assistant"]):
        raise ValueError(f"`conversations` must be a question and its answer, human and gpt; they are of {kinds}")
    said = turns[1].get("value")
    if isinstance(said, str):
        said = said.replace("<answer>", "").replace("</answer>", "").strip()
    return {**row, "question": turns[0].get("value"), "answer": said}


def check_marks(text: str, images: Sequence[str]) -> None:
    """Refuse a question that doesn't show each of its images once.

    Raises:
        ValueError: it says <image> more or less often than there are images, but not never.
    """
    marks = text.count(MARK)
    if marks not in (0, len(images)):
        raise ValueError(f"the question says {MARK} {marks} times, and the row has {len(images)} images")


def folder_of(path: str) -> Path | None:
    """The folder that paths in a data set start from: its own; None where it is on the hub."""
    if "://" in path:
        return None
    place = Path(path).expanduser()
    return place if place.is_dir() else place.parent


def show_question(text: str, images: Sequence[str], folders: Sequence[Path]) -> list[Part]:
    """A question's parts: its text, with the images where it says <image>, or else before it.

    Raises:
        InvalidInput: an image is not there, broken or too large.
    """
    urls = urls_of(images, folders)
    if MARK not in text:
        return [*map(_part, urls), Part(type="text", text=text)]
    return list(_interleave(text, urls))


def urls_of(images: Sequence[str], folders: Sequence[Path]) -> list[str]:
    """Images as data URLs; see `show_question`."""
    return [_url(image, folders) for image in images]


def _interleave(text: str, urls: Sequence[str]) -> Iterator[Part]:
    for place, words in enumerate(text.split(MARK)):
        if place:
            yield _part(urls[place - 1])
        if words:
            yield Part(type="text", text=words)


def _part(url: str) -> Part:
    return Part(type="image_url", image_url={"url": url})  # of `pictures`: it is checked


def _url(image: str, folders: Sequence[Path]) -> str:
    if image in _KEPT:
        return _KEPT[image][1]
    places = [folder / image for folder in folders]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        looked = ", ".join(map(str, dict.fromkeys(folders))) or "nowhere: the data is not on this machine"
        raise InvalidInput(f"there is no image {image!r}; looked in {looked}; env.images=FOLDER says where they are")
    return pictures.data_url(found)
