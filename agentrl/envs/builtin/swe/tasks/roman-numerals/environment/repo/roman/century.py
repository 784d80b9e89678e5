"""Years on buildings."""

import re

from roman.numerals import read, write

NUMERAL = re.compile(r"\b[MDCLXVI]{2,}\b")


def century(year):
    """The century of a year, such as "XIX"."""
    return write((year - 1) // 100 + 1)


def years(inscription):
    """The years in an inscription, in order."""
    found = []
    for match in NUMERAL.finditer(inscription):
        try:
            found.append(read(match[0]))
        except ValueError:
            continue
    return found
