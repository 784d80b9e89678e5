"""A template's text, cut at its marks."""

import re

MARK = re.compile(r"(\{%.*?%\}|\{\{.*?\}\})", re.DOTALL)


def lex(text):
    """Triples of (kind, content, line); kind is "text", "value" or "block"."""
    line = 1
    for piece in MARK.split(text):
        if piece.startswith("{%"):
            yield "block", piece[2:-2].strip(), line
        elif piece.startswith("{{"):
            yield "value", piece[2:-2].strip(), line
        elif piece:
            yield "text", piece, line
        line += piece.count("\n")
