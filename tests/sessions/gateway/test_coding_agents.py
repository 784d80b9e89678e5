"""Coding agents, unmodified from npm, at work in a folder: several turns, tools, a second question."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.sessions.gateway.limits import Limits
from agentrl.sessions.gateway.rewards import CloseBody
from agentrl.types import Session
from tests.sessions.gateway.conftest import Serve, Served
from tests.sessions.gateway.fakes import ScriptedEngine, assistant, in_turn, renderer
from tests.sessions.gateway.programs import (
    causes,
    installed,
    opencode,
    programs,
    qwen,
    roots,
    saw_what_is_stored,
)

ROOM = 1_000_000
"""The prompts are some 45,000 characters long, and the tests' tokenizer knows few words."""
CODEX = """
model = "{model}"
model_provider = "agentrl"
check_for_update_on_startup = false

[model_providers.agentrl]
name = "agentrl"
base_url = "{base_url}"
env_key = "OPENAI_API_KEY"
wire_api = "responses"

[analytics]
enabled = false

[features]
apps = false
plugins = false
remote_plugin = false
"""


def use(name: str, **arguments: Any) -> Any:
    return assistant("", "I should.", [(name, json.dumps(arguments))])


async def closed(served: Served, access: dict[str, str]) -> Session:
    """The session, ended with a reward as a run ends it."""
    return await served.gateway.close(access["id"], access["api_key"], CloseBody(reward=1.0))


@pytest.mark.slow
async def test_claude_code_edits_searches_for_tools_and_calls_a_sub_agent_on_clean_paths(
    serve: Serve, tmp_path: Path
) -> None:
    claude = installed("node") / "node_modules/.bin/claude"
    words = (
        use("Bash", command="echo hello", description="Say hello"),
        use("Write", file_path=str(tmp_path / "a.txt"), content="one\n"),
        use("Edit", file_path=str(tmp_path / "a.txt"), old_string="one", new_string="two"),
        use("Bash", cmd="no such argument"),
        use("ToolSearch", query="select:WebFetch"),
        use("Agent", description="add", prompt="2 + 3?", subagent_type="general-purpose", run_in_background=False),
        use("Bash", command="echo 5", description="Add"),
        assistant("It is 5."),
        assistant("All done.", "I said all."),
        assistant("Still done."),
    )
    tools = ("--model", "m", "--allowedTools", "Bash", "Write", "Edit")
    engine = ScriptedEngine(in_turn(*words), max_context=ROOM)
    async with serve(engine) as served:
        access = await served.open()
        async with programs(access, tmp_path) as own:
            first = await own.run(claude, "-p", "Work.", *tools)
            second = await own.run(claude, "-p", "And now?", "--continue", *tools)
            assert first[0] == second[0] == 0, f"{first}\n{second}"
            assert "All done." in first[1]
            assert "Still done." in second[1]
            assert own.outside == []
        session = served.session(access["id"])
        saw_what_is_stored(engine, session)
        assert (tmp_path / "a.txt").read_text() == "two\n"
        assert len(roots(session)) == 2
        found = causes(session)
        assert found.pop("loose") >= 1  # the edit, whose echo has `replace_all`
        assert found == {"clean": 8, "branches/agent": 1}
        prompt = renderer().tokenizer.decode(session.nodes[0].token_ids)
        assert "DeferredToolPlaceholder" not in prompt
        told = [n for n in session.nodes if n.message.role == "tool" and '"name": "WebFetch"' in n.message.text]
        assert len(told) == 1
        assert (await closed(served, access)).excluded == []  # its sub-agent is trained


PATCH = "*** Begin Patch\n*** Add File: a.txt\n+one\n*** End Patch\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "patch"),
    [
        ("m", use("exec_command", cmd=f"apply_patch <<'EOF'\n{PATCH}EOF")),
        ("gpt-5.5", use("apply_patch", input=PATCH)),  # a model that it knows has a custom tool
    ],
)
async def test_codex_works_in_a_shell_and_goes_on_the_next_time_on_one_clean_path(
    serve: Serve, tmp_path: Path, model: str, patch: Any
) -> None:
    codex = installed("node") / "node_modules/.bin/codex"
    patch = "*** Begin Patch\n*** Add File: a.txt\n+one\n*** End Patch\n"
    words = (
        use("exec_command", cmd="echo hello"),
        use("exec_command", cmd=3),
        use("no_such_tool"),
        use("exec_command", cmd=f"apply_patch <<'EOF'\n{patch}EOF"),
        assistant("All done.", "I said all."),
        assistant("Still done."),
    )
    free = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    engine = ScriptedEngine(in_turn(*words), max_context=ROOM)
    async with serve(engine) as served:
        access = await served.open()
        (tmp_path / ".codex").mkdir()
        (tmp_path / ".codex" / "config.toml").write_text(CODEX.format(model=model, base_url=access["base_url"]))
        async with programs(access, tmp_path) as own:
            first = await own.run(codex, "exec", *free, "Work.")
            second = await own.run(codex, "exec", "resume", "--last", *free, "And now?")
            assert first[0] == second[0] == 0, f"{first}\n{second}"
            assert "All done." in first[1]
            assert "Still done." in second[1]
            assert own.outside == []
        session = served.session(access["id"])
        saw_what_is_stored(engine, session)
        assert (tmp_path / "a.txt").read_text() == "one\n"
        assert len(roots(session)) == 1
        assert causes(session) == {"clean": 5}


@pytest.mark.slow
async def test_opencode_works_with_a_sub_agent_and_goes_on_the_next_time_and_its_title_alone_is_excluded(
    serve: Serve, tmp_path: Path
) -> None:
    work = use("bash", command="echo hello", description="Say hello")
    helper = use("task", description="add", prompt="2 + 3?", subagent_type="general")
    words = ("A title", work, helper, "It is 5.", "All done.", "Still done.")
    engine = ScriptedEngine(in_turn(*words), max_context=ROOM)
    async with serve(engine, limits=Limits(sampling="run")) as served:
        access = await served.open()
        async with programs(access, tmp_path) as own:
            first = await own.run(*opencode(tmp_path), "Work.")
            second = await own.run(*opencode(tmp_path), "--continue", "And now?")
            assert first[0] == second[0] == 0, f"{first}\n{second}"
            assert "Still done." in second[1]
            assert {place.split()[1] for place in own.outside} <= {"registry.npmjs.org:443"}
        session = served.session(access["id"])
        saw_what_is_stored(engine, session)
        found = causes(session)
        assert found.pop("loose") >= 1  # arguments in another order
        assert found == {"clean": 3, "branches/agent": 1, "branches/tools": 1}  # its title; its sub-agent
        left_out = [session.nodes[place] for place in (await closed(served, access)).excluded_nodes()]
        assert [node.message.text for node in left_out if node.sampled] == ["A title"]


@pytest.mark.slow
async def test_qwen_code_works_in_a_shell_and_its_second_start_is_a_branch(serve: Serve, tmp_path: Path) -> None:
    shell = use("run_shell_command", command="echo hello", description="Say hello", is_background=False)
    engine = ScriptedEngine(in_turn(shell, *["All done."] * 4), max_context=ROOM)
    async with serve(engine, limits=Limits(sampling="run")) as served:
        access = await served.open()
        start = qwen(tmp_path)
        straight = {f"{name}_proxy": "" for name in ("http", "https", "all")}  # it asks a proxy for this machine too
        async with programs(access, tmp_path) as own:
            for more in ((), ("--continue",)):
                code, out = await own.run(*start, *more, "-p", "Work.", **straight, **_upper(straight))
                assert code == 0, out
                assert "All done." in out
        session = served.session(access["id"])
        saw_what_is_stored(engine, session)
        found = causes(session)
        assert {"clean", "branches/edited", "branches/agent"} <= found.keys()  # its folder's list changes; a sub-agent


def _upper(given: dict[str, str]) -> dict[str, str]:
    return {name.upper(): value for name, value in given.items()}
