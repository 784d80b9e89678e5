"""Setting a value that a pointer addresses."""

from pointer.resolve import PointerError, index_of, step
from pointer.tokens import parse


def assign(document, text, value):
    """Set a value in place; the last token of a list may be "-", its end."""
    tokens = parse(text)
    if not tokens:
        raise PointerError("the whole document can't be replaced in place")
    for token in tokens[:-1]:
        document = step(document, token)
    last = tokens[-1]
    if isinstance(document, dict):
        document[last] = value
    elif isinstance(document, list) and last == "-":
        document.append(value)
    elif isinstance(document, list):
        document[index_of(last, len(document))] = value
    else:
        raise PointerError(f"{last!r} leads into a {type(document).__name__}")
