"""What counts as a comment."""

MARKS = "#;"


def strip_comment(line):
    """The line without its comment; a mark counts at the start of a line or after a blank."""
    for index, char in enumerate(line):
        if char in MARKS and (index == 0 or line[index - 1].isspace()):
            return line[:index].rstrip()
    return line.rstrip()
