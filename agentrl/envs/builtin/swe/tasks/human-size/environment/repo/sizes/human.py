"""Numbers of bytes as text."""

import re

BINARY = (1024, ("B", "KiB", "MiB", "GiB", "TiB"))
DECIMAL = (1000, ("B", "kB", "MB", "GB", "TB"))
WRITTEN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def human(size, decimal=False, digits=1):
    """A size in the largest unit in which it is at least 1, bytes without digits behind the point."""
    base, units = DECIMAL if decimal else BINARY
    if size < 0:
        return "-" + human(-size, decimal, digits)
    index, value = 0, float(size)
    while value >= base and index < len(units) - 1:
        value /= base
        index += 1
    return f"{value:.{digits if index else 0}f} {units[index]}"


def parse(text):
    """The bytes of a written size, of either kind of unit; none is bytes."""
    match = WRITTEN.fullmatch(text)
    if match is None:
        raise ValueError(f"cannot read {text!r}")
    number, unit = match.groups()
    for base, units in (BINARY, DECIMAL):
        for power, name in enumerate(units):
            if unit.lower() in (name.lower(), "" if power == 0 else name.lower()):
                return round(float(number) * base**power)
    raise ValueError(f"unknown unit {unit!r}")
