"""Lines of the form "time <name> text"."""

import re
from dataclasses import dataclass

from chat.lines import LineReader

LINE = re.compile(r"(\d\d:\d\d) <([^>]+)> (.*)")


@dataclass(frozen=True)
class Message:
    time: str
    name: str
    text: str


def parse(line):
    match = LINE.fullmatch(line)
    return Message(*match.groups()) if match else None


def messages(pieces):
    """The messages of a stream that comes in pieces; lines of other forms continue the message before them."""
    reader = LineReader()
    current = None
    for line in _lines(reader, pieces):
        found = parse(line)
        if found is not None:
            if current is not None:
                yield current
            current = found
        elif current is not None:
            current = Message(current.time, current.name, f"{current.text}\n{line}")
    if current is not None:
        yield current


def _lines(reader, pieces):
    for piece in pieces:
        yield from reader.feed(piece)
    yield from reader.finish()
