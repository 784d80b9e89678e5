"""Blocks that open and close, made into a tree."""

import re

from stencil.lexer import lex
from stencil.nodes import Block, For, If, Set, Text, Value

FOR = re.compile(r"for (\w+) in (.+)", re.DOTALL)
SET = re.compile(r"set (\w+) = (.+)", re.DOTALL)


class TemplateError(ValueError):
    """A template that can't be understood."""


class Template:
    """A template, read once and rendered any number of times."""

    def __init__(self, text):
        pieces = list(lex(text))[::-1]
        self.root = self._block(pieces, None)

    def render(self, values=None):
        """The text for some values."""
        return self.root.render(values if values is not None else {})

    def _block(self, pieces, end):
        children = []
        while pieces:
            kind, content, line = pieces.pop()
            if kind == "text":
                children.append(Text(content))
            elif kind == "value":
                children.append(Value(content))
            elif content == end:
                return Block(children)
            elif match := FOR.fullmatch(content):
                children.append(For(match[1], match[2], self._block(pieces, "endfor")))
            elif match := SET.fullmatch(content):
                children.append(Set(match[1], match[2]))
            elif content.startswith("if "):
                children.append(If(content[3:], self._block(pieces, "endif")))
            else:
                raise TemplateError(f"line {line}: unexpected {{% {content} %}}")
        if end:
            raise TemplateError(f"{{% {end} %}} is missing")
        return Block(children)
