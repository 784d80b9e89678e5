"""Durations as people write them: 2d4h, 90s, 1.5h, 250ms.

Units are days, hours, minutes, seconds and milliseconds, largest first; each may come once.
"""

import re

PIECE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)\s*")
UNITS = {
    "h": 3600,
    "m": 60,
    "s": 1,
    "ms": 0.001,
}


def parse(text):
    """Seconds of a written duration.

    Raises:
        ValueError: the text is empty, has an unknown unit, or its units are not in order.
    """
    text = text.strip().lower()
    if not text:
        raise ValueError("an empty duration")
    sign = -1 if text.startswith("-") else 1
    rest = text.lstrip("+-")
    total, order = 0, list(UNITS)
    position = 0
    while position < len(rest):
        match = PIECE.match(rest, position)
        if match is None:
            raise ValueError(f"cannot read {rest[position:]!r}")
        amount, unit = match.groups()
        if unit not in UNITS:
            raise ValueError(f"unknown unit {unit!r}")
        if unit not in order:
            raise ValueError(f"{unit!r} is out of order")
        order = order[order.index(unit) + 1 :]
        total += int(float(amount)) * UNITS[unit]
        position = match.end()
    return sign * total


def format_duration(seconds):
    """A duration in the form that `parse` reads, without parts that are zero."""
    if seconds < 0:
        return "-" + format_duration(-seconds)
    left = round(seconds * 1000)
    parts = []
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"
