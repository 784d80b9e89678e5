"""What we write against each family's own reference, at every turn boundary of generated conversations."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from agentrl.errors import AgentRLError
from agentrl.sessions.renderers import get_renderer
from agentrl.sessions.renderers.base import Renderer
from agentrl.sessions.renderers.families.harmony import Harmony
from agentrl.sessions.renderers.families.table import FAMILIES, Expresses
from agentrl.sessions.renderers.proof.probe import ProbeRenderer
from agentrl.sessions.renderers.proof.trials import (
    TOOLS,
    conversation,
    kimi_id,
    nine_letters,
    nodes,
    prove,
    with_system,
)
from agentrl.sessions.renderers.template import template_whole
from agentrl.types import FunctionCall, Message, ToolCall
from tests.sessions.renderers.references import REFERENCES, Case
from tests.sessions.renderers.support import tokenizer

SELF_PROVEN = ("llama-3", "deepseek-v3", "deepseek-v4", "kimi-k2", "glm-4.5", "qwen3")


def renderer_of(family: str) -> Renderer:
    if family == "gpt-oss":
        return Harmony(tokenizer(family), today="2026-01-02")
    return get_renderer(tokenizer(family), family)


CASES = [
    pytest.param(family, case, id=f"{family}-{n}") for family, r in REFERENCES.items() for n, case in enumerate(r.cases)
]
SESSIONS = 40


@pytest.mark.slow
@pytest.mark.parametrize(("family", "case"), CASES)
def test_growing_sessions_hold_the_references_tokens_at_every_turn(family: str, case: Case) -> None:
    renderer, reference = renderer_of(family), REFERENCES[family]
    whole = reference.make(renderer.tokenizer)
    call_id = kimi_id if family.startswith("kimi") else nine_letters
    same = {renderer.tokenizer.special(a): renderer.tokenizer.special(b) for a, b in reference.same.items()}
    expresses, compared = FAMILIES[family].expresses, 0
    for index in range(SESSIONS):
        rng = random.Random(f"{family}/{case}/{index}")
        messages = conversation(
            rng, expresses, tools=case.tools, reasoning=case.reasoning, rounds=case.rounds, call_id=call_id
        )
        messages = with_system(messages, case.system)
        tools = TOOLS if case.tools and case.declared and rng.random() < 0.7 else ()
        path: list[int] = []
        after = None
        for place, node in nodes(renderer, messages, tools):
            if node.message.role == "assistant":
                ours = [same.get(token, token) for token in path + renderer.generation_prompt(after)]
                theirs = whole(messages[:place], tools, True)
                compared += 1
                decode = renderer.tokenizer.decode
                assert ours == theirs, f"{decode(ours)}\n--- reference ---\n{decode(theirs)}"
            path += node.token_ids
            after = node
    assert compared >= SESSIONS


def self_proof(family: str, count: int) -> None:
    renderer = renderer_of(family)
    assert isinstance(renderer, ProbeRenderer)
    ids = kimi_id if family == "kimi-k2" else nine_letters
    proof = prove(renderer, expresses=FAMILIES[family].expresses, count=count, call_id=ids, seed=1)
    assert proof.append_only, proof.difference
    assert proof.refused == 0


@pytest.mark.parametrize("family", SELF_PROVEN)
@pytest.mark.slow
def test_extending_equals_the_librarys_whole_rendering(family: str) -> None:
    self_proof(family, 20)


def reasoning_proof(family: str, count: int) -> None:
    renderer = renderer_of(family)
    ids = kimi_id if family.startswith("kimi") else nine_letters
    able = FAMILIES[family].expresses
    proof = prove(renderer, expresses=able, reasoning=1.0, rounds=1, count=count, call_id=ids)
    assert proof.append_only, proof.difference
    assert proof.refused == 0


@pytest.mark.parametrize("family", ["qwen3.5", "qwen3.6", "glm-5", "kimi-k2.5", "minimax-m2"])
@pytest.mark.slow
def test_newer_families_extend_as_the_library_renders_while_the_model_reasons(family: str) -> None:
    """Their templates drop reasoning before the last question, and a prompt that opens it leaves a trace when there
    is none: the case that they define for growing sessions is a question, then turns with reasoning and tools."""
    reasoning_proof(family, 40)


@pytest.mark.slow
@pytest.mark.slow
@pytest.mark.parametrize("family", ["deepseek-v4", "glm-4.6", "kimi-k2", "minimax-m2", "qwen3-coder", "gemma-4"])
def test_arguments_that_are_no_object_are_written_or_refused(family: str) -> None:
    """A client or a data set may hold them; DeepSeek V4's failed with an AttributeError of the library."""
    renderer = renderer_of(family)
    for arguments in ("null", "[1]", '"s"', "3", "{bad", '{"q": "\\ud83d"}'):
        call = ToolCall(id=kimi_id("f", 0), function=FunctionCall(name="f", arguments=arguments))
        with suppress(AgentRLError):
            assert renderer.turn(Message(role="assistant", content="", tool_calls=[call]))


@pytest.mark.parametrize("family", ["smollm2", "qwen2.5", "qwen3", "llama-3", "mistral", "deepseek-v3"])
def test_our_template_environment_writes_what_transformers_writes(family: str) -> None:
    """The reference of the tests above is the template rendered by us; here transformers renders it."""
    from transformers import AutoTokenizer

    real = tokenizer(family)
    theirs = AutoTokenizer.from_pretrained(str(real.path))
    ours = template_whole(real, date_string="26 Jul 2024")
    alone = Expresses(parallel=False, content_with_calls=False, reasoning=False)
    for index in range(60):
        rng = random.Random(index)
        messages = conversation(rng, alone, tools=family not in ("smollm2", "deepseek-v3"), rounds=2)
        if family == "mistral" and messages[0].role == "system":
            messages = messages[1:]
        wire = [_mapping(message) for message in messages]
        tools = [dict(tool) for tool in TOOLS] if rng.random() < 0.5 and family != "smollm2" else None
        for prompt in (True, False):
            expected = theirs.apply_chat_template(
                wire,
                tools=tools,
                add_generation_prompt=prompt,
                tokenize=True,
                return_dict=False,
                date_string="26 Jul 2024",
            )
            assert ours(messages, tools or (), prompt) == list(expected)


def _mapping(message) -> dict:
    import json

    wire = {"role": message.role, "content": message.text}
    if message.tool_calls:
        wire["tool_calls"] = [
            {
                "id": c.id,
                "type": "function",
                "function": {"name": c.function.name, "arguments": json.loads(c.function.arguments)},
            }
            for c in message.tool_calls
        ]
    if message.role == "tool":
        wire |= {"tool_call_id": message.tool_call_id, "name": message.name}
    return wire
