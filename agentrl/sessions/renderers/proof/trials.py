"""Proof by trial that extending a conversation gives what rendering it anew would give.

Conversations are generated from a seed, rendered turn by turn as a session grows, and compared at every turn
boundary with a reference that renders the whole (a chat template). The same generator serves the generic
renderer's check at load, `agentrl check renderer=…` and the test-suite.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.errors import RenderError
from agentrl.sessions.renderers.base import Renderer, ToolSchema
from agentrl.sessions.renderers.families.table import Expresses
from agentrl.sessions.renderers.proof.probe import ProbeRenderer, Whole
from agentrl.sessions.renderers.proof.short_conversations import run_around
from agentrl.types import FunctionCall, Message, Node, Tokenizer, ToolCall

_TEXTS = (
    "What is the weather?",
    "42",
    "naïve café 東京 مرحبا",
    "🎉🧑\u200d🚀 ok",
    "line one\nline two\n\nline three",
    "x = {'a': [1, 2]}",
    "<b>bold</b> & co",
    "a  b\tc",
    "1,234.50 €",
    "```python\nprint('hi')\n```",
    "Sure.",
    "- one\n- two",
    "é" * 9,
    "…",
    "I'll look",
    '{"json": true}',
    "don't",
    "C:\\temp\\new",
    "x",
    "the end of the sentence.",
)
_VALUES: tuple[Any, ...] = (
    1, -3, 2.5, True, False, None, "", "Paris", "a\nb", 'say "hi"', "ünï", [], [1, "b", None], {},
    {"k": {"n": [1, {"m": 2}]}},
)  # fmt: skip

TOOLS: tuple[ToolSchema, ...] = (
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Find things.",
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "words to look for"},
                    "limit": {"type": "integer", "default": 5},
                    "where": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["query"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "add_2",
            "description": "Füge hinzu",
            "parameters": {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]},
        },
    },
)

CallId = Callable[[str, int], str]


def nine_letters(name: str, count: int) -> str:
    """A call id that every format accepts (Mistral requires nine letters or digits)."""
    return f"call{count:05d}"


def kimi_id(name: str, count: int) -> str:
    """A call id as Kimi K2 writes it."""
    return f"functions.{name}:{count}"


@dataclass(frozen=True, slots=True)
class RendererProof:
    """The outcome of a trial.

    Attributes:
        boundaries: turn boundaries compared.
        differing: how many of them differed.
        difference: the first one, described.
        refused: conversations that the renderer or the reference could not express.
        refusal: why, of the first one without tools on offer, else of the first.
    """

    boundaries: int
    differing: int
    difference: str
    refused: int
    refusal: str = ""

    @property
    def append_only(self) -> bool:
        """True if extending equalled rendering anew wherever both could be done."""
        return self.boundaries > 0 and self.differing == 0


def conversation(
    rng: random.Random,
    expresses: Expresses,
    *,
    tools: bool = True,
    reasoning: float = 0.0,
    rounds: int = 3,
    call_id: CallId = nine_letters,
) -> list[Message]:
    """A random conversation: a system message or none, then rounds of a user, perhaps tools, and an answer.

    Args:
        rng: where its randomness comes from.
        expresses: what the format can express.
        tools: whether tools are called.
        reasoning: how often assistants reason, from never (0) to always (1).
        rounds: how many user messages at most.
        call_id: makes ids for calls.
    """
    messages = [Message(role="system", content=_text(rng))] if rng.random() < 0.5 else []
    count = 0
    for _ in range(rng.randint(1, rounds)):
        messages.append(Message(role="user", content=_text(rng)))
        while tools and expresses.tools and rng.random() < 0.5:
            calls = []
            for _ in range(rng.randint(1, 3) if expresses.parallel else 1):
                name = rng.choice(("search", "add_2"))
                calls.append(_call(rng, name, call_id(name, count)))
                count += 1
            content = _text(rng) if expresses.content_with_calls and rng.random() < 0.5 else ""
            messages.append(_assistant(rng, content, reasoning, calls))
            messages += [
                Message(role="tool", content=_text(rng, empty=0.1), tool_call_id=call.id, name=call.function.name)
                for call in calls
            ]
        messages.append(_assistant(rng, _text(rng), reasoning, None))
    return messages


def with_system(messages: list[Message], wanted: bool | None) -> list[Message]:
    """The conversation with a system message, or without one; None leaves it as it is."""
    if wanted is None or wanted == (messages[0].role == "system"):
        return messages
    return [Message(role="system", content="Be kind."), *messages] if wanted else messages[1:]


def nodes(renderer: Renderer, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Iterator[tuple[int, Node]]:
    """Grow a session message by message, as rollouts do: what comes between two turns is rendered together.

    Yields:
        (index of the message, its node); the nodes' tokens, one after the other, are the path.
    """
    after: Node | None = None
    start = 0
    while start < len(messages):
        stop = start
        while stop < len(messages) and messages[stop].role != "assistant":
            stop += 1
        if stop == start:
            ids = renderer.generation_prompt(after) + renderer.turn(messages[start])
            after = Node(start, after.id if after else None, messages[start], ids, [], [])
            yield start, after
            start += 1
            continue
        deltas = renderer.render(messages[start:stop], tools=tools if after is None else (), after=after)
        for place, ids in enumerate(deltas, start):
            after = Node(place, after.id if after else None, messages[place], ids, [], [])
            yield place, after
        start = stop


def prove(
    renderer: Renderer,
    reference: Whole | None = None,
    *,
    expresses: Expresses | None = None,
    tools: bool = True,
    reasoning: float = 0.0,
    rounds: int = 3,
    count: int = 30,
    seed: int = 0,
    call_id: CallId = nine_letters,
    system: bool | None = None,
    declared: bool = True,
    spaced: bool = False,
) -> RendererProof:
    """Compare extending with rendering anew, at every turn boundary of generated conversations.

    Args:
        renderer: what is tried.
        reference: renders whole conversations; a `ProbeRenderer` has its own.
        expresses: what the format can express; everything by default (refusals are counted).
        tools: whether the conversations call tools.
        reasoning: how often assistants reason in them, from never (0) to always (1).
        rounds: how many user messages at most.
        count: how many conversations.
        seed: decides them.
        call_id: makes ids for calls.
        system: whether they begin with a system message; None: some do.
        declared: whether the tools that they call may be on offer.
        spaced: whether white space surrounds the texts of users and systems, which templates may trim.
    """
    if reference is None:
        assert isinstance(renderer, ProbeRenderer), "only a ProbeRenderer has its own reference"
        reference = renderer.whole
    boundaries = differing = refused = 0
    difference = ""
    refusals: list[tuple[bool, str]] = []
    for index in range(count):
        rng = random.Random(f"{seed}/{index}")
        able = expresses or Expresses()
        messages = conversation(rng, able, tools=tools, reasoning=reasoning, rounds=rounds, call_id=call_id)
        messages = with_system(messages, system)
        messages = [_surround(message) for message in messages] if spaced else messages
        offered = TOOLS if tools and rng.random() < 0.7 and declared else ()
        try:
            for whole, extended, where in _boundaries(renderer, reference, messages, offered):
                boundaries += 1
                if whole != extended:
                    differing += 1
                    difference = difference or _describe(renderer, whole, extended, where)
        except RenderError as error:
            refused += 1
            refusals.append((bool(offered), str(error)))
            if "append-only" in str(error):
                boundaries += 1
                differing += 1
                difference = difference or str(error)
    _, refusal = min(refusals, key=lambda refused: refused[0], default=(False, ""))
    return RendererProof(boundaries, differing, difference, refused, refusal)


def _surround(message: Message) -> Message:
    """The message with white space around its text, unless that is a result or a model's."""
    given = message.role in ("system", "user")
    return message.model_copy(update={"content": f" {message.text}\n"}) if given else message


def compare_boundaries(renderer: Renderer, reference: Whole, messages: Sequence[Message]) -> RendererProof:
    """Compare extending with rendering anew, at every turn boundary of one conversation without tools.

    Raises:
        RenderError: the renderer or the reference can't express it.
    """
    compared = list(_boundaries(renderer, reference, messages, ()))
    wrong = [_describe(renderer, *one) for one in compared if one[0] != one[1]]
    return RendererProof(len(compared), len(wrong), wrong[0] if wrong else "", 0)


def _boundaries(
    renderer: Renderer, reference: Whole, messages: Sequence[Message], tools: Sequence[ToolSchema]
) -> Iterator[tuple[list[int], list[int], str]]:
    path: list[int] = []
    after: Node | None = None
    for place, node in nodes(renderer, messages, tools):
        seam = len(path)
        if node.message.role == "assistant" and after is not None:
            prompt = renderer.generation_prompt(after)
            where = f"before message {place} (after {after.message.role})"
            seam += len(prompt)
            yield reference(messages[:place], tools, True), path + prompt, where
        path += node.token_ids
        if node.message.role == "assistant":
            path = _merge(renderer.tokenizer, path, seam)
        after = node


def _merge(tokenizer: Tokenizer, path: list[int], seam: int) -> list[int]:
    """The path as a template encodes it, where a prompt's white space joins what follows; sampling begins apart.

    A line break joins other white space alone, a blank the word behind it as well.
    """
    before, behind = tokenizer.decode(path[:seam][-1:]), tokenizer.decode(path[seam : seam + 1])
    if not (before[-1:].isspace() and (behind[:1].isspace() or before[-1:] in " \t")):
        return path
    start, end = run_around(tokenizer, path, seam)
    return [*path[:start], *tokenizer.encode(tokenizer.decode(path[start:end])), *path[end:]]


def _describe(renderer: Renderer, whole: list[int], extended: list[int], where: str) -> str:
    at = next(
        (n for n, (a, b) in enumerate(zip(whole, extended, strict=False)) if a != b), min(len(whole), len(extended))
    )
    decode = renderer.tokenizer.decode
    return (
        f"{where}, at token {at}: rendered anew it reads {decode(whole[max(0, at - 4) : at + 12])!r}, "
        f"extended {decode(extended[max(0, at - 4) : at + 12])!r}"
    )


def _text(rng: random.Random, empty: float = 0.0) -> str:
    if rng.random() < empty:
        return ""
    return rng.choice(("", "", " ", "\n")).join(rng.choice(_TEXTS) for _ in range(rng.randint(1, 3)))


def _call(rng: random.Random, name: str, call_id: str) -> ToolCall:
    keys = rng.sample(("query", "limit", "where", "a", "ключ", "opt_1"), rng.randint(0, 3))
    arguments = {key: rng.choice(_VALUES) for key in keys}
    return ToolCall(id=call_id, function=FunctionCall(name=name, arguments=json.dumps(arguments, ensure_ascii=False)))


def _assistant(rng: random.Random, content: str, reasoning: float, calls: list[ToolCall] | None) -> Message:
    thought = _text(rng) if rng.random() < reasoning else None
    return Message(role="assistant", content=content, reasoning_content=thought, tool_calls=calls)
