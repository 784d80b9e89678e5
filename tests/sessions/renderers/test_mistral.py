"""Mistral's newer formats against the encoder that Mistral publishes."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agentrl.sessions.renderers import get_renderer, parse
from agentrl.sessions.renderers.families.table import Expresses
from agentrl.sessions.renderers.proof.trials import TOOLS, conversation, nodes
from agentrl.types import FunctionCall, Message, ToolCall
from tests.rollout.engines.servers import python
from tests.sessions.renderers.support import tokenizer

SCRIPT = Path(__file__).with_name("mistral_tokens.py")
VERSIONS = ("v7", "v11", "v13")


def prompts(version: str, count: int) -> list[tuple[list[Message], bool, list[int]]]:
    """(messages, whether tools are on offer, the tokens that a growing session holds before the next turn)."""
    renderer = get_renderer(tokenizer(f"mistral-{version}"), f"mistral-{version}")
    found = []
    for index in range(count):
        rng = random.Random(f"{version}/{index}")
        # mistral-common moves the tools of 7 and 11 to the last user message, and wants results for every call
        rounds, thinks = (3, 0.5) if version == "v13" else (1, 0.0)
        messages = conversation(rng, Expresses(), tools=index % 3 > 0, reasoning=thinks, rounds=rounds)
        path: list[int] = []
        after = None
        for place, node in nodes(renderer, messages, TOOLS if index % 3 else ()):
            if node.message.role == "assistant":
                found.append((messages[:place], index % 3 > 0, path + renderer.generation_prompt(after)))
            path = path + node.token_ids
            after = node
    return found


def wire(message: Message) -> dict[str, Any]:
    content: Any = message.text
    if message.reasoning_content:
        content = [{"type": "thinking", "thinking": message.reasoning_content}]
        content += [{"type": "text", "text": message.text}] if message.text else []
    made = {"role": message.role, "content": content}
    if message.tool_calls:
        made["tool_calls"] = [call.model_dump(include={"id", "type", "function"}) for call in message.tool_calls]
    if message.role == "tool":
        made |= {"tool_call_id": message.tool_call_id, "name": message.name}
    return made


@pytest.mark.slow
def test_growing_sessions_hold_the_tokens_of_mistrals_own_encoder() -> None:
    interpreter = python("vllm")  # mistral-common comes with it
    ours = [(version, *prompt) for version in VERSIONS for prompt in prompts(version, 24)]
    special = sorted(tokenizer("mistral-v13").added.items(), key=lambda pair: pair[1])
    assert [index for _, index in special] == list(range(1000))
    cases = [
        {
            "version": version,
            "messages": [wire(m) for m in messages],
            "tools": [dict(t) for t in TOOLS] if tools else None,
        }
        for version, messages, tools, _ in ours
    ]
    given = json.dumps({"special": [text for text, _ in special], "cases": cases})
    done = subprocess.run([interpreter, SCRIPT], input=given, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = json.loads(done.stdout)
    decode = tokenizer("mistral-v13").decode
    for (version, _, _, written), expected in zip(ours, theirs, strict=True):
        assert written == expected, f"{version}\n{decode(written)}\n--- mistral-common ---\n{decode(expected)}"
    assert len(ours) > 100


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_reasoning_and_calls_of_newer_mistrals_are_read_back(version: str) -> None:
    renderer = get_renderer(tokenizer(f"mistral-{version}"), f"mistral-{version}")
    calls = [
        ToolCall(id=f"call0000{n}", function=FunctionCall(name="f", arguments=f'{{"a": "[ARGS] {n}"}}')) for n in (1, 2)
    ]
    message = Message(role="assistant", content="I look.", reasoning_content="hm [/THINK]", tool_calls=calls)
    read = parse(renderer, renderer.turn(message)).message
    assert (read.content, read.reasoning_content) == (message.content, message.reasoning_content)
    assert [c.function for c in read.tool_calls or []] == [c.function for c in calls]
    if version != "v13":  # which writes no ids
        assert [c.id for c in read.tool_calls or []] == [c.id for c in calls]
