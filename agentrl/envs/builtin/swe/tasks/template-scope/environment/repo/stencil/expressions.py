"""What may stand between braces: names with dots, numbers, and quoted text."""

import re

NUMBER = re.compile(r"-?\d+")


def evaluate(source, context):
    """The value of an expression; an unknown name is an empty text."""
    source = source.strip()
    if source[:1] in "\"'" and source[-1:] == source[:1] and len(source) >= 2:
        return source[1:-1]
    if NUMBER.fullmatch(source):
        return int(source)
    first, *rest = source.split(".")
    value = context.get(first, "")
    for name in rest:
        value = value.get(name, "") if isinstance(value, dict) else getattr(value, name, "")
    return value
