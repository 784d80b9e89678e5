"""A request's body, parsed no further than needed.

A client's history is most of its request, and earlier requests had most of it. So the conversation stays text at
first: it is compared byte by byte with the histories that are cached, and only what is new is parsed. All of it is
parsed only where no cached history has the same bytes.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from typing import Any

import msgspec
import orjson

from agentrl.sessions.gateway.http.api_error import ApiError

_TOP = msgspec.json.Decoder(dict[str, msgspec.Raw])
_HIGH, _LOW = rb"\\u[dD][89abAB][0-9a-fA-F]{2}", rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HALF = re.compile(rb"%b(?!%b)|(?<!%b)%b" % (_HIGH, _LOW, _HIGH, _LOW))


@dataclass(frozen=True, slots=True)
class History:
    """A conversation as JSON text: an array."""

    raw: bytes

    @classmethod
    def of(cls, items: list[Any]) -> History:
        """The history of these items."""
        return cls(orjson.dumps(items))

    @property
    def beginning(self) -> bytes:
        """The text without its closing bracket: a longer history begins with that."""
        return self.raw.rstrip()[:-1].rstrip()

    def continues(self, beginning: bytes) -> bool:
        """Return whether this history begins with the items of an earlier one, in the same bytes."""
        if len(beginning) < 2 or not self.raw.startswith(beginning):
            return False
        return self.raw[len(beginning) : len(beginning) + 64].lstrip()[:1] in (b",", b"]")

    def items(self, beginning: bytes = b"") -> list[Any]:
        """The items, or those after an earlier history's; ApiError where it is not valid JSON."""
        rest = self.raw[len(beginning) :].lstrip() if beginning else self.raw
        return list(loads(b"[" + rest.removeprefix(b",") if beginning else rest))


@dataclass(frozen=True, slots=True)
class Body:
    """A request: its parameters, and separately the conversation; `text` is the parameters' JSON."""

    fields: dict[str, Any]
    history: History | None = None
    text: tuple[bytes, ...] = ()

    @classmethod
    def parse(cls, data: bytes, conversation_field: str, depth: int = 1000) -> Body:
        """Parse a body whose conversation is in `conversation_field`, and whose parameters nest no deeper than `depth`.

        Raises:
            ApiError: it is not a JSON object.
        """
        try:
            top = _TOP.decode(data.removeprefix(codecs.BOM_UTF8))
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            why = _find_fault(data) or f"the body must be a JSON object: {error if data else 'it is empty'}"
            raise ApiError(400, why, "invalid_json") from None
        history: History | None = None
        fields, text = {}, list[bytes]()
        for name, raw in top.items():
            value = bytes(raw)
            if name == conversation_field and value[:1] == b"[":
                history = History(value)
            else:
                fields[name] = loads(value)
                if nests_deeper(fields[name], depth):
                    what = f"{name[:100]}: nested deeper than {depth}"
                    raise ApiError(400, what, "invalid_value", name[:100])
                text += name.encode(), value
        return cls(fields, history, tuple(text))


def loads(data: bytes) -> Any:
    """Parsed JSON; ApiError where it is not valid."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, _find_fault(data) or f"the body is not valid JSON: {error}", "invalid_json") from None


def _find_fault(data: bytes) -> str:
    """Describe bytes of a body that can't be read that no text has, or the half of a character; '' for other faults.

    Programs that cut texts send halves, and some systems' tools another encoding.
    """
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return f"the body is not UTF-8, as JSON is: byte {error.start} is {data[error.start : error.end].hex()}"
    half = _HALF.search(data)
    what = "half of a character, without the other: cut texts between characters"
    return f"the body has {half[0].decode()} (byte {half.start()}), {what}" if half is not None else ""


def nests_deeper(value: Any, depth: int) -> bool:
    """Return whether objects and arrays are nested deeper than `depth`."""
    level = [value]
    for _ in range(depth + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True
