"""Replies as bytes: JSON, and server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html).

Replies are built as plain data and written as they are: they are ours, so validating each one again would only cost
time. That they fit the clients' own types is what the tests hold.
"""

from __future__ import annotations

import json
from typing import Any

import orjson


def encoded(value: Any) -> bytes:
    """JSON; numbers in a model's arguments may be too long for the quick writer, the other one takes them."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def event(data: bytes, name: str | None = None) -> bytes:
    """Return one server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data) if name else b"data: %b\n\n" % data
