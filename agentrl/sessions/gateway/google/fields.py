"""Reading objects of Google's API: names in camel case or with underscores, and what nothing here reads passed over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrl.sessions.gateway.http.api_error import ApiError, refuse_parameter
from agentrl.sessions.gateway.wire.fields import find_misspelt
from agentrl.sessions.gateway.wire.objects import object_at
from agentrl.sessions.gateway.wire.validation import MOST_FIELDS, header_name


def camel(name: str) -> str:
    """A field's name in camel case: the API takes both spellings."""
    first, *others = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in others)


def rename_fields(value: Any, where: str) -> dict[str, Any]:
    """An object with its fields' names in camel case, without those that are null.

    Raises:
        ApiError: it is none, or has too many fields.
    """
    given = object_at(value, where)
    if len(given) > MOST_FIELDS:
        raise ApiError(400, f"{where}: has {len(given)} fields; at most {MOST_FIELDS} are read", "invalid_value", where)
    return {camel(name): one for name, one in given.items()}


def keep(
    given: Mapping[str, Any],
    read: frozenset[str],
    harmless: frozenset[str],
    refused: frozenset[str],
    where: str,
    ignored: dict[str, str],
    strict: bool,
) -> dict[str, Any]:
    """The fields that are read.

    Args:
        given: all of them.
        read: the names of those that are read.
        harmless: those that change nothing here.
        refused: those that would change the text.
        where: the object's place in the request; "" is the request itself.
        ignored: takes those that are not read, each with the name to count it under.
        strict: whether a field that is not known is refused.

    Raises:
        ApiError: a field is refused, or nearly spelt like one that is read.
    """
    kept = {}
    for name, value in given.items():
        place = f"{where}.{name[:100]}" if where else name[:100]
        if name in read:
            kept[name] = value
        elif name in harmless:
            ignored[place] = place
        elif name in refused:
            raise refuse_parameter(place)
        elif (near := find_misspelt(name, read)) is not None or strict:
            hint = f"; did you mean {near!r}?" if near else ""
            raise ApiError(400, f"unknown parameter {place!r}{hint}", "unknown_parameter", place)
        else:
            ignored[header_name(name)] = "unknown"
    return kept
