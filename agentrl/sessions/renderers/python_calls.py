"""Calls spelt as Python: name(key=value, …), in a list or one on each line, whose values are constants.

Read from left to right in one pass, and to a bounded depth: Python's own parser, on what a model may write, takes time
that grows with a power of its length.
"""

from __future__ import annotations

import ast
import keyword
import re
import unicodedata
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from agentrl.sessions.renderers.calls import dumps
from agentrl.types import FunctionCall, ToolCall

T = TypeVar("T")

MOST_DEPTH = 100
"""Brackets within brackets, about as many as Python's own tokenizer takes."""
_CONSTANTS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_A_VALUE = "a number, a text, a list or a mapping"
_BLANK = re.compile(r"(?:[ \t\f\r\n]|#[^\n]*|\\\r?\n)*")
_NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_NUMBER = re.compile(r"(?:0[xXoObB][0-9a-fA-F_]+|(?:[0-9][0-9_]*)?\.?[0-9_]*(?:[eE][+-]?[0-9_]+)?)")
_TEXT = re.compile(r"([rRuU]?)('''|\"\"\"|'|\")")
_BODIES = {
    "'": re.compile(r"[^'\\]*(?:\\.[^'\\]*)*'", re.DOTALL),
    '"': re.compile(r'[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL),
    "'''": re.compile(r"[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*'''", re.DOTALL),
    '"""': re.compile(r'[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*"""', re.DOTALL),
}
"""The rest of a text after its opening quotes. It may hold line feeds as they are: some templates write them so."""


def python_calls(text: str, index: int) -> list[ToolCall]:
    """The calls of a text.

    Args:
        text: what the model wrote.
        index: which call of the turn the first one is.

    Raises:
        ValueError: it is anything else; it says at which character.
        TypeError: a value is none of JSON's.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes that Python doesn't know
        found = _Reader(text).calls()
    calls = []
    for place, (name, arguments) in enumerate(found, index):
        written = dumps(arguments)
        written.encode()  # a lone surrogate can't leave this process
        calls.append(ToolCall(id=f"call_{place}", function=FunctionCall(name=name, arguments=written)))
    return calls


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self.at, self.depth = text, 0, 0
        self._gap, self._comma_last = 0, False

    def calls(self) -> list[tuple[str, dict[str, Any]]]:
        found: list[tuple[str, dict[str, Any]]] = []
        self._blank()
        while self.at < len(self.text):
            if self._took("["):
                found += self._items("]", self._call)
            else:
                found.append(self._call())
            self._end_of_line()
        return found

    def _call(self) -> tuple[str, dict[str, Any]]:
        name = self._name("the name of a tool")
        arguments: dict[str, Any] = {}

        def argument() -> None:
            key = self._name("key=value")
            if "." in key:
                raise self._expected("the name of an argument")
            self._need("=")
            arguments[key] = self._value()

        self._need("(")
        self._items(")", argument)
        return name, arguments

    def _value(self) -> Any:
        if _TEXT.match(self.text, self.at):
            return self._texts()
        if self._took("["):
            return self._items("]", self._value)
        if self._took("{"):
            return dict(self._items("}", self._member))
        if self._took("("):
            items = self._items(")", self._value)
            return items[0] if len(items) == 1 and not self._comma_last else items
        sign = -1 if self._took("-") else 1
        if sign > 0:
            self._took("+")
        number = _NUMBER.match(self.text, self.at)
        if number and number.group().strip("._"):
            return sign * self._literal(self._match(_NUMBER, ""))
        word = self._match(_NAME, _A_VALUE)
        if word not in _CONSTANTS or sign < 0:
            raise self._expected(_A_VALUE)
        return _CONSTANTS[word]

    def _member(self) -> tuple[Any, Any]:
        key = self._value()
        self._need(":")
        return key, self._value()

    def _texts(self) -> str:
        """A text, or several in a row, which are one."""
        parts: list[str] = []
        while opening := _TEXT.match(self.text, self.at):
            closed = _BODIES[opening.group(2)].match(self.text, opening.end())
            if closed is None:
                raise self._expected("the end of a text that begins")
            raw, quotes = opening.group(1) in ("r", "R"), opening.group(2)
            inner = self.text[opening.end() : closed.end() - len(quotes)]
            if not raw and "\\" in inner:
                inner = self._literal(quotes + inner.replace("\r", "\\r").replace("\n", "\\n") + quotes)
            parts.append(inner)
            self.at = closed.end()
            self._blank()
        return "".join(parts)

    def _literal(self, token: str) -> Any:
        try:
            return ast.literal_eval(token)
        except (SyntaxError, ValueError, MemoryError):
            raise self._expected("a number or a text that Python can read") from None

    def _items(self, closing: str, read: Callable[[], T]) -> list[T]:
        """Read the items between brackets, the opening one of which has been taken."""
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise ValueError(f"brackets are nested deeper than {MOST_DEPTH} at character {self.at}")
        items: list[T] = []
        comma = False
        while not self._took(closing):
            if items and not comma:
                raise self._expected(f"a comma or {closing!r}")
            items.append(read())
            comma = self._took(",")
        self.depth -= 1
        self._comma_last = comma
        return items

    def _end_of_line(self) -> None:
        if self.at < len(self.text) and "\n" not in self.text[self._gap : self.at] and not self._took(";"):
            raise self._expected("the end of a line")

    def _name(self, what: str) -> str:
        name = unicodedata.normalize("NFKC", self._match(_NAME, what))
        if not all(part.isidentifier() and not keyword.iskeyword(part) for part in name.split(".")):
            raise self._expected(what)
        return name

    def _match(self, pattern: re.Pattern[str], what: str) -> str:
        found = pattern.match(self.text, self.at)
        if found is None:
            raise self._expected(what)
        self.at = found.end()
        self._blank()
        return found.group()

    def _need(self, sign: str) -> None:
        if not self._took(sign):
            raise self._expected(repr(sign))

    def _took(self, sign: str) -> bool:
        took = self.text.startswith(sign, self.at)
        if took:
            self.at += len(sign)
            self._blank()
        return took

    def _blank(self) -> None:
        self._gap = self.at  # where the white space before the current place begins
        found = _BLANK.match(self.text, self.at)
        self.at = found.end() if found else self.at

    def _expected(self, what: str) -> ValueError:
        return ValueError(f"expected {what} at character {self.at}")
