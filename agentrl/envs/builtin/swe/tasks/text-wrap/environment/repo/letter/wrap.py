"""Lines of limited width."""


def wrap(text, width=72, first="", rest=""):
    """The lines of a paragraph.

    Args:
        text: words, with blanks of any kind between them.
        width: how long a line may be, with what stands before it; a longer word has a line of its own.
        first: what stands before the first line.
        rest: what stands before all the others.
    """
    lines = []
    line = first
    empty = True
    for word in text.split():
        if not empty and len(line) + len(word) > width and len(word) < width:
            lines.append(line)
            line, empty = rest, True
        line += word if empty else " " + word
        empty = False
    return lines if empty else [*lines, line]


def paragraphs(text):
    """The paragraphs of a text, each a list of lines."""
    found = [[]]
    for line in text.splitlines():
        if line == "":
            found.append([])
        else:
            found[-1].append(line)
    return [lines for lines in found if lines]
