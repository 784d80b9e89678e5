"""The HTML of the sites; every text is escaped here, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape


def document(title: str, *body: str) -> str:
    """A whole page; its title is its heading."""
    words = escape(title)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{words}</title></head>'
        f"<body><h1>{words}</h1>{''.join(body)}</body></html>"
    )


def text(words: str) -> str:
    """A paragraph."""
    return f"<p>{escape(words)}</p>"


def link(path: str, words: str) -> str:
    """A link within the site."""
    return f'<a href="{escape(path)}">{escape(words)}</a>'


def items(lines: Iterable[str]) -> str:
    """A list of lines that are HTML already."""
    return f"<ul>{''.join(f'<li>{line}</li>' for line in lines)}</ul>"


def form(path: str, *inside: str, method: str = "post") -> str:
    """A form; browsers shall not fill it in by themselves."""
    return f'<form action="{escape(path)}" method="{method}" autocomplete="off">{"".join(inside)}</form>'


def hidden(name: str, value: str) -> str:
    """A value that is sent with the form and not shown."""
    return f'<input type="hidden" name="{escape(name)}" value="{escape(value)}">'


def field(name: str, label: str, value: str = "") -> str:
    """A line of text."""
    return f'<p><label>{escape(label)}: <input type="text" name="{name}" value="{escape(value)}"></label></p>'


def choice(name: str, label: str, options: Iterable[str], value: str) -> str:
    """A list to choose one from."""
    each = "".join(f"<option{' selected' * (words == value)}>{escape(words)}</option>" for words in options)
    return f'<p><label>{escape(label)}: <select name="{name}">{each}</select></label></p>'


def radio(name: str, label: str, options: Iterable[str], value: str) -> str:
    """Buttons of which one is on."""
    each = "".join(
        f'<li><label><input type="radio" name="{name}" value="{escape(words)}"{" checked" * (words == value)}> '
        f"{escape(words)}</label></li>"
        for words in options
    )
    return f"<p>{escape(label)}:</p><ul>{each}</ul>"


def checkbox(name: str, label: str, on: bool) -> str:
    """A box to tick."""
    return f'<p><label><input type="checkbox" name="{name}" value="yes"{" checked" * on}> {escape(label)}</label></p>'


def button(words: str) -> str:
    """A button that sends the form."""
    return f'<button type="submit">{escape(words)}</button>'
