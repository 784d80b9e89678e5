"""A page as an agent reads it: its text, with a number in it for each link, button and field."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Literal

Kind = Literal["link", "button", "text", "choice", "checkbox", "radio"]
BLOCKS = frozenset(
    {"p", "div", "ul", "ol", "li", "h1", "h2", "h3", "form", "table", "tr", "br", "hr", "body", "header"}
)
"""Elements that begin and end a line."""
BEFORE = {"li": "- ", "h1": "# ", "h2": "## ", "h3": "### ", "td": " | ", "th": " | "}
UNSEEN = frozenset({"head", "script", "style", "template"})
INPUTS: dict[str, Kind] = {"checkbox": "checkbox", "radio": "radio", "submit": "button", "button": "button"}
"""The kinds of the types of <input>; the others are lines of text."""
MAX_PAGE = 20_000
"""Characters of a page that are shown."""


@dataclass
class Element:
    """A link, a button or a field.

    Attributes:
        number: its number on the page, from 1, in the order of the document.
        words: what is written on a link or button.
        name: the field's, as it is sent.
        value: what is in the field; what a checkbox, radio button or button sends.
        href: a link's address.
        form: the number of its form on the page; None outside of any.
        options: what can be chosen.
        on: whether a checkbox or radio button is.
    """

    kind: Kind
    number: int
    words: str = ""
    name: str = ""
    value: str = ""
    href: str = ""
    form: int | None = None
    options: list[str] = field(default_factory=list)
    on: bool = False

    def __str__(self) -> str:
        if self.kind == "link":
            return f"[{self.number} {self.words}]"
        if self.kind == "button":
            return f"[{self.number} button: {self.words}]"
        if self.kind == "choice":
            return f"[{self.number} choice: {self.value}, of {', '.join(self.options)}]"
        if self.kind == "text":
            return f'[{self.number} field: "{self.value}"]'
        return f"[{self.number} {self.kind}: {'on' if self.on else 'off'}]"


@dataclass
class PageForm:
    """A form's address, method and fields; `hidden` are the values that nobody sees."""

    path: str
    method: str
    hidden: dict[str, str] = field(default_factory=dict)


@dataclass
class Page:
    """A page that was loaded; what is typed into it is in its elements.

    Attributes:
        url: its address.
        parts: its text and its elements, in order.
        forms: its forms, in order.
    """

    url: str = ""
    parts: list[str | Element] = field(default_factory=list)
    forms: list[PageForm] = field(default_factory=list)

    @property
    def elements(self) -> list[Element]:
        """Links, buttons and fields; the first has the number 1."""
        return [part for part in self.parts if isinstance(part, Element)]

    def text(self) -> str:
        """The page as an agent reads it."""
        parts = (f" {part} " if isinstance(part, Element) else part for part in self.parts)
        lines = (" ".join(line.split()) for line in "".join(parts).splitlines())
        words = "\n".join(line for line in lines if line.strip("-# "))
        shown = words if len(words) <= MAX_PAGE else f"{words[:MAX_PAGE]}\n(the rest of the page is left out)"
        return f"{self.url}\n{shown}"

    def sent(self, button: Element | None, form: int) -> dict[str, str]:
        """The fields that a form sends, by a button or, with None, by the Enter key."""
        fields = dict(self.forms[form].hidden)
        for element in self.elements:
            if element.form == form and element.name and (element.kind in ("text", "choice") or element.on):
                fields[element.name] = element.value
        if button is not None and button.name:
            fields[button.name] = button.value
        return fields


def parse(url: str, html: str) -> Page:
    """The page of a document."""
    reader = _Reader(url)
    reader.feed(html)
    reader.close()
    return reader.page


class _Reader(HTMLParser):
    """Reads a document from its beginning to its end; an element's words are gathered until it closes."""

    def __init__(self, url: str) -> None:
        super().__init__(convert_charrefs=True)
        self.page = Page(url)
        self._unseen = self._count = 0
        self._form: int | None = None
        self._open: Element | None = None
        self._option: str | None = None
        self._selected = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self._unseen += tag in UNSEEN
        if tag in BLOCKS:
            self.page.parts.append("\n")
        if tag in BEFORE:
            self.page.parts.append(BEFORE[tag])
        if tag == "form":
            self._form = len(self.page.forms)
            self.page.forms.append(PageForm(given.get("action", ""), given.get("method", "get").lower()))
        elif tag == "a" and "href" in given:
            self._open = self._add("link", href=given["href"])
        elif tag in ("button", "select", "textarea"):
            kinds: dict[str, Kind] = {"button": "button", "select": "choice", "textarea": "text"}
            self._open = self._add(kinds[tag], name=given.get("name", ""), value=given.get("value", ""))
        elif tag == "input":
            self._input(given)
        elif tag == "option" and self._open is not None:
            self._option, self._selected = "", "selected" in given

    def _input(self, given: dict[str, str]) -> None:
        kind, name, value = given.get("type", "text"), given.get("name", ""), given.get("value", "")
        if kind == "hidden":
            if self._form is not None:
                self.page.forms[self._form].hidden[name] = value
            return
        added = self._add(INPUTS.get(kind, "text"), name=name, value=value, on="checked" in given)
        if added.kind == "button":
            added.words = value

    def _add(self, kind: Kind, **given: str | bool) -> Element:
        self._count += 1
        element = Element(kind, self._count, form=self._form, **given)  # type: ignore[arg-type]
        self.page.parts.append(element)
        return element

    def handle_endtag(self, tag: str) -> None:
        self._unseen -= tag in UNSEEN
        if tag in BLOCKS:
            self.page.parts.append("\n")
        if tag == "form":
            self._form = None
        elif tag == "option":
            self._end_option()
        elif tag in ("a", "button", "select", "textarea") and self._open is not None:
            self._open.words = " ".join(self._open.words.split())
            if self._open.kind == "text":
                self._open.value, self._open.words = self._open.words, ""
            self._open = None

    def _end_option(self) -> None:
        if self._open is None or self._option is None:
            return
        words = " ".join(self._option.split())
        if self._selected or not self._open.options:  # the first, unless one is selected
            self._open.value = words
        self._open.options.append(words)
        self._option = None

    def handle_data(self, data: str) -> None:
        if self._unseen:
            return
        if self._option is not None:
            self._option += data
        elif self._open is not None:
            self._open.words += data
        else:
            self.page.parts.append(re.sub(r"\s+", " ", data))
