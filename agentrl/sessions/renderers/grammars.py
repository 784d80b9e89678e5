# ruff: noqa: RUF001 (DeepSeek's delimiters are spelt with a full-width bar)
"""Each family's grammar: how turns are split into content, reasoning and tool calls.

The delimiters are the published ones (each family's chat template or model card; Harmony: OpenAI's format guide).
"""

from __future__ import annotations

import re

from agentrl.sessions.renderers import readers
from agentrl.sessions.renderers.base import SpanKind
from agentrl.sessions.renderers.calls import read_hermes
from agentrl.sessions.renderers.families.gemma_notation import QUOTE, read_gemma
from agentrl.sessions.renderers.grammar import Grammar, Reader, Region, RegionExit

CONTENT, REASONING, CALL, MARKUP = SpanKind.CONTENT, SpanKind.REASONING, SpanKind.TOOL_CALL, SpanKind.MARKUP


def make_tagged(
    read: Reader,
    *,
    tag: str = "tool_call",
    before: str = "\n",
    inner: tuple[str, ...] = (),
    lead: str = "",
    think: str = "\n",
    after: str = "\n\n",
) -> Grammar:
    """<think>…</think>, content, <tool_call>…</tool_call>: Hermes, Qwen, GLM and MiniMax.

    Args:
        read: reads what is between the call tags.
        tag: the call tags' name.
        before: what is between content and a call.
        inner: tags inside a call.
        lead: what a turn begins with.
        think: what is inside the thinking tags next to them.
        after: what is between reasoning and content.
    """
    opening, closing = f"<{tag}>", f"</{tag}>"
    call = {opening: RegionExit("call", before=before)}
    return Grammar(
        start="content",
        lead=lead,
        regions={
            "content": Region(CONTENT, {"<think>": RegionExit("reasoning", after=think), **call}),
            "reasoning": Region(REASONING, {"</think>": RegionExit("content", before=think, after=after)}),
            "call": Region(
                CALL, {closing: RegionExit("between"), **{mark: RegionExit("call") for mark in inner}}, closing=closing
            ),
            "between": Region(CONTENT, {opening: RegionExit("call")}, blank_is_markup=True),
        },
        read=read,
    )


_GLM_INNER = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")

HERMES = make_tagged(read_hermes)
QWEN_CODER = make_tagged(readers.read_qwen_xml, before="\n\n")
GLM = make_tagged(readers.read_glm, inner=_GLM_INNER, lead="\n", think="", after="\n")
GLM_5 = make_tagged(readers.read_glm, before="", inner=_GLM_INNER, think="", after="")
DSML = make_tagged(readers.read_dsml, tag="｜DSML｜tool_calls", before="\n\n", think="", after="")
MINIMAX = make_tagged(readers.read_minimax, tag="minimax:tool_call")

PLAIN = Grammar(
    start="content",
    regions={
        "content": Region(CONTENT, {"<think>": RegionExit("reasoning", after="\n")}),
        "reasoning": Region(REASONING, {"</think>": RegionExit("content", before="\n", after="\n\n")}),
    },
    read=read_hermes,
)

GEMMA = Grammar(
    start="content",
    regions={
        "content": Region(
            CONTENT, {"<|channel>": RegionExit("reasoning", after="thought\n"), "<|tool_call>": RegionExit("call")}
        ),
        "reasoning": Region(REASONING, {"<channel|>": RegionExit("content", before="\n")}),
        "call": Region(
            CALL, {QUOTE: RegionExit("call"), "<tool_call|>": RegionExit("between")}, closing="<tool_call|>"
        ),
        "between": Region(CONTENT, {"<|tool_call>": RegionExit("call")}, blank_is_markup=True),
    },
    read=read_gemma,
)

LLAMA = Grammar(
    start="content",
    regions={
        "content": Region(CONTENT, {"<|python_tag|>": RegionExit("call")}, opens={"{": "call", "[": "call"}),
        "call": Region(CALL, open_end=True),
    },
    read=readers.read_llama,
)

_PYTHONIC = ("<function_calls>", "<|tool_call_start|>", "<|python_start|>")

PYTHONIC = Grammar(
    start="content",
    regions={
        "content": Region(
            CONTENT,
            {"<think>": RegionExit("reasoning", after="\n"), **{mark: RegionExit("tagged") for mark in _PYTHONIC}},
            opens={"[": "call"},
        ),
        "reasoning": Region(REASONING, {"</think>": RegionExit("content", before="\n", after="\n\n")}),
        "call": Region(CALL, open_end=True),
        "tagged": Region(
            CALL,
            {mark: RegionExit("between") for mark in ("</function_calls>", "<|tool_call_end|>", "<|python_end|>")},
            open_end=True,
        ),
        "between": Region(CONTENT, {mark: RegionExit("tagged") for mark in _PYTHONIC}, blank_is_markup=True),
    },
    read=readers.read_pythonic,
)
"""Llama 4 writes a list, with or without tags around it, OLMo 3 a call on each line, LFM2 a list in tags."""

MISTRAL = Grammar(
    start="content",
    regions={
        "content": Region(CONTENT, {"[TOOL_CALLS]": RegionExit("calls"), "[THINK]": RegionExit("reasoning")}),
        "reasoning": Region(REASONING, {"[/THINK]": RegionExit("content")}),
        "calls": Region(
            CALL, {mark: RegionExit("calls") for mark in ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]")}, open_end=True
        ),
    },
    read=readers.read_mistral,
)


def _in_section(section: tuple[str, str], call: tuple[str, str, str], read: Reader, think: str = "") -> Grammar:
    """Content, then a section of calls."""
    (opens, closes), (begins, parts, ends) = section, call
    after = "\n\n" if think else ""
    return Grammar(
        start="content",
        regions={
            "content": Region(CONTENT, {"<think>": RegionExit("reasoning", after=think), opens: RegionExit("section")}),
            "reasoning": Region(REASONING, {"</think>": RegionExit("content", before=think, after=after)}),
            "section": Region(CONTENT, {begins: RegionExit("call"), closes: RegionExit("rest")}, blank_is_markup=True),
            "call": Region(CALL, {parts: RegionExit("call"), ends: RegionExit("section")}, closing=ends),
            "rest": Region(CONTENT, {opens: RegionExit("section")}, blank_is_markup=True),
        },
        read=read,
    )


_DEEPSEEK = (
    ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
    readers.read_deepseek,
)
DEEPSEEK = _in_section(*_DEEPSEEK, think="\n")
DEEPSEEK_V31 = _in_section(*_DEEPSEEK)

KIMI = _in_section(
    ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    ("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    readers.read_kimi,
)


def _harmony_channel(header: str) -> str:
    """The region of a Harmony message, by its header."""
    if re.search(r"to=[^\s<]", header):
        return "call"
    return "analysis" if "analysis" in header else "final"


HARMONY = Grammar(
    start="header",
    regions={
        "header": Region(
            MARKUP,
            {
                "<|message|>": RegionExit("final"),
                "<|channel|>": RegionExit("header"),
                "<|constrain|>": RegionExit("header"),
            },
            route=_harmony_channel,
        ),
        "analysis": Region(REASONING, {"<|end|>": RegionExit("next")}),
        "final": Region(CONTENT, {"<|end|>": RegionExit("next")}),
        "call": Region(CALL, {"<|end|>": RegionExit("next")}, open_end=True, closing="<|call|>"),
        "next": Region(MARKUP, {"<|start|>": RegionExit("header")}),
    },
    read=readers.read_harmony,
)
"""`commentary` without a recipient is a preamble for the user, and so content."""

GRAMMARS: dict[str, Grammar] = {
    "hermes": HERMES,
    "qwen-xml": QWEN_CODER,
    "glm": GLM,
    "glm-5": GLM_5,
    "minimax": MINIMAX,
    "llama": LLAMA,
    "pythonic": PYTHONIC,
    "mistral": MISTRAL,
    "deepseek": DEEPSEEK,
    "deepseek-v3.1": DEEPSEEK_V31,
    "deepseek-v4": DSML,
    "kimi": KIMI,
    "gemma": GEMMA,
    "harmony": HARMONY,
}
"""Every grammar by the name that `model.renderer=generic:NAME` and `agentrl check renderer=…` know it by."""
