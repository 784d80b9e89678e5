# ruff: noqa: RUF001 (DeepSeek's delimiters are spelt with a full-width bar)
"""Texts that a model may write to keep its reader busy: kinds of them, each of any length."""

from __future__ import annotations

from collections.abc import Iterator

REPEATED = (
    *("[", "{", "(", "'", '"', "\\", "<", "[[", "'\\", '"\\"', "{}", "[]", "()", ",", ";", ":", "-", "#", " ", "\n"),
    *('{"a":', "f(", "f(a=", "f(a=[", "f(a={'b':", "f(a=1)\n", '{"name":"f","parameters":{}}', "1", "1e", "a.", "é"),
    *("</parameter>", "</parameter> \n", "<parameter=a>", "<parameter=a>\n</parameter>\n\n", '<parameter name="a">'),
    *('<invoke name="f">', "</invoke> ", '<invoke name="f"></invoke>', "</｜DSML｜parameter>", "\n```json\n{}\n```"),
    *('<｜DSML｜parameter name="a" string="true">', "call:f{", "a:[", "to=", "\ud800", "\0", "\u2028", "'''", "not "),
)
"""What nests, what never closes, what closes too often, separators, long numbers, white space, odd characters."""
_PLACES = {
    "": ("", ""),
    "llama": ("[f(a=", ")]"),
    "pythonic": ("f(a=", ")"),
    "hermes": ('{"name":"f","arguments":', "}"),
    "qwen": ("<function=f><parameter=a>", "</parameter></function>"),
    "minimax": ('<invoke name="f"><parameter name="a">', "</parameter></invoke>"),
    "deepseek-v4": ('<｜DSML｜invoke name="f">', "</｜DSML｜invoke>"),
    "gemma": ("call:f{", "}"),
}
"""Where in a call's text it stands: by itself, and as a value, by what a grammar's name begins with."""


def bombs(grammar: str, length: int) -> Iterator[tuple[str, str]]:
    """Each kind's name, and one of about so many characters, in each place where a grammar's calls may hold it."""
    for name, (before, after) in _PLACES.items():
        if grammar.startswith(name):
            for unit in REPEATED:
                yield f"{before!r} {unit!r}", before + unit * max(length // len(unit), 1) + after
