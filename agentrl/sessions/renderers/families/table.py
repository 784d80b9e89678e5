"""The model families: who writes their format, which grammar reads it, and what it can express.

Written by the `renderers` package where it serves, by us where it does not
(docs/decisions/archive/010-renderers.md says why), and read by our grammars throughout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentrl.models.tokenizers import HFTokenizer
from agentrl.sessions.renderers import grammars
from agentrl.sessions.renderers.base import PINNED_DAY, Renderer
from agentrl.sessions.renderers.families.chatml import QWEN_SYSTEM, SMOLLM_SYSTEM, ChatML
from agentrl.sessions.renderers.families.deepseek import DeepSeekV31
from agentrl.sessions.renderers.families.gemma import Gemma4
from agentrl.sessions.renderers.families.harmony import Harmony
from agentrl.sessions.renderers.families.library import (
    Correction,
    calls_on_lines,
    defaults_as_python,
    library_whole,
    load_library_renderer,
    runs_merged,
)
from agentrl.sessions.renderers.families.mistral import Mistral, MistralV7
from agentrl.sessions.renderers.families.qwen_coder import QwenCoder
from agentrl.sessions.renderers.grammar import Grammar
from agentrl.sessions.renderers.proof.probe import ProbeRenderer
from agentrl.types import Message


@dataclass(frozen=True, slots=True)
class Expresses:
    """The content of an assistant message in a format. `stripped`: white space around texts gets lost."""

    reasoning: bool = True
    tools: bool = True
    parallel: bool = True
    content_with_calls: bool = True
    stripped: bool = False

    def refuse(self, message: Message) -> str | None:
        """Return the part of a message that the format has no place for; None where the message fits."""
        if message.reasoning_content and not self.reasoning:
            return "reasoning"
        if message.tool_calls and not self.tools:
            return "tool calls"
        if len(message.tool_calls or ()) > 1 and not self.parallel:
            return "several tool calls"
        if message.tool_calls and message.text and not self.content_with_calls:
            return "content beside a tool call"
        return None


@dataclass(frozen=True, slots=True)
class RendererFamily:
    """One conversation format.

    Attributes:
        make: builds its renderer for a tokenizer.
        expresses: what an assistant message may hold.
        marks: special tokens that distinguish the family from others.
        template: text that its chat template holds, where tokens alone are not enough.
        auto: whether `auto` may choose it.
        variables: what its chat template is given to write the same (its own defaults may be others).
    """

    make: Callable[[HFTokenizer], Renderer]
    expresses: Expresses = field(default_factory=Expresses)
    marks: tuple[str, ...] = ()
    template: str = ""
    auto: bool = True
    variables: Mapping[str, Any] = field(default_factory=dict)


def library(
    name: str,
    config: str,
    grammar: Grammar,
    stops: tuple[str, ...],
    expresses: Expresses,
    *,
    ender: Callable[[HFTokenizer], Callable[[Message], int]] | None = None,
    options: Mapping[str, Any] | None = None,
    correct: Callable[[HFTokenizer], Correction] | None = None,
    declare: Callable[[Any], Any] = dict,
    past: Mapping[str, Any] | None = None,
) -> Callable[[HFTokenizer], ProbeRenderer]:
    """A maker of renderers that the `renderers` package writes and one of our grammars reads.

    Args:
        name: the renderer's name.
        config: the package's configuration class, without "RendererConfig".
        grammar: reads the turns.
        stops: the tokens that end a turn; the first one is written where a model left it out.
        expresses: what an assistant message may hold.
        ender: where the next turn's opener ends a turn: which one a model would write after a message.
        options: what the package's configuration is built with.
        correct: corrects what the package writes.
        declare: corrects the tools that it is given.
        past: what it is built with to write turns that have lost their reasoning; None: as all the others.
    """

    def make(tokenizer: HFTokenizer) -> ProbeRenderer:
        written = load_library_renderer(tokenizer, config, options)
        whole = library_whole(tokenizer, written, correct=correct(tokenizer) if correct else list, declare=declare)
        ids = [tokenizer.special(stop) for stop in stops if stop in tokenizer.added]
        return ProbeRenderer(
            name,
            tokenizer,
            whole,
            grammar,
            ids,
            end=None if ender else ids[0],
            ender=ender(tokenizer) if ender else None,
            refuse=expresses.refuse,
            history=library(name, config, grammar, stops, expresses, options=past)(tokenizer) if past else None,
        )

    return make


def _glm_ender(tokenizer: HFTokenizer) -> Callable[[Message], int]:
    """GLM ends a turn by opening the next one: the observation's after a call, the user's otherwise."""
    observation, user = tokenizer.special("<|observation|>"), tokenizer.special("<|user|>")
    return lambda message: observation if message.tool_calls else user


PINNED_DATE = f"{PINNED_DAY:%d %b %Y}"
"""The date in Llama's system prompt."""

_THINKING = {"enable_thinking": True}
_STRIPPED = Expresses(stripped=True)
_ANSWERING = Expresses(reasoning=False, stripped=True)
_LLAMA = Expresses(reasoning=False, parallel=False, content_with_calls=False, stripped=True)
_NO_REASONING = Expresses(reasoning=False)
_EOS = "<\uff5cend\u2581of\u2581sentence\uff5c>"
_MISTRAL = ("[INST]", "[/INST]", "[TOOL_CALLS]", "[SYSTEM_PROMPT]")
_GLM_STOPS = ("<|endoftext|>", "<|user|>", "<|observation|>")


def _qwen35(name: str, renderer: str, *, thinks: bool) -> RendererFamily:
    expresses, options = _STRIPPED if thinks else _ANSWERING, {"enable_thinking": thinks}
    stops = ("<|im_end|>", "<|endoftext|>")
    return RendererFamily(
        library(name, renderer, grammars.QWEN_CODER, stops, expresses, options=options, correct=runs_merged),
        expresses,
        marks=("<|im_start|>", "<think>", "<|vision_start|>"),
        template="<function=",
    )


FAMILIES: dict[str, RendererFamily] = {
    "chatml": RendererFamily(ChatML, marks=("<|im_start|>", "<|im_end|>")),
    "smollm2": RendererFamily(
        lambda tokenizer: ChatML(tokenizer, "smollm2", SMOLLM_SYSTEM), marks=("<|im_start|>",), template=SMOLLM_SYSTEM
    ),
    "qwen2.5": RendererFamily(
        lambda tokenizer: ChatML(tokenizer, "qwen2.5", QWEN_SYSTEM), marks=("<|im_start|>",), template=QWEN_SYSTEM
    ),
    "qwen3": RendererFamily(
        library("qwen3", "Qwen3", grammars.HERMES, ("<|im_end|>", "<|endoftext|>"), _STRIPPED),
        _STRIPPED,
        marks=("<|im_start|>", "<tool_response>", "<think>"),
        template="last_query_index",
    ),
    "qwen3-coder": RendererFamily(
        QwenCoder, Expresses(reasoning=False, stripped=True), marks=("<|im_start|>",), template="<function="
    ),
    "llama-3": RendererFamily(
        library(
            "llama-3",
            "Llama3",
            grammars.LLAMA,
            ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
            _LLAMA,
            options={"date_string": PINNED_DATE},
        ),
        _LLAMA,
        marks=("<|start_header_id|>", "<|eot_id|>"),
    ),
    "mistral": RendererFamily(
        Mistral, Expresses(reasoning=False, content_with_calls=False), marks=("[INST]", "[/INST]", "[TOOL_CALLS]")
    ),
    "mistral-v7": RendererFamily(MistralV7, _NO_REASONING, marks=_MISTRAL, template="[TOOL_CONTENT]"),
    "mistral-v11": RendererFamily(
        lambda tokenizer: MistralV7(tokenizer, 11), _NO_REASONING, marks=(*_MISTRAL, "[CALL_ID]"), template="[CALL_ID]"
    ),
    "mistral-v13": RendererFamily(
        lambda tokenizer: MistralV7(tokenizer, 13),
        Expresses(),
        marks=(*_MISTRAL, "[ARGS]", "[THINK]"),
        template="[ARGS]",
    ),
    "deepseek-v3": RendererFamily(
        library("deepseek-v3", "DeepSeekV3", grammars.DEEPSEEK, (_EOS,), _NO_REASONING), _NO_REASONING, marks=(_EOS,)
    ),
    "deepseek-r1": RendererFamily(
        library("deepseek-r1", "DeepSeekR1", grammars.DEEPSEEK, (_EOS,), Expresses()),
        marks=(_EOS,),
        template="<\uff5cAssistant\uff5c><think>\\n",
    ),
    "deepseek-v3.1": RendererFamily(DeepSeekV31, _NO_REASONING, marks=(_EOS, "<think>"), template="thinking"),
    "deepseek-v3.1-thinking": RendererFamily(
        lambda tokenizer: DeepSeekV31(tokenizer, thinking=True),
        Expresses(tools=False),
        marks=(_EOS, "<think>"),
        auto=False,
        variables={"thinking": True},
    ),
    "deepseek-v4": RendererFamily(
        library("deepseek-v4", "DeepSeekV4", grammars.DSML, (_EOS,), _NO_REASONING),
        _NO_REASONING,
        marks=(_EOS, "\uff5cDSML\uff5c"),
    ),
    "deepseek-v4-thinking": RendererFamily(
        library(
            "deepseek-v4-thinking",
            "DeepSeekV4",
            grammars.DSML,
            (_EOS,),
            Expresses(),
            options={**_THINKING, "drop_thinking": False},
            past={"enable_thinking": False},
        ),
        marks=(_EOS, "\uff5cDSML\uff5c"),
        auto=False,
        variables={"thinking": True, "drop_thinking": False},
    ),
    "kimi-k2": RendererFamily(
        library("kimi-k2", "KimiK2", grammars.KIMI, ("<|im_end|>",), _NO_REASONING),
        _NO_REASONING,
        marks=("<|im_middle|>", "<|tool_calls_section_begin|>"),
    ),
    "glm-4.5": RendererFamily(
        library("glm-4.5", "GLM45", grammars.GLM, _GLM_STOPS, _STRIPPED, ender=_glm_ender, correct=calls_on_lines),
        _STRIPPED,
        marks=("<|observation|>", "<arg_key>"),
    ),
    "glm-4.6": RendererFamily(
        library("glm-4.6", "GLM45", grammars.GLM, _GLM_STOPS, _STRIPPED, ender=_glm_ender, correct=calls_on_lines),
        _STRIPPED,
        marks=("<|observation|>", "<arg_key>"),
        template="/nothink",
    ),
    "qwen3.5": _qwen35("qwen3.5", "Qwen35", thinks=True),
    "qwen3.5-instruct": _qwen35("qwen3.5-instruct", "Qwen35", thinks=False),
    "qwen3.6": _qwen35("qwen3.6", "Qwen36", thinks=True),
    "glm-5": RendererFamily(
        library("glm-5", "GLM5", grammars.GLM_5, _GLM_STOPS, _STRIPPED, ender=_glm_ender),
        _STRIPPED,
        marks=("<|observation|>", "<arg_key>", "<tool_response>"),
    ),
    "kimi-k2.5": RendererFamily(
        library("kimi-k2.5", "KimiK25", grammars.KIMI, ("<|im_end|>",), _STRIPPED, declare=defaults_as_python),
        _STRIPPED,
        marks=("<|im_middle|>", "<|tool_calls_section_begin|>", "<|media_begin|>"),
    ),
    "minimax-m2": RendererFamily(
        library("minimax-m2", "MiniMaxM2", grammars.MINIMAX, ("[e~[",), _STRIPPED),
        _STRIPPED,
        marks=("]~b]", "<minimax:tool_call>"),
    ),
    "gemma-4": RendererFamily(
        Gemma4, Expresses(content_with_calls=False, stripped=True), marks=("<|turn>", "<|channel>"), variables=_THINKING
    ),
    "gpt-oss": RendererFamily(Harmony, Expresses(parallel=False), marks=("<|channel|>", "<|message|>", "<|return|>")),
}
"""Every family by its renderer's name. A later one that fits a tokenizer wins over an earlier one."""
