"""Any Hugging Face chat template, if it proves that it only ever appends.

The template itself writes; `ProbeRenderer` makes extensions out of it. Before it is used, `proof.prove` renders
generated conversations whole and piece by piece: a template that rewrites what comes before (drops earlier
reasoning, moves the tools to the last message) is refused, with the place where it differs. So is one whose texts don't
come out of its tokens again (`markers`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from agentrl.errors import ConfigError, RenderError
from agentrl.models.tokenizers import HFTokenizer
from agentrl.sessions.renderers.base import ToolSchema
from agentrl.sessions.renderers.ends import stop_token
from agentrl.sessions.renderers.families.table import Expresses
from agentrl.sessions.renderers.grammars import GRAMMARS, PLAIN
from agentrl.sessions.renderers.proof.markers import lost
from agentrl.sessions.renderers.proof.probe import ProbeRenderer, Whole
from agentrl.sessions.renderers.proof.reading import fitting, reads
from agentrl.sessions.renderers.proof.short_conversations import USER
from agentrl.sessions.renderers.proof.trials import TOOLS, RendererProof, prove
from agentrl.sessions.renderers.template import template_whole
from agentrl.types import FunctionCall, Message, ToolCall

_log = logging.getLogger(__name__)

_REMEDY = "fix the template, or name a renderer that fits with model.renderer="
NO_TOOLS = "the chat template has no place for tools"
UNREADABLE = (
    "no known grammar reads back the calls that the chat template writes; name one with "
    f"model.renderer=generic:GRAMMAR ({', '.join(GRAMMARS)})"
)

_CLUES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("<arg_key>",), "glm"),
    (("<function=", "<tool_call>"), "qwen-xml"),
    (("<tool_call>",), "hermes"),
    (("[TOOL_CALLS]",), "mistral"),
    (("<|tool_calls_section_begin|>",), "kimi"),
    (("tool▁calls▁begin", "```json"), "deepseek"),
    (("tool▁calls▁begin",), "deepseek-v3.1"),
    (('"parameters": ',), "llama"),
)


def fitting_grammar(template: str) -> str:
    """The grammar whose delimiters a chat template writes; `plain` (content and <think>) where there is none."""
    return next((name for clues, name in _CLUES if all(clue in template for clue in clues)), "plain")


def expresses(whole: Whole) -> Expresses:
    """Return what a chat template can express, by whether a field makes a difference to what it writes."""
    plain = Message(role="assistant", content="a")
    call = ToolCall(id="call00000", function=FunctionCall(name="f"))
    bare = plain.model_copy(update={"content": ""})

    def differs(one: Message, other: Message) -> bool:
        try:
            return whole([USER, one], (), False) != whole([USER, other], (), False)
        except RenderError:
            return False

    calling, twice = (bare.model_copy(update={"tool_calls": [call] * count}) for count in (1, 2))
    return Expresses(
        reasoning=differs(plain.model_copy(update={"reasoning_content": "r"}), plain),
        tools=differs(calling, bare),
        parallel=differs(twice, calling),
        content_with_calls=differs(plain.model_copy(update={"tool_calls": [call]}), calling),
    )


class GenericRenderer(ProbeRenderer):
    """A renderer made of a chat template.

    Attributes:
        able: what the template can express, without tools where their calls can't be read back.
        grammar: the name of the grammar that reads its turns.
        without_tools: why tools are refused; "" where they are not.
        written_stop: the token that is written behind answers, where the template writes none.
    """

    able: Expresses
    grammar: str
    without_tools: str
    written_stop: str = ""


def unproven(tokenizer: HFTokenizer, *, with_tools: bool = True, grammar: str = "", stop: str = "") -> GenericRenderer:
    """The generic renderer without its proof, for whoever runs the proof himself.

    Args:
        tokenizer: has the chat template, or several by their names.
        with_tools: whether the one named "tool_use" is used; without it tools are refused.
        grammar: the name of the one that reads its turns; "" takes one that reads back what the template writes.
        stop: the special token that ends a turn where the template writes none.

    Raises:
        ConfigError: there is no chat template, or no token that ends a turn.
    """
    whole, answered = template_whole(tokenizer), [USER, Message(role="assistant", content="a")]
    end, written = _end_token(tokenizer, whole(answered, (), False)), ""
    if end is None and stop:
        whole, end, written = template_whole(tokenizer, stop=stop), stop_token(tokenizer, stop), stop
    if end is None:
        raise ConfigError(
            "renderer='generic': the chat template ends an assistant's turn with no special token; model.stop= names "
            "the token with which the model ends its turns"
        )
    short = _offering_always(whole) if with_tools and _has_tool_template(tokenizer) else whole

    def made(name: str, able: Expresses, without_tools: str) -> GenericRenderer:
        def offering(messages: Sequence[Message], tools: Sequence[ToolSchema], prompt: bool) -> list[int]:
            if tools and not able.tools:
                raise RenderError(f"generic: {without_tools}")
            return whole(messages, tools, prompt)

        read = GRAMMARS.get(name, PLAIN)
        made = GenericRenderer("generic", tokenizer, offering, read, (end,), end=end, refuse=able.refuse, short=short)
        made.able, made.grammar, made.without_tools, made.written_stop = able, name, without_tools, written
        if made.thinks_in_prompt and not able.reasoning:  # the template reads it out of the content, or drops it
            made.able = replace(able, reasoning=True)
            made._refuse = made.able.refuse
        return made

    able = expresses(short)
    without_tools = "" if able.tools else NO_TOOLS
    renderer = made(grammar or fitting_grammar(tokenizer.tool_template or ""), able, without_tools)
    if grammar or not able.tools or reads(renderer, GRAMMARS.get(renderer.grammar, PLAIN)):
        return renderer
    if other := next(iter(fitting(renderer)), None):
        return made(other, able, "")
    return made("plain", replace(able, tools=False), UNREADABLE)


def generic(tokenizer: HFTokenizer, grammar: str = "", stop: str = "") -> GenericRenderer:
    """A renderer made of the tokenizer's own chat template.

    A template that drops earlier reasoning, and is append-only otherwise, is served: what was sampled stays, and a
    warning says that the template would drop it. Where only the template named "tool_use" is not append-only, the
    default is served, tools are refused, and a warning says so. So are tools whose calls no grammar reads back.

    Args:
        tokenizer: has the chat template.
        grammar: the name of the grammar that reads its turns; "" takes one that reads back what the template writes.
        stop: the special token that ends a turn where the template writes none.

    Raises:
        ConfigError: the template is not append-only, its turns are read as something else, or there is none; the
            message says where it differs.
    """
    try:
        renderer = _proven(tokenizer, grammar, stop)
    except (ConfigError, RenderError) as error:
        if not _has_tool_template(tokenizer):
            raise
        renderer = _proven(tokenizer, grammar, stop, with_tools=False)
        renderer.without_tools = f"the chat template named 'tool_use' can't be served: {error}"
    if grammar and renderer.able.tools and not reads(renderer, GRAMMARS[grammar]):
        _log.warning("the grammar %r does not read back the calls that the chat template writes", grammar)
    elif renderer.without_tools not in ("", NO_TOOLS):
        _log.warning("tools are refused: %s", renderer.without_tools)
    if renderer.thinks_in_prompt:
        _log.warning("the chat template's prompt opens the reasoning; what it drops of that later on is kept here")
    elif (reasoning := prove(renderer, expresses=renderer.able, reasoning=0.8, count=10)).differing:
        _log.warning("the chat template drops earlier reasoning, which is kept here: %s", reasoning.difference)
    return renderer


def _has_tool_template(tokenizer: HFTokenizer) -> bool:
    return tokenizer.chat_template is not None and tokenizer.tool_template != tokenizer.chat_template


def _offering_always(whole: Whole) -> Whole:
    """A template that always has tools: what their declaration adds is in both sides of a comparison."""
    return lambda messages, tools, prompt: whole(messages, tools or TOOLS[1:], prompt)


def _proven(tokenizer: HFTokenizer, grammar: str, stop: str, *, with_tools: bool = True) -> GenericRenderer:
    renderer = unproven(tokenizer, with_tools=with_tools, grammar=grammar, stop=stop)
    proof = append_proof(renderer)
    if not proof.append_only:
        if not proof.boundaries:
            every = f"none of {proof.refused} generated conversations could be rendered: {proof.refusal}"
            raise ConfigError(f"renderer='generic': {every}; {_REMEDY}")
        raise ConfigError(f"renderer='generic': the chat template is not append-only: {proof.difference}; {_REMEDY}")
    if what := lost(renderer):
        raise ConfigError(f"renderer='generic': the chat template can't be read back: {what}; {_REMEDY}")
    return renderer


def append_proof(renderer: GenericRenderer) -> RendererProof:
    """The proof that a template appends.

    Where its prompt opens the reasoning, a turn without any leaves a trace that the template drops later on, and the
    reasoning that it drops is kept here: a single question, with reasoning in every turn, is what can be compared.
    """
    tools = renderer.able.tools
    if renderer.thinks_in_prompt:
        return prove(renderer, expresses=renderer.able, tools=tools, reasoning=1.0, rounds=1)
    return prove(renderer, expresses=renderer.able, tools=tools)


def _end_token(tokenizer: HFTokenizer, ids: list[int]) -> int | None:
    """The first special token behind an assistant's message: what ends its turn."""
    special = set(tokenizer.added.values())
    content = max(
        (n for n, index in enumerate(ids) if index not in special and tokenizer.decode([index]).strip()), default=0
    )
    return next((index for index in ids[content:] if index in special), None)
