"""Helpers' roots, such as titles, are excluded by rules on what they begin with; a session's only root never is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import agentrl
from agentrl.config import GatewayConfig
from agentrl.overrides import parse_words
from agentrl.rollout.stream.health import sampling_notes
from agentrl.sessions.gateway.exclusion import COUNTER
from agentrl.sessions.gateway.rewards import CloseBody
from agentrl.sessions.store.store import Store
from agentrl.train.driver.lost_tokens import Cause, describe_lost
from agentrl.train.record.verify import verify
from agentrl.types import Session
from agentrl.viewer import conversations
from agentrl.viewer.replayed import Replayed
from tests.sessions.gateway.conftest import Serve
from tests.sessions.gateway.fakes import ScriptedEngine, assistant, in_turn
from tests.sessions.gateway.test_chat import client

TITLE: Any = [{"role": "system", "content": "You make titles."}, {"role": "user", "content": "add numbers"}]
TASK: Any = [{"role": "user", "content": "add numbers"}]
TOOL: Any = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]


async def played(serve: Serve, *requests: dict[str, Any], exclude: tuple[str, ...] = ("one_turn",)) -> Session:
    """A closed session of these requests; one with `more` goes on from its reply."""
    rules = GatewayConfig(exclude=exclude).exclude
    async with serve(ScriptedEngine(in_turn(assistant("well"))), exclude=rules) as served:
        access = await served.open()
        async with client(access) as openai_client:
            for number, fields in enumerate(requests):
                messages, more = [*fields["messages"]], fields.get("more", 0)
                rest = {name: value for name, value in fields.items() if name not in ("messages", "more")}
                for again in range(1 + more):
                    reply = await openai_client.chat.completions.create(model="m", messages=messages, **rest)
                    said: Any = {"role": "assistant", "content": reply.choices[0].message.content}
                    messages += [said, {"role": "user", "content": f"{number}-{again}"}]
        session = await served.gateway.close(access["id"], access["api_key"], CloseBody(reward=1.0))
        assert served.store.load(session.id).excluded == session.excluded
    assert session.counters.get(COUNTER, 0) == len(session.excluded)
    return session


def left_out(session: Session) -> list[str]:
    return [session.nodes[root].message.text for root in session.excluded]


@pytest.mark.slow
async def test_by_default_a_root_of_one_turn_without_tools_beside_one_with_tools_is_excluded(serve: Serve) -> None:
    """opencode asks for a title beside the task: its turn took the credit of the outcome."""
    for order in (1, -1):
        requests = [{"messages": TITLE}, {"messages": TASK, "tools": TOOL}][::order]
        session = await played(serve, *requests)
        assert left_out(session) == ["You make titles."]
        assert [path[0].tools for path in session.paths()] == [TOOL]
        assert any("gateway.exclude" in note for note in sampling_notes([session], trained=True))
        shown = conversations.head(Replayed(session, session))["nodes"]
        assert {node["id"] for node in shown if node["excluded"]} == session.excluded_nodes()


@pytest.mark.slow
@pytest.mark.parametrize(
    "requests",
    [
        [{"messages": TITLE}],
        [{"messages": TASK, "tools": TOOL}],
        [{"messages": TITLE}, {"messages": TASK}],
        [{"messages": TITLE, "more": 1}, {"messages": TASK, "tools": TOOL}],
        [{"messages": TITLE, "tools": TOOL}, {"messages": TASK, "tools": TOOL, "more": 1}],
    ],
    ids=["alone", "alone with tools", "no tools at all", "a second turn", "tools everywhere"],
)
async def test_by_default_no_other_root_is(serve: Serve, requests: list[dict[str, Any]]) -> None:
    assert left_out(await played(serve, *requests)) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "found"),
    [
        ("prompt=make titles", ["You make titles."]),
        ("prompt=(?i)ADD", []),
        ("prompt=^add numbers$", ["add numbers"]),
        ("tools=^$", ["You make titles."]),
        (r"tools=\badd\b", ["add numbers"]),
        ("header.x-part=title", ["You make titles."]),
        ("header.X-Part=tit.*", ["You make titles."]),
        ("header.x-other=.", []),
    ],
)
async def test_a_rule_is_on_the_prompt_the_tools_or_a_header(serve: Serve, rule: str, found: list[str]) -> None:
    title = {"messages": TITLE, "more": 1, "extra_headers": {"x-part": "title"}}
    task = {"messages": TASK, "tools": TOOL, "extra_headers": {"x-part": "task"}}
    assert left_out(await played(serve, title, task, exclude=(rule,))) == found


@pytest.mark.slow
async def test_with_no_rule_nothing_is_excluded_and_all_roots_never_are(serve: Serve) -> None:
    both = [{"messages": TITLE}, {"messages": TASK, "tools": TOOL}]
    assert left_out(await played(serve, *both, exclude=())) == []
    assert left_out(await played(serve, *both, exclude=("prompt=.",))) == []
    assert left_out(await played(serve, *both, exclude=("one_turn", "tools=add"))) == []


def test_a_rule_that_is_none_is_refused_with_those_that_there_are() -> None:
    for wrong in ("two_turns", "prompt", "text=a", "header=a", "prompt=("):
        with pytest.raises(ValidationError, match=r"one_turn, prompt=|regular expression"):
            GatewayConfig(exclude=(wrong,))
    given = parse_words([r"gateway.exclude=[one_turn,'prompt=titles?, please',header.x-part=t]"])
    assert GatewayConfig(**given["gateway"]).exclude == ("one_turn", "prompt=titles?, please", "header.x-part=t")


AGENT = f"""
async def agent(task, client):
    chat = client.chat.completions
    messages = [{{"role": "user", "content": "count"}}]
    title = [{{"role": "system", "content": "You make titles."}}, *messages]
    await chat.create(model="m", messages=title)
    reply = await chat.create(model="m", messages=messages, tools={TOOL!r})
    said = reply.choices[0].message.content or ""
    root = str(client.base_url).removesuffix("v1/")
    await client.post(f"{{root}}reward", body={{"value": sum(said.encode()) % 7 / 7}}, cast_to=object)
"""


SMALL: dict[str, Any] = {
    "model": "tiny",
    "warm_start.steps": 0,
    "rollout.group_size": 3,
    "rollout.turn_tokens": 8,
    "eval.tasks": 1,
}


@pytest.mark.slow
def test_a_run_trains_on_the_task_alone_says_so_and_is_verified(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    run = tmp_path / "run"
    result = agentrl.train("calculator", agent=f"{tmp_path / 'agent.py'}:agent", run_dir=str(run), steps=1, **SMALL)
    (row,) = result.metrics
    with Store(run / "sessions.db", read_only=True) as store:
        sessions = list(store.sessions(phase="train"))
    for session in sessions:
        assert left_out(session) == ["You make titles."]
    sampled = [n for s in sessions for n in s.nodes if n.sampled and n.id in s.excluded_nodes()]
    assert row[Cause.EXCLUDED.metric] == sum(sum(node.trainable) for node in sampled) > 0
    assert row[f"count/{COUNTER}"] == len(sessions)
    assert "excluded" in describe_lost([row])
    said = capfd.readouterr().out
    assert said.count("gateway.exclude says which") == 1
    assert json.loads((run / "metrics.jsonl").read_text().splitlines()[0])[Cause.EXCLUDED.metric] > 0
    assert verify(run).passed


@pytest.mark.slow
def test_an_asynchronous_run_excludes_the_same_roots_when_it_is_run_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    run, again = tmp_path / "run", tmp_path / "again"
    ahead = {"rollout.staleness": 1, "rollout.groups_per_step": 2, "steps": 2}
    agentrl.train("calculator", agent=f"{tmp_path / 'agent.py'}:agent", run_dir=str(run), **ahead, **SMALL)
    agentrl.train(rerun=str(run), run_dir=str(again))
    assert f"the rerun equals {run}" in " ".join(capfd.readouterr().out.split())
    for folder in (run, again):
        with Store(folder / "sessions.db", read_only=True) as store:
            found = [left_out(session) for session in store.sessions(phase="train")]
        assert found == [["You make titles."]] * 12
