"""A title as part of an address."""

import re
import unicodedata

SPECIAL = str.maketrans({"\u00df": "ss", "\u00e6": "ae", "\u00f8": "o", "\u0142": "l"})


def slug(title, longest=40):
    """Lower-case letters and digits of ASCII, words joined by dashes; whole words only, where the first one fits.

    A title without any is "untitled".
    """
    text = unicodedata.normalize("NFKD", title.lower().translate(SPECIAL))
    text = "".join(char for char in text if not unicodedata.combining(char))
    words = re.findall(r"[a-z0-9]+", text.replace("'", ""))
    return "-".join(words)[:longest] or "untitled"
