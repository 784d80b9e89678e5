"""Independent references for whole conversations, and where each of them defines the case."""

from __future__ import annotations

import json
import os
import re
from collections import UserString
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from jinja2 import sandbox

from agentrl.errors import RenderError
from agentrl.models.tokenizers import HFTokenizer
from agentrl.sessions.renderers import bounded_template
from agentrl.sessions.renderers.base import ToolSchema
from agentrl.sessions.renderers.proof.probe import Whole
from agentrl.sessions.renderers.template import template_whole
from agentrl.types import Message
from tests.sessions.renderers.published import kimi_declares, published
from tests.sessions.renderers.support import harmony_vocabulary, with_template


@dataclass(frozen=True)
class Case:
    """A comparison that the reference defines: the kind of conversations, and how to compare.

    `because` says what is left out and why: these are the deliberate differences. `system`: whether conversations
    begin with a system message (None: some do); `declared`: whether the tools that they call are on offer.
    """

    tools: bool = True
    reasoning: float = 0.0
    rounds: int = 3
    system: bool | None = None
    declared: bool = True
    because: str = ""


@dataclass(frozen=True)
class Reference:
    make: Callable[[HFTokenizer], Whole]
    cases: tuple[Case, ...]
    same: dict[str, str] = field(default_factory=dict)
    """Special tokens that we keep as the model wrote them and the reference writes as another one."""
    stripping: Callable[[HFTokenizer], Whole] | None = None
    """The same as it comes, where `make` tells it to keep the reasoning of earlier turns."""


def _template(**variables: Any) -> Callable[[HFTokenizer], Whole]:
    return lambda tokenizer: template_whole(tokenizer, **variables)


def _collected(
    name: str, edit: Callable[[str], str] = lambda text: text, *, mutable: bool = False, **variables: Any
) -> Callable[[HFTokenizer], Whole]:
    """A template out of another project's collection.

    Args:
        name: see `published`.
        edit: undoes what the collection changed.
        mutable: the template appends to lists, which the environment of a hub's own templates forbids.
        variables: what the template is given.
    """

    def make(tokenizer: HFTokenizer) -> Whole:
        bos = {
            "bos_token": next((token for token in tokenizer.added if token == "<bos>" or "begin\u2581of" in token), "")
        }
        with pytest.MonkeyPatch.context() as patch:
            if mutable:
                patch.setattr(bounded_template, "_Environment", _Mutable)
            return template_whole(with_template(tokenizer, edit(published(name)), **bos), **variables)

    return make


class _Mutable(bounded_template._Environment):
    is_safe_attribute = sandbox.SandboxedEnvironment.is_safe_attribute


def _its_end_alone(template: str) -> str:
    """DeepSeek's model card ends a prompt without thinking in </think>; the collection's copy opens it, too."""
    return template.replace("<think></think>", "</think>")


def _newest_words(template: str) -> str:
    """The collection's copy is Qwen 3 Coder's first revision: what the newest says before and behind the list of tools
    stands word for word in Nemotron's template, which took it over."""
    sibling = published("llama.cpp/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")
    for said in (r'# Tools[^"]*"', r"'\\n\\nIf you choose[^']*'"):
        [newest] = re.findall(said, sibling)
        [first] = re.findall(said, template)
        template = template.replace(first, newest)
    return template


def _compact_and_sorted(template: str) -> str:
    """The newest revision of Kimi K2 lists tools without spaces, and its tokenizer sorts their keys before."""
    return template.replace("tools | tojson", "tools | tojson(separators=(',', ':'), sort_keys=true)")


def _opened_by_the_model(template: str) -> str:
    """Gemma's template without the reasoning that its prompt opens after a tool's result."""
    opens = "{%- elif ns.prev_message_type == 'tool_response' and enable_thinking -%}"
    assert template.count(opens) == 1
    return template.replace(opens, "{%- elif false -%}")


def _kimi_k25(tokenizer: HFTokenizer) -> Whole:
    """Kimi K2 Thinking's template with what is new in K2.5: tools as TypeScript, and a prompt that opens reasoning."""

    def edit(template: str) -> str:
        prompt = "<|im_assistant|>assistant<|im_middle|>\n"
        assert template.count(prompt) == template.count("{{ tools | tojson }}") == 1
        return template.replace("{{ tools | tojson }}", "{{ declared }}").replace(prompt, f"{prompt[:-1]}<think>\n")

    declared = UserString("")  # of the tools at hand: the template is compiled once for all of them
    written = _collected("llama.cpp/Kimi-K2-Thinking", edit, mutable=True, declared=declared)(tokenizer)

    def whole(messages: Sequence[Message], tools: Sequence[ToolSchema], prompt: bool) -> list[int]:
        plain = json.loads(json.dumps(tools, sort_keys=True))  # K2.5's tokenizer sorts keys, too
        declared.data = kimi_declares()(plain)
        return written(messages, tools, prompt)

    return whole


_GLM = (
    Case(because="its template, too, gives a turn without reasoning an empty block; so nothing is left out here"),
    Case(reasoning=0.8, rounds=1, because="its template strips reasoning before the last question, ours keeps it"),
)
_OPENED = "the prompt opens the reasoning: a turn without any leaves a trace that the template drops later on"

REFERENCES: dict[str, Reference] = {
    "smollm2": Reference(
        _template(),
        (Case(tools=False, because="its template knows no tools, ours puts them into the system turn"),),
    ),
    "qwen2.5": Reference(_template(), (Case(because="its template drops reasoning, ours writes a thinking block"),)),
    "qwen3": Reference(
        _template(),
        (
            Case(),
            Case(reasoning=0.8, rounds=1, because="its template strips reasoning before the last query, ours keeps it"),
        ),
    ),
    "llama-3": Reference(_template(date_string="26 Jul 2024"), (Case(because="ours pins the date"),)),
    "mistral": Reference(
        _template(),
        (
            Case(tools=False, rounds=3, system=False),
            Case(rounds=1, system=False, because="its template moves tools and system prompt to the last user message"),
        ),
    ),
    "deepseek-v3": Reference(
        _template(), (Case(tools=False, because="its template leaves tool calls without their closing tokens"),)
    ),
    "gpt-oss": Reference(
        lambda tokenizer: harmony_whole(),
        (Case(), Case(reasoning=0.8)),
        {"<|return|>": "<|end|>"},
    ),
    "glm-4.5": Reference(_collected("trl/glm4moe"), _GLM),
    "glm-4.6": Reference(_collected("llama.cpp/GLM-4.6"), _GLM),
    "glm-5": Reference(
        _collected("llama.cpp/GLM-4.7-Flash"), (Case(reasoning=1.0, rounds=1, because=f"GLM 4.7's; {_OPENED}"),)
    ),
    "kimi-k2": Reference(
        _collected("llama.cpp/Kimi-K2-Instruct", _compact_and_sorted, mutable=True),
        (Case(),),
    ),
    "kimi-k2.5": Reference(
        _kimi_k25,
        (Case(reasoning=1.0, rounds=1, system=True, because=f"{_OPENED}; K2 Thinking has a default system prompt"),),
    ),
    "deepseek-v3.1": Reference(
        _collected("llama.cpp/deepseek-ai-DeepSeek-V3.1", _its_end_alone),
        (
            Case(tools=False, because="the collection's copy writes an empty block where the model card has its end"),
            Case(declared=False, because="its template lists no tools; their place is the model card's"),
        ),
    ),
    "deepseek-v3.1-thinking": Reference(
        _collected("llama.cpp/deepseek-ai-DeepSeek-V3.1", _its_end_alone, thinking=True),
        (Case(tools=False, reasoning=1.0, rounds=1, because="its template strips reasoning, ours keeps it"),),
    ),
    "deepseek-r1": Reference(
        _collected("trl/deepseek_r1_distill"),
        (Case(tools=False, reasoning=1.0, rounds=1, because=f"{_OPENED}; its template knows no tools"),),
    ),
    "deepseek-v4": Reference(
        _collected("llama.cpp/deepseek-ai-DeepSeek-V4"),
        (
            Case(system=True, because="tools without a system message: the package keeps the blank line before them"),
            Case(declared=False),
        ),
    ),
    "deepseek-v4-thinking": Reference(
        _collected("llama.cpp/deepseek-ai-DeepSeek-V4-Flash-0731", thinking=True, drop_thinking=False),
        (Case(reasoning=0.8, system=True, because="as above"), Case(reasoning=0.8, declared=False)),
        stripping=_collected("llama.cpp/deepseek-ai-DeepSeek-V4-Flash-0731", thinking=True),
    ),
    "qwen3-coder": Reference(
        _collected("llama.cpp/Qwen3-Coder", _newest_words),
        (Case(),),
    ),
    "qwen3.5": Reference(_collected("llama.cpp/Qwen3.5-4B"), (Case(reasoning=1.0, rounds=1, because=_OPENED),)),
    "qwen3.5-instruct": Reference(
        _collected("llama.cpp/Qwen3.5-4B", enable_thinking=False),
        (Case(rounds=1, because="the template leaves the prompt's empty thought out of earlier turns"),),
    ),
    "qwen3.6": Reference(_collected("trl/qwen3_6"), (Case(reasoning=1.0, rounds=1, because=_OPENED),)),
    "gemma-4": Reference(
        _collected("trl/gemma4_v5", _opened_by_the_model, enable_thinking=True),
        (
            Case(because="after a result its prompt opens the reasoning, in ours the model does"),
            Case(reasoning=0.8, rounds=1, because="its template strips reasoning, ours keeps it"),
        ),
    ),
    "minimax-m2": Reference(
        _collected("llama.cpp/MiniMax-M2"),
        (Case(reasoning=1.0, rounds=1, system=True, because=f"{_OPENED}; revisions differ in the default prompt"),),
    ),
}
"""By family; a template out of a collection stands in for one that no tokenizer's package brings."""


def harmony_whole() -> Whole:
    """OpenAI's own encoder, keeping earlier analysis."""
    os.environ["TIKTOKEN_RS_CACHE_DIR"] = str(harmony_vocabulary())
    import openai_harmony as oh

    encoding = oh.load_harmony_encoding(oh.HarmonyEncodingName.HARMONY_GPT_OSS)
    config = oh.RenderConversationConfig(auto_drop_analysis=False)

    def whole(messages: Sequence[Message], tools: Sequence[ToolSchema], prompt: bool) -> list[int]:
        system = oh.SystemContent.new().with_conversation_start_date("2026-01-02")
        converted = [oh.Message.from_role_and_content(oh.Role.SYSTEM, system)]
        developer = oh.DeveloperContent.new()
        given = bool(tools)
        rest = list(messages)
        if rest and rest[0].role == "system":
            developer = developer.with_instructions(rest.pop(0).text)
            given = True
        if tools:
            described = [
                oh.ToolDescription.new(f["name"], f["description"], parameters=f["parameters"])
                for f in (tool["function"] for tool in tools)
            ]
            developer = developer.with_function_tools(described)
        if given:
            converted.append(oh.Message.from_role_and_content(oh.Role.DEVELOPER, developer))
        for message in rest:
            converted += _harmony(oh, message)
        conversation = oh.Conversation.from_messages(converted)
        if not prompt:
            raise RenderError("only used with a generation prompt")
        return list(encoding.render_conversation_for_completion(conversation, oh.Role.ASSISTANT, config))

    return whole


def _harmony(oh: Any, message: Message) -> list[Any]:
    if message.role == "tool":
        author = oh.Author.new(oh.Role.TOOL, f"functions.{message.name}")
        made = oh.Message.from_author_and_content(author, message.text)
        return [made.with_channel("commentary").with_recipient("assistant")]
    if message.role == "user":
        return [oh.Message.from_role_and_content(oh.Role.USER, message.text)]
    turn = []
    if message.reasoning_content:
        said = oh.Message.from_role_and_content(oh.Role.ASSISTANT, message.reasoning_content)
        turn.append(said.with_channel("analysis"))
    calls = message.tool_calls or []
    if message.text or not calls:
        said = oh.Message.from_role_and_content(oh.Role.ASSISTANT, message.text)
        turn.append(said.with_channel("commentary" if calls else "final"))
    for call in calls:
        arguments = json.dumps(json.loads(call.function.arguments), ensure_ascii=False)
        said = oh.Message.from_role_and_content(oh.Role.ASSISTANT, arguments).with_channel("commentary")
        said = said.with_recipient(f"functions.{call.function.name}").with_content_type("<|constrain|>json")
        turn.append(said)
    return turn
