"""Grammars of turns whose tool calls fit the tools' schemas, as an engine keeps to them (`Sampling.lark`).

How a format writes calls is read off turns that its renderer writes, so no family has a line here: what comes before a
call's name, between name and arguments, after them, and between two calls. Tags that are special tokens are tokens of
the grammar; tags that are text begin a call wherever the model writes them. What is before a call is free: text, and
the format's reasoning in its marks. Formats whose arguments are no JSON, whose calls carry ids or begin with no tag,
have none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from agentrl.errors import RenderError
from agentrl.sessions.renderers.base import Renderer, ToolSchema
from agentrl.types import FunctionCall, Message, ToolCall

Pieces = tuple[int | str, ...]
"""Special tokens by their ids, and the text between them."""
_NAME, _OTHER, _ARGUMENTS = "agentrl_probe", "agentrl_other", '{"agentrl_key": 1}'
_PARTS = re.compile(f"({_NAME}|{_OTHER}|{re.escape(_ARGUMENTS)})")
_SPELLING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": True}
_SHORTEST = 5
"""The fewest characters of a tag that is text: shorter ones come in other texts as well."""


@dataclass(frozen=True)
class CallFormat:
    """The pieces of a format's turns with calls: `before` NAME `within` ARGUMENTS `after`.

    `between` two calls stands for the first one's `after` and the second one's `before`; None where a turn has one call
    at most. `marks` are the special tokens of reasoning.
    """

    before: Pieces
    within: Pieces
    after: Pieces
    between: Pieces | None
    marks: tuple[int, ...]

    @classmethod
    def of(cls, renderer: Renderer) -> CallFormat:
        """Read a renderer's turns with calls; RenderError where there is no grammar of them."""
        one = _probe(renderer, _NAME)
        if len(one) != 3:
            raise _refusal(renderer, "its calls have no arguments in JSON")
        if one != _probe(renderer, _NAME, id_of="call_7{}"):
            raise _refusal(renderer, "its calls carry ids")
        before, within, after = one
        try:
            two = _probe(renderer, _NAME, _OTHER)
        except RenderError:
            two = []  # it has a place for one call alone
        alike = len(two) == 5 and (two[0], two[1], two[3], two[4]) == (before, within, within, after)
        if not before or (isinstance(before[0], str) and len(_tag(before[0])) < _SHORTEST):
            raise _refusal(renderer, "no tag begins its calls")
        return cls(before, within, after, two[2] if alike else None, _reasoning(renderer))


def call_grammar(
    renderer: Renderer,
    tools: Sequence[ToolSchema],
    *,
    checked: frozenset[str] | None = None,
    begun: Sequence[int] | None = None,
    parallel: bool = True,
    form: str | None = None,
) -> str:
    """The grammar, in Lark, of a turn in which each call is of one of the tools, with arguments that fit its schema.

    Args:
        renderer: the format.
        tools: what may be called.
        checked: the tools whose arguments must fit; those of others are any JSON object. None: all.
        begun: the tokens of a call that are written already, where the turn has to be a call.
        parallel: whether a turn may have several calls.
        form: the JSON schema of a turn without calls; None: any text.

    Raises:
        RenderError: there is none for this format, or these tokens begin no call.
    """
    known = CallFormat.of(renderer)
    bodies = [((tool["function"]["name"], *known.within), _arguments(tool, checked)) for tool in tools]
    more = "" if known.between is None or not parallel else f"({_lark(known.between)} call)* "
    rules = [
        f"call: {' | '.join(f'{_lark(head)} {schema}' for head, schema in bodies)}",
        f"rest: {more}{_lark(known.after)}",
        f"TEXT: {_text(renderer, known.before[0])}",
    ]
    if begun is None:
        return "\n".join(["%llguidance {}", *_free(known, form), *rules, ""])
    written = _pieces(renderer, begun)
    left = [(_find_rest((*known.before, *head), written), schema) for head, schema in bodies]
    begins = [f"{_lark(head)} {schema} rest" for head, schema in left if head is not None]
    if not begins:
        raise _refusal(renderer, "the tokens that are written already begin none of its calls")
    return "\n".join(["%llguidance {}", f"start: {' | '.join(begins)}", *rules, ""])


def before_arguments(renderer: Renderer, tools: Sequence[ToolSchema], tokens: Sequence[int]) -> list[int]:
    """Return the longest beginning of a call's tokens that has nothing of its arguments.

    Raises:
        RenderError: this format has no grammar of calls.
    """
    known = CallFormat.of(renderer)
    heads = [(*known.before, tool["function"]["name"], *known.within) for tool in tools]
    left = list(tokens)
    while left and all(_find_rest(head, _pieces(renderer, left)) is None for head in heads):
        left.pop()
    return left


def _free(known: CallFormat, form: str | None) -> list[str]:
    """The rules of a turn from its beginning."""
    first, others = known.before[0], known.before[1:]
    marks = [f"<[{mark}]>" for mark in known.marks]
    reasoned = f"(TEXT ({' | '.join(marks)}))* " if marks else ""
    if len(marks) == 2:  # the first is the prompt's where that opens with it
        reasoned = f"(TEXT {marks[1]})? (TEXT {marks[0]} TEXT {marks[1]})* "
    text, answer = ("TEXT ", "TEXT") if form is None else ("", f"%json {form}")
    if isinstance(first, int):
        return [f"start: {reasoned}({text}<[{first}]> {_lark(others)} call rest | {answer})"]
    tag = _tag(first)
    begins = f"opened {_lark((first[len(tag) :], *others))}" if form is None else _lark(known.before)
    opened = [] if form is not None else [f"opened[lazy]: TEXT {_quote(tag)}"]
    return [f"start: {reasoned}({begins} call rest | {answer})", *opened]


def _text(renderer: Renderer, first: int | str) -> str:
    """Any text; without the tag of a call where that token is text to servers, since its file calls it no special."""
    added = getattr(renderer.tokenizer, "added", {})
    tag = next((tag for tag, token in added.items() if token == first), None)
    if tag is None or first not in getattr(renderer.tokenizer, "unmarked", ()):
        return "/(.|\\n)*/"
    return f"/(.|\\n)*/ & ~/(.|\\n)*{re.escape(tag).replace('/', '[/]')}(.|\\n)*/"


def _arguments(tool: ToolSchema, checked: frozenset[str] | None) -> str:
    function = tool["function"]
    schema: dict[str, Any] = {"type": "object"}
    if checked is None or function["name"] in checked:
        schema = dict(function.get("parameters") or schema)
    return f"%json {json.dumps({**schema, 'x-guidance': _SPELLING})}"


def _probe(renderer: Renderer, *names: str, id_of: str = "call_{}") -> list[Pieces]:
    """The pieces around names and arguments of a turn that calls these."""
    calls = [
        ToolCall(id=id_of.format(at), function=FunctionCall(name=name, arguments=_ARGUMENTS))
        for at, name in enumerate(names)
    ]
    found: list[Pieces] = [()]
    for piece in _pieces(renderer, renderer.turn(Message(role="assistant", tool_calls=calls))):
        for part in [piece] if isinstance(piece, int) else _PARTS.split(piece):
            if isinstance(part, str) and _PARTS.fullmatch(part):
                found.append(())
            elif part != "":
                found[-1] = (*found[-1], part)
    return found


def _reasoning(renderer: Renderer) -> tuple[int, ...]:
    """The special tokens of a turn's reasoning."""
    try:
        turn = renderer.turn(Message(role="assistant", content="a", reasoning_content="b"))
    except RenderError:
        return ()
    plain = renderer.turn(Message(role="assistant", content="a"))
    found = [piece for piece in _pieces(renderer, turn) if isinstance(piece, int)]
    return tuple(dict.fromkeys(mark for mark in found if mark not in plain))


def _pieces(renderer: Renderer, ids: Sequence[int]) -> Pieces:
    """Tokens as special ones and the text between them, without the end of a turn."""
    added = getattr(renderer.tokenizer, "added", None)
    if not isinstance(added, dict):
        raise _refusal(renderer, "its tokenizer does not list its special tokens")
    special = frozenset(added.values())
    ids = list(ids)
    while ids and ids[-1] in renderer.stop_token_ids:
        ids.pop()
    found: list[int | str] = []
    text: list[int] = []
    for token in [*ids, None]:
        if token is not None and token not in special:
            text.append(token)
            continue
        if text:
            found.append(renderer.tokenizer.decode(text))
        text = []
        if token is not None:
            found.append(token)
    return tuple(found)


def _find_rest(pieces: Pieces, written: Pieces) -> Pieces | None:
    """The rest of pieces, the beginning of which is written; None where something else is."""
    merged = _merge(pieces)
    for at, (piece, given) in enumerate(zip_longest(merged, written)):
        if given is None or piece == given:
            continue
        if isinstance(piece, str) and isinstance(given, str) and piece.startswith(given) and at == len(written) - 1:
            return (piece[len(given) :], *merged[at + 1 :])
        return None
    return merged[len(written) :]


def _merge(pieces: Pieces) -> Pieces:
    """The same with neighbouring texts in one."""
    found: list[int | str] = []
    for piece in pieces:
        last = found[-1] if found else None
        if isinstance(piece, str) and isinstance(last, str):
            found[-1] = last + piece
        else:
            found.append(piece)
    return tuple(found)


def _tag(text: str) -> str:
    """Return what a call begins with: a text up to its first blank."""
    return text.split(maxsplit=1)[0] if text[:1].strip() else ""


def _lark(pieces: Pieces) -> str:
    found = " ".join(f"<[{piece}]>" if isinstance(piece, int) else _quote(piece) for piece in pieces if piece != "")
    return found or '""'


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _refusal(renderer: Renderer, why: str) -> RenderError:
    return RenderError(f"the format {renderer.name} has no grammar of tool calls: {why}")
