"""Pointers as text, and the reference tokens that they are made of."""

ESCAPES = {"~": "~0", "/": "~1"}


def parse(text):
    """The tokens of a pointer; the empty pointer has none."""
    if text == "":
        return []
    if not text.startswith("/"):
        raise ValueError(f"a pointer starts with a slash: {text!r}")
    return [unescape(token) for token in text[1:].split("/")]


def build(tokens):
    """The pointer of some tokens."""
    return "".join("/" + escape(str(token)) for token in tokens)


def escape(token):
    for plain, escaped in sorted(ESCAPES.items()):
        token = token.replace(plain, escaped)
    return token


def unescape(token):
    for plain, escaped in ESCAPES.items():
        token = token.replace(escaped, plain)
    return token
