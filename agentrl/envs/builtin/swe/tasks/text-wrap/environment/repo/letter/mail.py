"""A mail: paragraphs, lists, and quotes of older mails."""

from letter.wrap import paragraphs, wrap

QUOTE = "> "


def format_mail(text, width=72):
    """A text with its lines wrapped: an empty line between paragraphs, lists and quotes kept as such."""
    blocks = []
    for lines in paragraphs(text):
        if all(line.startswith(">") for line in lines):
            inner = "\n".join(line[1:].removeprefix(" ") for line in lines)
            blocks.append("\n".join(QUOTE + line for line in wrap(inner, width)))
        elif lines[0].startswith("* "):
            blocks.append("\n".join(_items(lines, width)))
        else:
            blocks.append("\n".join(wrap(" ".join(lines), width)))
    return "\n\n".join(blocks) + "\n"


def _items(lines, width):
    items = []
    for line in lines:
        if line.startswith("* "):
            items.append(line[2:])
        else:
            items[-1] += " " + line
    for item in items:
        yield from wrap(item, width, first="* ", rest="  ")
