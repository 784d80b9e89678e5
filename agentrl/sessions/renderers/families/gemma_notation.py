"""Gemma 4's notation for values: JSON without quotes around keys, and strings between <|"|> tokens.

    call:NAME{key:<|"|>text<|"|>,other:[1,true,null]}

A string ends at the next <|"|> token and nowhere else, so nothing in it is escaped. Keys are bare, which leaves no
room for the characters that the notation itself is made of; such keys are refused. Order is the one that Google's
chat template gives: by key, whatever its case.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from agentrl.errors import RenderError
from agentrl.sessions.renderers.base import ToolSchema
from agentrl.sessions.renderers.calls import dumps, is_name
from agentrl.sessions.renderers.grammar import Mark, malformed
from agentrl.types import FunctionCall, ToolCall

QUOTE = Mark('<|"|>')
_BARE = re.compile(r"[^\s:,{}\[\]\"](?:[^:,{}\[\]\"]*[^\s:,{}\[\]\"])?")
_SIGNS = re.compile(r"([:,{}\[\]])")

Pieces = Iterator[str]
"""Text, and `QUOTE` where a quotation token stands."""


def write_value(value: Any, *, quoted_keys: bool = False) -> Pieces:
    """A JSON value in the notation.

    Args:
        value: what `json.loads` gives.
        quoted_keys: whether keys stand between quotation tokens, as they do in what describes a tool.

    Raises:
        RenderError: a bare key can't be distinguished from the notation.
    """
    if isinstance(value, str):
        yield from quoted(value)
    elif isinstance(value, Mapping):
        yield "{"
        for place, (key, item) in enumerate(in_order(value)):
            yield "," * (place > 0)
            yield from quoted(key) if quoted_keys else (_bare(key),)
            yield ":"
            yield from write_value(item, quoted_keys=quoted_keys)
        yield "}"
    elif isinstance(value, list):
        yield "["
        for place, item in enumerate(value):
            yield "," * (place > 0)
            yield from write_value(item, quoted_keys=quoted_keys)
        yield "]"
    else:
        yield dumps(value)


def quoted(text: str) -> Pieces:
    """Return a string in quotation tokens."""
    yield from (QUOTE, text, QUOTE)


def in_order(value: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """A mapping's members as the template orders them."""
    return sorted(value.items(), key=lambda member: member[0].lower())


def _bare(key: str) -> str:
    if _BARE.fullmatch(key) is None:
        raise RenderError(f"gemma-4 writes keys without quotes, and has no place for {key!r}")
    return key


def read_gemma(body: Sequence[str], index: int, tools: Sequence[ToolSchema]) -> list[ToolCall]:
    """One call: call:NAME{key:value,…}. Never raises."""
    raw, (outside, strings) = "".join(body), _divided(body)
    head, brace, rest = outside[0].partition("{")
    name = head.strip().removeprefix("call:")
    if not brace or name == head.strip():
        return [malformed(raw, index, "a call is call:NAME{key:value,…}")]
    if not is_name(name):
        return [malformed(raw, index, f"{name[:80]!r} is not the name of a tool")]
    if len(outside) == len(strings) or any('"' in part for part in outside):
        return [malformed(raw, index, f"text stands between two {QUOTE}")]
    keyed = [_keyed(part) for part in (rest, *outside[1:])]
    written = "".join(f"{dumps(text)}{part}" for text, part in zip(strings, keyed[1:], strict=True))
    try:
        arguments = dumps(json.loads(f"{{{keyed[0]}{written}", parse_constant=_no_number))
    except (ValueError, RecursionError) as error:
        return [malformed(raw, index, f"its arguments can't be read ({error})")]
    return [ToolCall(id=f"call_{index}", function=FunctionCall(name=name, arguments=arguments))]


def _divided(body: Sequence[str]) -> tuple[list[str], list[str]]:
    """The texts outside the quotation tokens and those between, in turns; as many of both: one is still open."""
    runs: list[list[str]] = [[]]
    for part in body:
        if isinstance(part, Mark):
            runs.append([])
        else:
            runs[-1].append(part)
    texts = ["".join(run) for run in runs]
    return texts[::2], texts[1::2]


def _keyed(part: str) -> str:
    """A part outside strings, with quotes around its keys: a word before a colon is one."""
    pieces = _SIGNS.split(part)
    words, signs = pieces[::2], [*pieces[1::2], ""]
    return "".join(
        f"{dumps(word.strip()) if sign == ':' and word.strip() else word}{sign}"
        for word, sign in zip(words, signs, strict=True)
    )


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no value")
