"""The Range header: which bytes of a file are wanted."""

import re

ONE = re.compile(r"\s*(\d*)-(\d*)\s*")


class Unsatisfiable(Exception):
    """None of the bytes that are asked for exist."""


def parse(header, length):
    """The ranges of a header for a file of `length` bytes: (start, stop) pairs as slices have them.

    Returns None where there is no header or it means nothing, so that the whole file is to be sent.

    Raises:
        Unsatisfiable: the header is good but leaves no byte.
    """
    if not header or not header.startswith("bytes="):
        return None
    found = []
    for piece in header.removeprefix("bytes=").split(","):
        match = ONE.fullmatch(piece)
        if match is None:
            raise Unsatisfiable(header)
        first, last = match.groups()
        if first:
            start = int(first)
            stop = int(last) if last else length
        else:
            start = length - int(last)
            stop = length
        if 0 <= start < stop <= length:
            found.append((start, stop))
    if not found:
        raise Unsatisfiable(header)
    return found


def content_range(start, stop, length):
    """The Content-Range header of a part."""
    return f"bytes {start}-{stop}/{length}"
