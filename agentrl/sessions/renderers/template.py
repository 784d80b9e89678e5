"""A model's own chat template, at run time, as a function of whole conversations.

The environment is the one that Hugging Face documents for chat templates (sandboxed Jinja, block trimming,
`tojson` without HTML escaping, `raise_exception`, `strftime_now`), rebuilt here because importing transformers
takes seconds; a test compares it with transformers' own rendering. The day is pinned: a run that is resumed or run
again on another one would write other prompts.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from typing import Any

from agentrl.errors import ConfigError, RenderError, require_extra
from agentrl.models.tokenizers import HFTokenizer
from agentrl.sessions.renderers.base import PINNED_DAY, ToolSchema
from agentrl.sessions.renderers.guard import MarkupGuard
from agentrl.sessions.renderers.proof.probe import Whole
from agentrl.sessions.renderers.proof.short_conversations import USER, common
from agentrl.sessions.renderers.wire import as_wire
from agentrl.types import Message

_GENERATION = re.compile(r"(\{%[-+]?\s*)(end)?generation(\s*[-+]?%\})")


def template_whole(tokenizer: HFTokenizer, *, stop: str = "", **variables: Any) -> Whole:
    """The tokenizer's chat template as a function of whole conversations, without a constant tail.

    Of several, the one named "tool_use" writes conversations with tools on offer and the default all others, as in
    transformers. Calls have no place in the default then: where no tool is on offer, there are none.

    Args:
        tokenizer: has the template.
        stop: the special token that is written behind each answer, for templates that write none there; calls have no
            place then. "" leaves the template as it is.
        variables: further variables that the template is given (`enable_thinking` …).

    Raises:
        ConfigError: it has none, or one that is no valid Jinja.
        MissingExtra: jinja2 is not installed.
    """
    if not tokenizer.chat_template:
        named = ", ".join(map(repr, tokenizer.templates))
        has = f"the chat templates {named} and none named 'default'" if named else "no chat template"
        has = "an empty chat template" if "default" in tokenizer.templates else has
        raise ConfigError(f"this tokenizer has {has}; name a renderer with model.renderer=")
    plain = _whole(tokenizer, tokenizer.chat_template, variables, stop)
    if tokenizer.tool_template in (None, tokenizer.chat_template):
        return plain
    calling = _whole(tokenizer, tokenizer.tool_template or "", variables, stop)

    def whole(messages: Sequence[Message], tools: Sequence[ToolSchema], prompt: bool) -> list[int]:
        if tools:
            return calling(messages, tools, prompt)
        if any(message.role == "tool" or message.tool_calls for message in messages):
            raise RenderError("the chat template named 'default' has no place for calls; they need tools on offer")
        return plain(messages, tools, prompt)

    return whole


def _whole(tokenizer: HFTokenizer, source: str, variables: dict[str, Any], stop: str) -> Whole:
    template = _compile(source)
    guard, seen = MarkupGuard(tokenizer), tokenizer.images
    given = {"documents": None, **_special_tokens(tokenizer.config), **variables}
    place = secrets.token_hex(16)  # no text of a conversation holds it
    ended = re.compile(rf"{place}(\s*){re.escape(stop)}|{place}")

    def render_ids(messages: Sequence[Message], tools: Sequence[ToolSchema], prompt: bool) -> list[int]:
        wire = [as_wire(message, guard, parts=seen is not None) for message in messages]
        for message in wire if stop else ():
            if message.get("tool_calls"):
                raise RenderError("the chat template writes no end of a turn, so a turn that calls tools has none")
            if message["role"] == "assistant":
                if seen is None:
                    message["content"] += place
                else:
                    message["content"].append({"type": "text", "text": place})
        offered = [guard.value(dict(tool)) for tool in tools] or None
        try:
            text = template.render(messages=wire, tools=offered, add_generation_prompt=prompt, **given)
        except Exception as error:  # a template may fail in any way
            raise RenderError(f"the chat template refuses these messages: {error}") from error
        if seen is not None:
            text = seen.expand(text, [url for message in messages for url in message.images])
        return guard.encode(ended.sub(lambda found: f"{found[1] or ''}{stop}", text) if stop else text)

    return _without_tail(render_ids)


def _without_tail(written: Whole) -> Whole:
    """A template without what it writes behind every conversation that it opens no turn after.

    Some templates (Phi-3.5's, Phi-4-mini's) end with `{% else %}{{ eos_token }}`: training data ends there, a
    conversation that continues has no such token. It is subtracted where it is the same tokens behind every trial.
    """
    answer = Message(role="assistant", content="a")
    tails = set()
    for messages in ([USER], [USER, answer], [USER, answer, USER]):
        try:
            closed, opened = (written(messages, (), prompt) for prompt in (False, True))
        except RenderError:
            return written
        tails.add(tuple(closed[common(closed, opened) :]))
    tail = list(tails.pop())
    if tails or not tail:
        return written

    def whole(messages: Sequence[Message], tools: Sequence[ToolSchema], prompt: bool) -> list[int]:
        ids = written(messages, tools, prompt)
        return ids[: -len(tail)] if not prompt and ids[-len(tail) :] == tail else ids

    return whole


def _compile(source: str) -> Any:
    with require_extra("renderers", "jinja2"):
        from jinja2 import TemplateError

        from agentrl.sessions.renderers.bounded_template import BoundedTemplate

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    source = _GENERATION.sub(lambda m: f"{m[1]}{'endif' if m[2] else 'if true'}{m[3]}", source)
    names = {"raise_exception": raise_exception, "strftime_now": PINNED_DAY.strftime}
    try:
        return BoundedTemplate(source, {"tojson": _tojson}, names)
    except TemplateError as error:
        raise ConfigError(f"the chat template is no valid Jinja: {error}") from error


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """bos_token and all others with a name, which a configuration spells as text or as a mapping."""
    named = {key: value for key, value in config.items() if key.endswith("_token")}
    for key in ("model_specific_special_tokens", "extra_special_tokens"):
        named |= more if isinstance(more := config.get(key), dict) else {}
    texts = {key: value.get("content") if isinstance(value, dict) else value for key, value in named.items()}
    return {key: text for key, text in texts.items() if isinstance(text, str)}
