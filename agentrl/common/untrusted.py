"""Text of models, tools, sandboxes and agent programs, made safe to keep, store and print.

Such text may hold lone surrogates (which no encoder writes), JSON that nests deeper than a decoder's stack or numbers
that no column can store. None of it may raise an error that looks like the user's, so it is cleaned where it enters:
messages by their own fields (`agentrl.types`), a session's error where it is noted, everything else where it is stored
(`agentrl.sessions.tree.codec`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from agentrl.common.plain import plain

MAX_DEPTH = 64
"""Levels of lists and mappings that are kept; deeper ones become text."""
MAX_INTEGER = 2**63 - 1
"""The largest whole number that is stored as one (64 bits with a sign); others become text."""
SHOWN = 200
"""Characters that are kept of what becomes text."""


def safe_text(text: str) -> str:
    """The text with each lone surrogate replaced by U+FFFD, so that it can be encoded; any other text is unchanged."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in text)
    return text


def has_visible(text: str) -> bool:
    """Return whether a reader sees anything of a text; blanks, controls and formatting characters are not seen."""
    return any(char.isprintable() and not char.isspace() for char in text)


def visible_text(text: str, keep: str = "\n") -> str:
    r"""The text for a terminal or a page: what they would obey or hide becomes its escape, such as \x1b or \u202e.

    Those are control characters, those of writing direction and of no width, lone surrogates, and unassigned ones;
    the characters in `keep` stay.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def safe_json(value: Any, *, whole: bool = False, integers: bool = False, depth: int = 0) -> Any:
    """The value with strings, numbers, objects (`plain`) and nesting that JSON writers refuse made storable.

    Args:
        value: anything; mappings, lists and tuples are copied.
        whole: also convert objects that are no JSON to the text of their `repr`, instead of leaving them.
        integers: leave whole numbers of any size.
        depth: this value's depth in a larger one.
    """
    if type(value) is str or (isinstance(value, str) and isinstance(value, Enum)):
        return safe_text(value)
    value = plain(value)
    if isinstance(value, str):
        return safe_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None:
        return value
    if isinstance(value, int):
        small = integers or -MAX_INTEGER - 1 <= value <= MAX_INTEGER
        return value if small else f"{value:#x}"[:SHOWN]
    if isinstance(value, Mapping | list | tuple):
        if depth >= MAX_DEPTH:
            return f"… {type(value).__name__} of {len(value)} items, nested deeper than {MAX_DEPTH} levels"
        if isinstance(value, Mapping):
            return {
                _key(key): safe_json(item, whole=whole, integers=integers, depth=depth + 1)
                for key, item in value.items()
            }
        return [safe_json(item, whole=whole, integers=integers, depth=depth + 1) for item in value]
    return safe_repr(value)[:SHOWN] if whole else value


def read_json(text: str | bytes, objects: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """JSON from outside.

    Args:
        text: as it was written.
        objects: makes each object of its keys and values; None is a dict, in which the last of equal keys counts.

    Raises:
        ValueError: it is no JSON, or nests too deeply for the decoder.
    """
    try:
        return json.loads(text, object_pairs_hook=objects)
    except RecursionError:
        raise ValueError("the JSON nests too deeply") from None


def one_of_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; ValueError where it has a key twice, of which only one could be read."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for place, (key, _) in enumerate(pairs) if key in dict(pairs[:place]))
        raise ValueError(f"the key {twice!r} is there twice: only one could be read")
    return found


def _key(key: Any) -> str:
    key = key if type(key) is str else plain(key)
    return safe_text(key) if isinstance(key, str) else safe_repr(key)[:SHOWN]


def safe_repr(value: Any) -> str:
    """The value's `repr`, or that it fails."""
    try:
        return safe_text(repr(value))
    except (Exception, SystemExit) as error:
        return f"<{type(value).__name__}, whose repr raised {type(error).__name__}>"
