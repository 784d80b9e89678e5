"""A program's agents with policies of their own: a request's model says whose turn it is."""

from __future__ import annotations

import shlex
import signal
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import agentrl
from agentrl.config import RunConfig
from agentrl.errors import ConfigError
from agentrl.models import tiny
from agentrl.rollout.episodes.agents import load_agent, play
from agentrl.rollout.episodes.policies import Fixed, ModelActor, Policy
from agentrl.rollout.episodes.programs import share_reward
from agentrl.rollout.workers.gateways import LocalGateway
from agentrl.sessions.renderers import get_renderer
from agentrl.sessions.store.store import Store
from agentrl.sessions.tree import tree
from agentrl.sessions.tree.perspective import view_by
from agentrl.train.plan.preflight import check_rollouts
from agentrl.train.record.verify import verify
from agentrl.types import Sampling, Session, Status, Task
from tests.sessions.gateway.conftest import Serve, serve  # noqa: F401 (a fixture)
from tests.sessions.gateway.fakes import ScriptedEngine, assistant, in_turn, renderer
from tests.sessions.gateway.programs import QUIET, script
from tests.train.test_resume import end, start, words
from tests.train.test_several_learners import same, weights

HI: list[Any] = [{"role": "user", "content": "hi"}]
WORKER = Sampling(temperature=0.5, max_new_tokens=7)


async def played(
    serve: Serve,  # noqa: F811
    program: Any,
    said: Sequence[str] = ("done", "again"),
    *,
    frozen: bool = True,
    **options: Any,
) -> tuple[Session, Any, ScriptedEngine]:
    """A session of a program with a planner by the gateway's own policy, and a worker by another one."""
    other = ScriptedEngine(in_turn(*map(assistant, said)))
    partners = {"worker": Fixed(Policy(renderer(), other, name="helper", frozen=frozen), ModelActor(WORKER))}
    agents = {"planner": "main", "worker": "helper"}
    async with serve(**options) as served:
        gateway = LocalGateway(served.gateway, served.url, agents=agents, partners=partners)
        session = await play(gateway, Session("s", Task(id="t"), seed=3), load_agent(program), 120, Sampling())
        tree.check(session)
        assert session.status is Status.COMPLETED, session.error
        return session, served.engine, other


def trained_by_policy(session: Session) -> dict[str, set[str]]:
    """The agents whose tokens each of the two policies learns from."""
    views = {policy: view_by(session, policy, {"worker": "helper"}) for policy in ("main", "helper")}
    return {name: {node.agent for node in view.nodes if any(node.trainable)} for name, view in views.items()}


@pytest.mark.slow
async def test_each_agent_is_answered_by_its_policy_in_a_tree_of_its_own(serve: Serve) -> None:  # noqa: F811
    """Both are sent the same messages; a name that is nobody's gets the run's own policy, as without names."""

    async def program(task: Task, client: Any) -> None:
        chat = client.chat.completions
        plan = await chat.create(model="planner", messages=HI)
        await chat.create(model="worker", messages=HI)
        told = [*HI, plan.choices[0].message, {"role": "user", "content": "go on"}]
        for model in ("planner", "helper", "gpt-5"):
            await chat.create(model=model, messages=told)
        listed = [model.id async for model in client.models.list()]
        assert listed == ["agentrl", "main", "helper", "planner", "worker"]

    session, own, other = await played(serve, program)
    sampled = [node for node in session.nodes if node.sampled]
    turns = [(node.agent, node.policy, any(node.trainable), node.message.text) for node in sampled]
    assert turns == [
        ("planner", "main", True, "hello"),
        ("worker", "helper", False, "done"),
        ("planner", "main", True, "hello"),
        ("worker", "helper", False, "again"),
        ("agent", "main", True, "hello"),
    ]
    assert [(call.sampling.temperature, call.sampling.max_new_tokens) for call in other.calls] == [(0.5, 7)] * 2
    assert len(own.calls) == 3
    assert [node.agent for node in session.nodes if node.parent is None] == ["planner", "worker", "agent"]
    for node in session.nodes:
        assert node.parent is None or session.nodes[node.parent].agent == node.agent
    assert session.counters["gateway/clean"] == 1, "the planner's, whose reply came back"
    said = {node.message.text: node for node in session.nodes if node.agent == "worker" and not node.sampled}
    assert not session.nodes[said["go on"].parent or 0].sampled, "the planner's words are no turn of the worker's"


async def test_a_reply_that_another_agent_continues_begins_a_root_of_that_agent(serve: Serve) -> None:  # noqa: F811
    """A hand-off in the Responses protocol: the worker continues the planner's reply by its id."""

    async def program(task: Task, client: Any) -> None:
        plan = await client.responses.create(model="planner", input="hi")
        work = await client.responses.create(model="worker", input="go on", previous_response_id=plan.id)
        await client.responses.create(model="worker", input="more", previous_response_id=work.id)

    session, _, other = await played(serve, program)
    spoke = [(node.agent, node.message.text) for node in session.nodes]
    planner, worker = [("planner", "hi"), ("planner", "hello")], ["hi", "hello", "go on", "done", "more", "again"]
    assert spoke == [*planner, *(("worker", text) for text in worker)]
    assert [node.sampled for node in session.nodes if node.agent == "worker"] == [False] * 3 + [True, False, True]
    assert [call.input_ids for call in other.calls][1][: len(other.calls[0].input_ids)] == other.calls[0].input_ids


@pytest.mark.slow
async def test_an_agent_of_one_turn_without_tools_is_no_helper_of_another_agent(serve: Serve) -> None:  # noqa: F811
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}

    async def program(task: Task, client: Any) -> None:
        chat = client.chat.completions
        await chat.create(model="planner", messages=HI, tools=[tool])
        await chat.create(model="planner", messages=[{"role": "user", "content": "a title"}])
        await chat.create(model="worker", messages=HI)

    session, *_ = await played(serve, program)
    assert [session.nodes[root].message.text for root in session.excluded] == ["a title"]


@pytest.mark.slow
async def test_equal_requests_of_two_agents_are_not_retries_of_one_another(serve: Serve) -> None:  # noqa: F811
    """Even where every repeat is one: the worker is not sent what the planner was."""

    async def program(task: Task, client: Any) -> None:
        for model in ("planner", "worker", "planner", "worker"):
            reply = await client.chat.completions.create(model=model, messages=HI)
            assert reply.choices[0].message.content == ("hello" if model == "planner" else "done")

    session, own, other = await played(serve, program, retry_detection="all")
    assert (len(own.calls), len(other.calls), session.counters["gateway/retries"]) == (1, 1, 2)
    seeds = {call.sampling.seed for call in (*own.calls, *other.calls)}
    assert len(seeds) == 2


@pytest.mark.slow
async def test_a_hand_off_of_openais_agents_is_between_policies(serve: Serve, tmp_path: Path) -> None:  # noqa: F811
    """Each agent of the unmodified SDK names its model; over Chat Completions, then over Responses."""
    hand_off = assistant("", None, [("transfer_to_worker", "{}")])
    program = shlex.join(map(str, script("", "agents_hand_off.py", tmp_path)))
    engine = ScriptedEngine(lambda _: hand_off)
    session, own, other = await played(serve, program, ("done",), frozen=False, engine=engine)
    turns = [(node.agent, node.policy, node.message.text) for node in session.nodes if node.sampled]
    assert turns == [("planner", "main", ""), ("worker", "helper", "done")] * 2
    assert trained_by_policy(session) == {"main": {"planner"}, "helper": {"worker"}}
    assert (len(own.calls), len(other.calls)) == (2, 2)


@pytest.mark.slow
@pytest.mark.parametrize("library", ["autogen", "crewai", "langgraph"])
async def test_unmodified_teams_of_other_libraries_are_told_apart_by_their_models(
    serve: Serve,  # noqa: F811
    library: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A planner and a worker speak in turn, twice; each policy is trained on its own agent's turns alone."""
    for name, value in {**QUIET, "HOME": str(tmp_path), "NO_PROXY": "127.0.0.1,localhost"}.items():
        monkeypatch.setenv(name, value)
    program = shlex.join(map(str, script(library, f"{library}_team.py", tmp_path)))
    session, own, other = await played(serve, program, frozen=False)
    turns = [(node.agent, node.policy, any(node.trainable)) for node in session.nodes if node.sampled]
    assert turns == [("planner", "main", True), ("worker", "helper", True)] * 2
    assert trained_by_policy(session) == {"main": {"planner"}, "helper": {"worker"}}
    assert (len(own.calls), len(other.calls)) == (2, 2)
    for node in session.nodes:
        assert node.parent is None or session.nodes[node.parent].agent == node.agent


def test_a_sessions_reward_is_that_of_each_agent_that_spoke_in_it() -> None:
    session = Session("s", Task(id="t"), reward=0.5)
    root = tree.add(session, None, agentrl.Message(role="user", content="hi"), [1])
    share_reward(session, {"main"})
    assert (session.agent_rewards, session.partner_rewards, root.agent) == ({}, {}, "agent")


PROGRAM = """
    async def agent(task, client):
        chat = client.chat.completions

        async def said(model, text):
            reply = await chat.create(model=model, messages=[{"role": "user", "content": text}])
            return reply.choices[0].message.content or "nothing"

        plan = await said("planner", task["story"][0])
        work = await said("worker", plan)
        await said("critic", work)
        root = str(client.base_url).removesuffix("v1/")
        value = sum(f"{plan} {work}".encode()) % 7 / 7
        await client.post(f"{root}reward", body={"value": value}, cast_to=object)
"""
RUN: dict[str, Any] = {
    **{"model": "tiny", "warm_start.steps": 0, "steps": 1, "eval.tasks": 1, "eval.n": 1, "algo.warmup_steps": 0},
    **{"rollout.group_size": 3, "rollout.groups_per_step": 2, "rollout.turn_tokens": 8, "rollout.concurrency": 3},
    **{"agents.planner": "main", "agents.worker": "other", "policies.critic.model": "start"},
    **{"policies.other.algo": "grpo", "policies.other.algo.lr": 1e-2, "algo.lr": 1e-2},
}


@pytest.mark.slow
def test_a_plain_program_trains_its_planner_and_its_worker_each_by_its_own_tokens(tmp_path: Path) -> None:
    """The worker is a smaller model with another tokenizer, and learns; the critic is frozen, named by its policy."""
    (tmp_path / "agent.py").write_text(textwrap.dedent(PROGRAM))
    shape = tiny.TinyShape(vocab=400, layers=1, width=64)
    small = tiny.build(tmp_path / "small", ["numbers and words, and what they are worth"] * 9, shape=shape)
    run, agent = tmp_path / "run", f"{tmp_path / 'agent.py'}:agent"
    result = agentrl.train("calculator", agent=agent, run_dir=str(run), **RUN, **{"policies.other.model": str(small)})
    (row,) = result.metrics
    for policy in ("main", "other"):
        assert not same(weights(run, policy, 0), weights(run, policy, 1)), policy
    assert row["mismatch/abs_max"] < 1e-3
    assert row["other/mismatch/abs_max"] < 1e-3
    report = verify(run)
    assert report.passed, report
    with Store(run / "sessions.db", read_only=True) as store:
        sessions = list(store.sessions(phase="train"))
    assert len(sessions) == 6
    written = {"main": get_renderer(run / "model"), "other": get_renderer(small)}
    written["critic"] = written["main"]
    for session in sessions:
        turns = [node for node in session.nodes if node.sampled]
        assert [(node.agent, node.policy) for node in turns] == [
            ("planner", "main"),
            ("worker", "other"),
            ("critic", "critic"),
        ]
        assert session.agent_rewards == {"planner": session.reward, "worker": session.reward}
        assert session.partner_rewards == {"critic": session.reward}
        for node in turns:
            assert node.parent is not None
            asked = session.nodes[node.parent]
            assert asked.parent is None
            decoded = written[str(node.policy)].tokenizer.decode(asked.token_ids)
            assert asked.message.text in decoded, "by its own tokenizer"
        for policy, agent_name in (("main", "planner"), ("other", "worker")):
            seen = view_by(session, policy, {"planner": "main", "worker": "other", "critic": "critic"})
            assert {node.agent for node in seen.nodes if any(node.trainable)} == {agent_name}


@pytest.mark.slow
def test_a_hand_off_of_openais_agents_trains_both_of_its_policies(tmp_path: Path) -> None:
    """The SDK's planner has to call the hand-off, whose argument it draws under the schema; the worker answers."""
    program, run = shlex.join(map(str, script("", "agents_trained.py", tmp_path))), tmp_path / "run"
    own = {name: value for name, value in RUN.items() if "critic" not in name}
    agentrl.train("calculator", agent=program, run_dir=str(run), **own | {"rollout.turn_tokens": 128})
    with Store(run / "sessions.db", read_only=True) as store:
        sessions = list(store.sessions(phase="train"))
    assert len(sessions) == 6
    for session in sessions:
        assert session.status in (Status.COMPLETED, Status.TRUNCATED), session.error  # the worker's answer may be long
        turns = [(node.agent, node.policy, any(node.trainable)) for node in session.nodes if node.sampled]
        assert turns == [("planner", "main", True), ("worker", "other", True)]
        assert session.agent_rewards == {"planner": session.reward, "worker": session.reward}
    for policy in ("main", "other"):
        assert not same(weights(run, policy, 0), weights(run, policy, 1)), policy
    report = verify(run)
    assert report.passed, report


ONE: dict[str, Any] = {"env": {"name": "calculator"}, "model": {"name": "tiny"}, "agent": "sleep 1"}


@pytest.mark.slow
def test_a_killed_run_of_a_program_with_several_policies_goes_on_bit_for_bit(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(textwrap.dedent(PROGRAM))
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    settings = {**RUN, "steps": 3, "checkpoint_every": 1, "keep_checkpoints": 9, "env": "calculator"}
    settings["agent"] = f"{tmp_path / 'agent.py'}:agent"
    agentrl.train(run_dir=str(straight), **settings)
    process, rows = start(*words(settings), f"run_dir={killed}"), killed / "metrics.jsonl"
    end(process, signal.SIGKILL, lambda: rows.exists() and rows.read_bytes().count(b"\n") >= 1)
    agentrl.train(resume=str(killed))
    assert len(rows.read_bytes().splitlines()) == 3
    for policy in ("main", "other"):
        assert not same(weights(killed, policy, 0), weights(killed, policy, 3)), policy
        assert same(weights(straight, policy, 3), weights(killed, policy, 3)), policy
    report = verify(killed)
    assert report.passed, report


def test_a_policy_that_plays_no_agent_is_named_by_itself() -> None:
    config = RunConfig.model_validate(ONE | {"policies": {"b": {}, "c": {}}, "agents": {"planner": "b"}})
    assert config.agents == {"c": "c", "planner": "b"}
    assert RunConfig.model_validate(config.model_dump(mode="json")).agents == config.agents
    with pytest.raises(ValidationError, match=r"policies.b plays no agent"):
        RunConfig.model_validate({"env": {"name": "calculator"}, "policies": {"b": {}}})


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"policies": {"b": {"name": "expert"}}}, r"policies.b=expert plays agents.b, .* are answered by models"),
        ({"policies": {"b": {}}, "cluster": {"environments": 1}}, r"cluster.environments=1: the gateways of other"),
        ({"policies": {"b": {}}, "agents": {"agent": "b"}}, r"there is nothing to train"),
        ({"agents": {"openai/a": "main"}}, r"agents.openai/a: .* without a slash"),
        ({"policies": {"b": {}}, "gateway": {"forward": {"models": ["b"]}}}, r"agents.b: .* gateway.forward"),
    ],
)
def test_what_no_gateway_of_several_policies_can_do_is_refused_by_name(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        check_rollouts(RunConfig.model_validate(ONE | settings))
    check_rollouts(RunConfig.model_validate(ONE | {"policies": {"b": {}}, "agents": {"worker": "b"}}))


def test_programs_of_several_learners_are_played_by_the_step() -> None:
    several = ONE | {"policies": {"b": {"trainer": "torch"}}}
    RunConfig.model_validate(several)
    with pytest.raises(ValidationError, match=r"agent=, a program, with rollout.staleness is not there for several"):
        RunConfig.model_validate(several | {"rollout": {"staleness": 1}})
