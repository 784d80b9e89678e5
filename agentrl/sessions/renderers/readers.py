# ruff: noqa: RUF001, RUF002 (DeepSeek's delimiters are spelt with a full-width bar)
"""Tool calls that are not one JSON object with a name: fenced, listed, tagged, or spelt as Python.

Each reader takes a tool-call region's body (text and inner marks), the index of its first call and the tools on
offer, and gives the calls. None of them raises, whatever the model wrote.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.sessions.renderers.base import ToolSchema
from agentrl.sessions.renderers.calls import array_slices, dumps, is_name, object_members, read_json_call
from agentrl.sessions.renderers.grammar import Mark, make_malformed
from agentrl.sessions.renderers.python_calls import python_calls
from agentrl.types import FunctionCall, ToolCall

_BLANK = re.compile(r"\s*")


@dataclass(frozen=True, slots=True)
class ElementKind:
    """One kind of element: its opening tag, what every opening tag begins with, and its closing tag."""

    opening: re.Pattern[str]
    begins: str
    closing: str


Element = tuple[re.Match[str], str, str]
"""An element: its opening tag, its value, and itself as written."""


def elements(text: str, kind: ElementKind) -> tuple[list[Element], int]:
    """The elements that a text begins with, <open …>value<close>, whose values may hold anything.

    A value ends at the first closing tag after which another element begins or the text ends. Each character is looked
    at a bounded number of times; regular expressions that look ahead from each place would be quadratic.

    Returns:
        The elements, and where the text goes on that is none; that is the text's length where all of it is.
    """
    found: list[Element] = []
    at = _after_blank(text, 0)
    while at < len(text):
        opened = kind.opening.match(text, at)
        if opened is None:
            break
        closed = _close(text, kind, opened.end())
        if closed < 0:
            break
        end = closed + len(kind.closing)
        found.append((opened, text[opened.end() : closed], text[at:end]))
        at = _after_blank(text, end)
    return found, at


def _close(text: str, kind: ElementKind, start: int) -> int:
    """The index of the value's closing tag; -1 where there is none."""
    while (closed := text.find(kind.closing, start)) >= 0:
        following = _after_blank(text, closed + len(kind.closing))
        if following == len(text) or text.startswith(kind.begins, following):
            return closed
        start = following if following > closed + len(kind.closing) else closed + len(kind.closing)
    return -1


def _after_blank(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return found.end() if found else at


Calls = list[ToolCall]


def read_named(name: str, arguments: str, index: int, call_id: str | None = None) -> ToolCall:
    """A call whose name and JSON arguments stand apart; the arguments keep their exact text."""
    if not is_name(name):
        return make_malformed(f"{name}{arguments}", index, f"{name[:80]!r} is not the name of a tool")
    try:
        if not isinstance(json.loads(arguments), dict):
            return make_malformed(f"{name}{arguments}", index, f"its arguments are not a JSON object: {arguments[:80]}")
    except (ValueError, RecursionError) as error:
        return make_malformed(f"{name}{arguments}", index, f"its arguments are not valid JSON ({error})")
    return ToolCall(id=call_id or f"call_{index}", function=FunctionCall(name=name, arguments=arguments))


# --------------------------------------------------------------------------------- DeepSeek and Kimi

_FENCE = re.compile(r"([^\n]*)\n```json\n(.*)\n```\Z", re.DOTALL)


def read_deepseek(body: Sequence[str], index: int, tools: Sequence[ToolSchema]) -> Calls:
    """DeepSeek V3 and R1: type ⟨sep⟩ name, newline, a ```json fence. V3.1: name ⟨sep⟩ arguments."""
    parts = [part for part in _join(body) if not isinstance(part, Mark)]
    if len(parts) != 2 or len(_join(body)) != 3:
        return [make_malformed("".join(body), index, "a call is name<｜tool▁sep｜>arguments")]
    head, tail = parts
    fenced = _FENCE.match(tail)
    if head == "function" and fenced:
        return [read_named(fenced.group(1), fenced.group(2), index)]
    return [read_named(head.strip(), tail, index)]


_DSML_INVOKE = ElementKind(re.compile(r'<｜DSML｜invoke name="([^"\n]+)">'), "<｜DSML｜invoke ", "</｜DSML｜invoke>")
_DSML_PARAMETER = ElementKind(
    re.compile(r'<｜DSML｜parameter name="([^"\n]+)" string="(true|false)">'),
    "<｜DSML｜parameter ",
    "</｜DSML｜parameter>",
)


def read_dsml(body: Sequence[str], index: int, tools: Sequence[ToolSchema]) -> Calls:
    """DeepSeek V4: <｜DSML｜invoke name="NAME"> and parameters that say whether they are text or JSON."""

    def read(name: str, found: Sequence[Element], raw: str, place: int) -> ToolCall:
        members = (
            f"{dumps(opened.group(1))}: {dumps(value) if opened.group(2) == 'true' else value}"
            for opened, value, _ in found
        )
        return read_named(name, f"{{{', '.join(members)}}}", place)

    problem = "a call is <｜DSML｜invoke> with <｜DSML｜parameter>s inside, each with name and string"
    return _read_invoked("".join(body), index, (_DSML_INVOKE, _DSML_PARAMETER), read, problem)


def _read_invoked(
    text: str,
    index: int,
    kinds: tuple[ElementKind, ElementKind],
    read: Callable[[str, Sequence[Element], str, int], ToolCall],
    problem: str,
) -> Calls:
    """Calls that are elements with a name, one after another, whose parameters are elements within."""
    calls: Calls = []
    invoked, end = elements(text, kinds[0])
    for opened, value, raw in invoked:
        found, rest = elements(value, kinds[1])
        if rest < len(value):
            return [*calls, make_malformed(text[opened.start() :], index + len(calls), problem)]
        calls.append(read(opened.group(1), found, raw, index + len(calls)))
    if end < len(text) or not calls:
        calls.append(make_malformed(text[end:] if calls else text, index + len(calls), problem))
    return calls


def read_kimi(body: Sequence[str], index: int, tools: Sequence[ToolSchema]) -> Calls:
    """Kimi K2: functions.NAME:INDEX ⟨argument begin⟩ JSON; what comes before is the call's id."""
    joined = _join(body)
    if len(joined) != 3 or not isinstance(joined[1], Mark):
        return [
            make_malformed("".join(body), index, "a call is functions.NAME:INDEX<|tool_call_argument_begin|>arguments")
        ]
    call_id = joined[0].strip()
    name = call_id.removeprefix("functions.").rpartition(":")[0] or call_id
    return [read_named(name, joined[2], index, call_id if is_name(call_id) else None)]


# ------------------------------------------------------------------------------------------- Mistral


def read_mistral(body: Sequence[str], index: int, tools: Sequence[ToolSchema]) -> Calls:
    """A JSON list of calls with ids of nine characters, or (since its v11) name ⟨call id⟩ id ⟨args⟩ JSON, repeated."""
    if any(isinstance(part, Mark) for part in body):
        return _mistral_v11(body, index)
    text = "".join(body)
    try:
        items = array_slices(text)
    except (ValueError, RecursionError) as error:
        return [make_malformed(text, index, f"calls are a JSON list ({error})")]
    calls = []
    for place, item in enumerate(items, index):
        call = read_json_call(item, place)
        if call.error is None and (given := _text_member(item, "id")):
            call = call.model_copy(update={"id": given})
        calls.append(call)
    return calls or [make_malformed(text, index, "the list of calls is empty")]


def _mistral_v11(body: Sequence[str], index: int) -> Calls:
    groups: list[dict[str, list[str]]] = [{}]
    key = ""
    for part in body:
        if not isinstance(part, Mark):
            groups[-1].setdefault(key, []).append(part)
        elif part == "[TOOL_CALLS]":
            groups.append({})
            key = ""
        else:
            key = str(part)

    def text(group: dict[str, list[str]], key: str) -> str:
        return "".join(group.get(key, ()))

    return [
        read_named(text(group, "").strip(), text(group, "[ARGS]"), place, text(group, "[CALL_ID]") or None)
        for place, group in enumerate(groups, index)
    ]


def _text_member(text: str, key: str) -> str | None:
    value, _ = object_members(text).get(key, (None, "null"))
    return value if isinstance(value, str) and is_name(value) else None


# --------------------------------------------------------------------------------------------- Llama

_PYTHONIC = re.compile(r"\[\s*[A-Za-z_][\w.]*\(")


def read_llama(body: Sequence[str], index: int, tools: Sequence[ToolSchema]) -> Calls | None:
    """JSON objects with "name" and "parameters" (several divided by ";"), or a list of calls spelt as Python."""
    text = "".join(body)
    if _PYTHONIC.match(text.lstrip()):
        return _pythonic(text, index)
    calls: Calls = []
    text, at = text.strip(), 0
    decoder = json.JSONDecoder()
    while at < len(text):
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            if not calls and not re.match(r'\{\s*"(name|type|function)"', text):
                return None
            return [*calls, make_malformed(text[at:], index + len(calls), f"it is not valid JSON ({error})")]
        if not isinstance(value, dict) or "name" not in value:
            if not calls:
                return None
            return [*calls, make_malformed(text[at:], index + len(calls), 'a call has "name" and "parameters"')]
        calls.append(read_json_call(text[at:end], index + len(calls), ("parameters", "arguments")))
        at = _DIVIDED.match(text, end).end()  # type: ignore[union-attr]  # which matches anywhere
    return calls or None


_DIVIDED = re.compile(r"\s*;?\s*")


def read_pythonic(body: Sequence[str], index: int, tools: Sequence[ToolSchema]) -> Calls | None:
    """Calls spelt as Python, in a list or one on each line: Llama 4, OLMo 3, LFM2. Constants may be JSON's (true)."""
    text = "".join(body)
    if text.lstrip().startswith("[") and not _PYTHONIC.match(text.lstrip()):
        return None
    return _pythonic(text, index)


def _pythonic(text: str, index: int) -> Calls:
    try:
        calls = python_calls(text, index)
    except (ValueError, TypeError) as error:
        return [make_malformed(text, index, f"it is not a list of calls in Python's notation ({error})")]
    return calls or [make_malformed(text, index, "there is no call in it")]


# --------------------------------------------------------------------------------- XML without quotes

_FUNCTION = re.compile(r"<function=([^>\n]+)>(.*)</function>\Z", re.DOTALL)
_PARAMETER = ElementKind(re.compile(r"<parameter=([^>\n]+)>"), "<parameter=", "</parameter>")


def read_qwen_xml(body: Sequence[str], index: int, tools: Sequence[ToolSchema]) -> Calls:
    """Qwen 3 Coder: <function=NAME> <parameter=KEY> VALUE </parameter> … </function>."""
    text = "".join(body)
    function = _FUNCTION.match(text.strip())
    if function is None:
        return [make_malformed(text, index, "a call is <function=NAME>…</function>")]
    name, inner = function.group(1), function.group(2)
    found, at = elements(inner, _PARAMETER)
    if at < len(inner):
        return [make_malformed(text, index, f"expected <parameter=KEY>…</parameter> at {inner[at : at + 60]!r}")]
    pairs = [(opened.group(1), value.removeprefix("\n").removesuffix("\n")) for opened, value, _ in found]
    return [_typed_call(name, pairs, text, index, tools, _python_or_json)]


_INVOKE = ElementKind(re.compile(r'<invoke name="([^"\n]+)">'), "<invoke ", "</invoke>")
_NAMED = ElementKind(re.compile(r'<parameter name="([^"\n]+)">'), "<parameter ", "</parameter>")


def read_minimax(body: Sequence[str], index: int, tools: Sequence[ToolSchema]) -> Calls:
    """MiniMax M2: <invoke name="NAME"> <parameter name="KEY">VALUE</parameter> … </invoke>, repeated."""

    def read(name: str, found: Sequence[Element], raw: str, place: int) -> ToolCall:
        pairs = [(opened.group(1), value) for opened, value, _ in found]
        return _typed_call(name, pairs, raw, place, tools, json.loads)

    problem = 'a call is <invoke name="NAME"> with <parameter name="KEY">VALUE</parameter> inside'
    return _read_invoked("".join(body), index, (_INVOKE, _NAMED), read, problem)


def read_glm(body: Sequence[str], index: int, tools: Sequence[ToolSchema]) -> Calls:
    """GLM 4.5 and 4.6: NAME, then pairs of ⟨arg_key⟩ KEY ⟨/arg_key⟩ ⟨arg_value⟩ VALUE ⟨/arg_value⟩."""
    raw, parts = "".join(body), _join(body)
    name = parts[0].strip() if parts and not isinstance(parts[0], Mark) else ""
    found: list[tuple[str, str]] = []
    opened: str | None = None
    for part in parts[1:]:
        if isinstance(part, Mark):
            opened = str(part) if not part.startswith("</") else None
            if opened:
                found.append((opened, ""))
        elif opened:
            found[-1] = (opened, part)
        elif part.strip():
            return [make_malformed(raw, index, f"unexpected text between arguments: {part.strip()[:60]!r}")]
    keys, values = found[::2], found[1::2]
    if len(found) % 2 or any(k != "<arg_key>" for k, _ in keys) or any(v != "<arg_value>" for v, _ in values):
        return [make_malformed(raw, index, "arguments are pairs of <arg_key>…</arg_key> and <arg_value>…</arg_value>")]
    pairs = [(key, value) for (_, key), (_, value) in zip(keys, values, strict=True)]
    return [_typed_call(name, pairs, raw, index, tools, json.loads)]


def _typed_call(
    name: str,
    pairs: Sequence[tuple[str, str]],
    raw: str,
    index: int,
    tools: Sequence[ToolSchema],
    decode: Callable[[str], Any],
) -> ToolCall:
    if not is_name(name):
        return make_malformed(raw, index, f"{name[:80]!r} is not the name of a tool")
    schemas = _parameter_schemas(name, tools)
    arguments = {key: _read_typed(text, schemas.get(key), decode) for key, text in pairs}
    return ToolCall(id=f"call_{index}", function=FunctionCall(name=name, arguments=dumps(arguments)))


def _read_typed(text: str, schema: Any, decode: Callable[[str], Any]) -> Any:
    """The value that unquoted text stands for: text where the schema says so, else JSON where it is any."""
    if isinstance(schema, dict) and schema.get("type") == "string":
        return text
    try:
        value = decode(text)
        dumps(value).encode()
    except (ValueError, RecursionError, TypeError):
        return text
    return text if isinstance(value, str) else value


def _python_or_json(text: str) -> Any:
    """Qwen's template writes scalars as Python does (True, None) and the rest as JSON."""
    constants = {"True": True, "False": False, "None": None}
    return constants[text] if text in constants else json.loads(text)


def _parameter_schemas(name: str, tools: Sequence[ToolSchema]) -> dict[str, Any]:
    for tool in tools:
        function = tool.get("function", tool)
        if function.get("name") == name:
            return dict((function.get("parameters") or {}).get("properties") or {})
    return {}


# ------------------------------------------------------------------------------------------- Harmony


def read_harmony(body: Sequence[str], index: int, tools: Sequence[ToolSchema]) -> Calls:
    """gpt-oss: the header names the recipient, the message is the JSON arguments."""
    header, arguments = str(body[0]), "".join(body[1:])
    found = re.search(r"to=([^\s<]+)", header)
    name = found.group(1).removeprefix("functions.") if found else ""
    return [read_named(name, arguments, index)]


def _join(body: Sequence[str]) -> list[str]:
    """The body with neighbouring texts joined, so that it does not show how the stream was cut."""
    joined: list[str] = []
    for is_mark, parts in itertools.groupby(body, key=lambda part: isinstance(part, Mark)):
        joined += list(parts) if is_mark else ["".join(parts)]  # noqa: B031 (one of the two is used)
    return joined
