"""Words back to a line."""

import re

PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")


def quote(word):
    """A word in the form that `split` reads back."""
    if PLAIN.fullmatch(word):
        return word
    return "'" + word.replace("'", "\\'") + "'"


def join(words):
    return " ".join(quote(word) for word in words)
