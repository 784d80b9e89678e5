"""Following a pointer through a document."""

from pointer.tokens import parse


class PointerError(LookupError):
    """A pointer that leads nowhere."""


def index_of(token, length):
    """The position in a list that a token names."""
    try:
        index = int(token)
    except ValueError:
        raise PointerError(f"{token!r} is no index") from None
    if index >= length:
        raise PointerError(f"index {index} is beyond the list's {length} elements")
    return index


def step(value, token):
    """What lies one token further."""
    if isinstance(value, dict):
        if token not in value:
            raise PointerError(f"there is no key {token!r}")
        return value[token]
    if isinstance(value, list):
        return value[index_of(token, len(value))]
    raise PointerError(f"{token!r} leads into a {type(value).__name__}")


def resolve(document, text):
    """The value that a pointer addresses.

    Raises:
        PointerError: it leads nowhere.
    """
    value = document
    for token in parse(text):
        value = step(value, token)
    return value
