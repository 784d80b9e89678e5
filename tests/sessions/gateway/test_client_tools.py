"""Anthropic's tools that clients run (shell, editor, memory) are functions under their published names and schemas."""

from __future__ import annotations

import typing
from typing import Any

import anthropic.types as stable
import pytest
from anthropic.types import beta

from agentrl.sessions.gateway.wire.client_tools import CLIENT_TOOLS
from tests.sessions.gateway.conftest import Serve
from tests.sessions.gateway.fakes import ScriptedEngine, assistant, in_turn
from tests.sessions.gateway.test_other_protocols import claude


def declared() -> dict[str, str]:
    """The SDK's own types of tools: the name of each by its type."""
    found = {}
    for module in (stable, beta):
        for name in dir(module):
            hints = getattr(getattr(module, name), "__annotations__", {}) if name.endswith("Param") else {}
            if {"name", "type"} <= hints.keys():
                kinds = typing.get_type_hints(getattr(module, name))
                literals = [typing.get_args(kinds[field]) for field in ("type", "name")]
                if all(literals):
                    found[literals[0][0]] = literals[1][0]
    return found


def test_each_has_the_name_that_its_sdk_type_has() -> None:
    names = declared()
    assert {kind: name for kind, (name, _, _) in CLIENT_TOOLS.items()} == {kind: names[kind] for kind in CLIENT_TOOLS}
    kinds = ("bash_2", "text_editor_2", "memory_2")
    assert {kind for kind in names if kind.startswith(kinds)} == CLIENT_TOOLS.keys()


def test_memory_takes_what_the_sdks_commands_have() -> None:
    commands = typing.get_args(typing.get_args(beta.BetaMemoryTool20250818Command)[0])
    schema = CLIENT_TOOLS["memory_20250818"][2]
    assert schema["properties"].keys() == {field for command in commands for field in command.model_fields}
    listed = [typing.get_args(command.model_fields["command"].annotation)[0] for command in commands]
    assert sorted(schema["properties"]["command"]["enum"]) == sorted(listed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(CLIENT_TOOLS))
async def test_a_call_of_one_comes_back_and_its_result_continues_the_turn(serve: Serve, kind: str) -> None:
    """The first request was refused."""
    name, _, schema = CLIENT_TOOLS[kind]
    call = '{"command": "ls"}' if name == "bash" else '{"command": "view", "path": "/memories"}'
    async with serve(ScriptedEngine(in_turn(assistant("", None, [(name, call)]), assistant("done")))) as served:
        access = await served.open()
        tools: Any = [{"type": kind, "name": name, "cache_control": {"type": "ephemeral"}}]
        asked: Any = {"model": "m", "max_tokens": 500, "tools": tools}
        history: Any = [{"role": "user", "content": "look"}]
        async with claude(access) as client:
            first = await client.beta.messages.create(messages=history, **asked)
            (use,) = first.content
            assert use.type == "tool_use"
            assert (use.name, use.input["command"]) == (name, "ls" if name == "bash" else "view")
            result = {"type": "tool_result", "tool_use_id": use.id, "content": "a.py"}
            history += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
            await client.beta.messages.create(messages=history, **asked)
        session = served.session(access["id"])
        assert session.counters["gateway/clean"] == 1
        assert session.nodes[0].tools[0]["function"]["parameters"] == schema
