"""From a pattern to a regular expression."""

import re


def translate(pattern):
    """The regular expression of a pattern, to be matched in full."""
    parts = []
    index = 0
    depth = 0
    while index < len(pattern):
        char = pattern[index]
        index += 1
        if char == "*":
            if pattern.startswith("*", index):
                index += 1
                parts.append(".*")
            else:
                parts.append(".*")
        elif char == "?":
            parts.append("[^/]")
        elif char == "[" and (end := pattern.find("]", index + 1)) > 0:
            parts.append(_class(pattern[index:end]))
            index = end + 1
        elif char == "{":
            depth += 1
            parts.append("(?:")
        elif char == "}" and depth:
            depth -= 1
            parts.append(")")
        elif char == "," and depth:
            parts.append("|")
        else:
            parts.append(re.escape(char))
    return "".join(parts) + ")" * depth


def _class(inside):
    return "[" + inside.replace("\\", "\\\\") + "]"
