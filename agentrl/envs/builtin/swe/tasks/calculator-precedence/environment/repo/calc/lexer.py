"""Characters to tokens."""

import re

TOKEN = re.compile(r"\s*(?:(\d+(?:\.\d+)?)|(.))")


def tokens(text):
    """Numbers as floats, everything else as single characters; blanks are left out."""
    found = []
    for number, other in TOKEN.findall(text.strip()):
        found.append(float(number) if number else other)
    return found
